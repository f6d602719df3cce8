// Package share is what a node admits of keys whose owners it cannot ask: a share of what was left of a limit when
// the owner was last heard, and the deferred charges that bring what was so admitted to the owner later.
//
// It decides when a process may give shares, how large they are, what it remembers of owners' answers, and what is
// still to be charged. It leaves to others which checks are answered so, and to send charges (cluster), and to write them to disk
// (cmd). It reads no clock and has no goroutine: time is a parameter, in ns on one clock that never steps back.
package share
