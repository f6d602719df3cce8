package gossip

import "time"

// maxQuiet bounds the lines that a limiter remembers.
const maxQuiet = 256

// limiter lets each line pass once per period, so that a peer that is refused
// every second does not fill the log. Not safe for concurrent use.
type limiter struct {
	period time.Duration
	last   map[string]time.Time
}

func newLimiter(period time.Duration) *limiter {
	return &limiter{period: period, last: map[string]time.Time{}}
}

// allow reports whether the line may pass at now.
func (l *limiter) allow(now time.Time, line string) bool {
	if at, ok := l.last[line]; ok && now.Sub(at) < l.period {
		return false
	}
	if len(l.last) >= maxQuiet {
		for other, at := range l.last {
			if now.Sub(at) >= l.period {
				delete(l.last, other)
			}
		}
		if len(l.last) >= maxQuiet {
			return false // that many lines within a period are enough
		}
	}
	l.last[line] = now
	return true
}
