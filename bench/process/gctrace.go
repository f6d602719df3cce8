package process

import (
	"strconv"
	"strings"
	"time"
)

// gcTime returns the processor time of one collector cycle, from a line of Go's
// gctrace such as
//
//	gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, 0.04+0.3/1.1/0.5+0.02 ms cpu, 4->5->2 MB, …
//
// which is documented in package runtime. The parts of the second group are stop,
// assist/background/idle, and stop. Idle time is left out: nobody else wanted it.
func gcTime(line string) (time.Duration, bool) {
	if !strings.HasPrefix(line, "gc ") {
		return 0, false
	}
	_, rest, ok := strings.Cut(line, "ms clock, ")
	if !ok {
		return 0, false
	}
	group, _, ok := strings.Cut(rest, " ms cpu")
	if !ok {
		return 0, false
	}
	parts := strings.FieldsFunc(group, func(r rune) bool { return r == '+' || r == '/' })
	if len(parts) != 5 {
		return 0, false
	}
	var sum float64
	for i, part := range parts {
		ms, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 {
			sum += ms
		}
	}
	return time.Duration(sum * float64(time.Millisecond)), true
}
