// Package loglimit lets log lines that others can cause pass once per period.
package loglimit

import (
	"sync"
	"time"
)

// most bounds the keys that a Limiter remembers.
const most = 64

// Limiter lets each key pass once per period, so that a peer that is rejected every second does not fill the log. Keys should
// be kinds of lines: of keys that a remote can make up, at most 64 pass in a period. It is safe for concurrent use.
type Limiter struct {
	period time.Duration
	mu     struct {
		sync.Mutex
		last map[string]time.Time
	}
}

// New returns a Limiter with that period.
func New(period time.Duration) *Limiter {
	l := &Limiter{period: period}
	l.mu.last = map[string]time.Time{}
	return l
}

// Allow reports whether a line of that key may pass at now.
func (l *Limiter) Allow(now time.Time, key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.mu.last[key]; ok && now.Sub(at) < l.period {
		return false
	}
	if len(l.mu.last) >= most {
		for other, at := range l.mu.last {
			if now.Sub(at) >= l.period {
				delete(l.mu.last, other)
			}
		}
		if len(l.mu.last) >= most {
			return false
		}
	}
	l.mu.last[key] = now
	return true
}
