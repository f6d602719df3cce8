// Package shed decides which calls a node refuses because it has too much to do, so that those it
// takes are still answered soon. There are two bounds: how many calls are in progress, and for how long goroutines
// that could run wait for a processor. It leaves to others how that wait is measured, what a refusal looks like,
// and which calls are never refused.
//
// It starts no goroutine and reads no clock: whoever owns a Gate calls Observe every Tick.
package shed
