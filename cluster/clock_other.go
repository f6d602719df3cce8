//go:build !linux

package cluster

import "time"

// steadyClock returns a clock that starts as the wall clock and goes on with
// monotonic time. On some systems that stands still while the machine sleeps, so there
// a process wakes with the quorum that it had: run clusters on Linux.
func steadyClock() func() int64 {
	start := time.Now()
	base := shifted(start.UnixNano())
	return func() int64 { return base + int64(time.Since(start)) }
}
