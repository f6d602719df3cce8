// Package lease is what a node knows of keys that others hold, so that it need not ask their
// holders for every check of a hot one: denials that are still true, and units that holders have lent. It is also what a
// holder knows of those who borrow.
//
// It decides how long such knowledge is good for, which keys are hot, when more is to be asked for and how much, when
// something is to be returned, and how a holder divides what is left among those who ask. It leaves to others
// which checks may be answered from it, and to send what is to be sent (cluster), and what can be
// lent at all without ever admitting more (bucket). It reads no clock, and has no
// goroutine: time is a parameter, in ns on one clock that never steps back.
package lease
