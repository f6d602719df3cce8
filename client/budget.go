package client

import (
	"sync"
	"time"
)

// What the budget of repeats is made of.
const (
	budgetPart   = 10  // one repeat for so many checks that were answered
	budgetRate   = 10  // and so many a second, for clients that ask little
	budgetMost   = 100 // at once
	budgetAtOnce = 10  // at the start
)

// budget bounds how often checks are repeated that a busy node has turned away: callers that repeat all
// of them would keep it busy. The zero budget is full of budgetAtOnce.
type budget struct {
	mu struct {
		sync.Mutex
		begun    bool
		left     float64
		at       time.Time
		answered uint64
	}
}

// take reports whether one more repeat is in the budget, when so many checks have been answered until now.
func (b *budget) take(now time.Time, answered uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.begun {
		earned := float64(answered-b.mu.answered)/budgetPart + budgetRate*now.Sub(b.mu.at).Seconds()
		b.mu.left = min(budgetMost, b.mu.left+max(0, earned))
	} else {
		b.mu.begun, b.mu.left = true, budgetAtOnce
	}
	b.mu.at, b.mu.answered = now, answered
	if b.mu.left < 1 {
		return false
	}
	b.mu.left--
	return true
}

// answered is how many checks nodes have decided.
func (s *counters) answered() (n uint64) {
	for i := range s.allowed {
		switch Source(i) {
		case SourceFailOpen, SourceFailClosed, SourceFailLocal:
			continue
		}
		n += s.allowed[i].Load() + s.denied[i].Load()
	}
	return n
}
