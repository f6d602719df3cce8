// Package heavy finds the keys that come most often in a stream, in memory that does not grow with the
// number of keys. Sketch is the algorithm, Window keeps one for each part of the last minute or
// so. Time is a parameter; no goroutine is started. What a key is called, and which of the stream is shown
// to it, is for the caller to say.
package heavy
