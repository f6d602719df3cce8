package eventual

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Len returns how many keys are in the book. While there is one, Report has something to do.
func (b *Book) Len() int { return len(b.entries) }

// Report calls add with all that is to be told now, and forgets what nobody asks for any more. It is called
// every Period while there are keys.
func (b *Book) Report(now int64, add func(message.Line)) {
	for key, e := range b.entries {
		if e.over(now) {
			delete(b.entries, key)
			continue
		}
		if !e.news && e.sum == e.told && e.waiting == never {
			continue
		}
		e.news, e.sent = false, now
		if e.waiting == never {
			e.waiting = now
		}
		add(message.Line{Key: key, Limits: e.limits, Ends: e.ends, Sum: e.sum, Transient: e.transient})
	}
}

// over reports whether nothing of e matters any more: nobody asks, and all is counted or its window is over.
func (e *entry) over(now int64) bool {
	return now-e.asked >= int64(Idle) && (e.sum == e.told || now+e.ahead >= e.ends)
}

// Learn takes what the holder says of one key, in answer to the report sent at sent; clock is the
// holder's. Answers may come twice and in any order.
func (b *Book) Learn(now, sent, clock int64, s *message.Standing) {
	e := b.entries[s.Key]
	if e == nil || sent < e.born || sent <= e.asOf || sent > now || s.Reporters < 1 {
		return
	}
	ended := e.ends - e.ahead
	// The answer was made somewhen between sent and now.
	e.ahead = clock - (sent + (now-sent)/2)
	switch {
	case s.Ends == e.ends:
	case e.ends != 0 && max(ended-(s.Ends-e.ahead), s.Ends-e.ahead-ended) < int64(sameWindow):
		// The same window, by the clock of another owner.
		e.ends = s.Ends
	case s.Ends < e.ends && now-e.rolled < int64(Fresh):
		return // the window has begun here a moment before it begins there
	default:
		// The first answer, or the holder is in another window. What was admitted there, before this entry was
		// made, is known to the holder, or it would not have been forgotten.
		e.sum, e.ends, e.rolled = s.Known, s.Ends, now
	}
	e.asOf, e.trip = sent, now-sent
	e.waiting = never
	if e.sent > sent {
		e.waiting = min(e.sent, sent+int64(Period))
	}
	e.told, e.sum = s.Known, max(e.sum, s.Known)
	e.left, e.reporters = max(0, s.Remaining), int64(s.Reporters)
	e.most = e.told + share(e.left, e.reporters)
}

// share returns one of n parts of left, rounded up: so the last units go too.
func share(left, n int64) int64 { return left/n + min(1, left%n) }

// Stats is how a Book stands.
type Stats struct {
	// Keys are remembered. Full counts the checks that found no room for another.
	Keys int
	Full uint64
	// Lag is the time for which the oldest report has been without an answer.
	Lag time.Duration
}

// Stats returns how b stands at now.
func (b *Book) Stats(now int64) Stats {
	s := Stats{Keys: len(b.entries), Full: b.full}
	for _, e := range b.entries {
		if e.waiting != never {
			s.Lag = max(s.Lag, time.Duration(now-e.waiting))
		}
	}
	return s
}
