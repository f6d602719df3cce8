package process

import (
	"regexp"
	"strconv"
	"time"
)

// cycle has the parts of a cycle's processor time in ms: stop, assist, background, idle, and stop.
var cycle = regexp.MustCompile(`^gc .*ms clock, ([\d.]+)\+([\d.]+)/([\d.]+)/[\d.]+\+([\d.]+) ms cpu`)

// gcTime returns the processor time of one collector cycle, from a line of Go's
// gctrace such as
//
//	gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, 0.04+0.3/1.1/0.5+0.02 ms cpu, 4->5->2 MB, …
//
// which is documented in package runtime. Idle time is left out: no other work wanted it.
func gcTime(line string) (spent time.Duration, ok bool) {
	parts := cycle.FindStringSubmatch(line)
	if parts == nil {
		return 0, false
	}
	for _, part := range parts[1:] {
		ms, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		spent += time.Duration(ms * float64(time.Millisecond))
	}
	return spent, true
}
