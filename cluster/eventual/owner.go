package eventual

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

// Owner is what a node makes of reports on keys that it holds. Not safe for concurrent use.
//
// All that must not be lost is in the table. Beside it is only who has reported lately.
type Owner struct {
	table *bucket.Table
	max   int
	keys  map[bucket.Key]*reporters
	swept int64
	// forgetful leaves out the maximum, and charges every sum as if nothing of it had been told: tests
	// show what that does.
	forgetful bool
	told      uint64
}

// reporters are the processes that have reported on a key.
type reporters struct {
	since int64
	list  []reporter
}

type reporter struct {
	boot string
	at   int64 // of its last report
}

// NewOwner returns the Owner of table, which remembers the reporters of at most max keys. Of others it
// takes every counted member for one.
func NewOwner(table *bucket.Table, max int) *Owner {
	return &Owner{table: table, max: max, keys: make(map[bucket.Key]*reporters)}
}

// Counted says what a line has done.
type Counted struct {
	// Added was charged, Over of it beyond the limit.
	Added, Over int64
}

// Count takes one line of a report of the process boot, and answers it. ok is false if the shard cannot decide
// now; the next report will say the same and more. counted is how many members the voter set has. now is
// Unix time in ns.
func (h *Owner) Count(now int64, boot string, l *message.Line, counted int) (s message.Standing, c Counted, ok bool) {
	if l.Limits == nil || !l.Limits.Windowed() || l.Sum < 0 || l.Sum > MaxSum {
		return s, c, false
	}
	r := bucket.Request{Key: l.Key, Limits: l.Limits, Cost: l.Sum, Transient: l.Transient}
	// Of a window that is over, or has not begun here yet, nothing is charged: it will be told again.
	x, v := h.table.Counts(now, &r, h.tag(boot), l.Ends)
	if v != bucket.Decided {
		return s, c, false
	}
	s = message.Standing{
		Key: l.Key, Ends: x.Ends, Known: x.Known, Remaining: x.Decision.Remaining,
		Reporters: h.sharers(now, l.Key, boot, counted),
	}
	return s, Counted{x.Added, x.Over}, true
}

// tag names what the process boot tells.
func (h *Owner) tag(boot string) uint64 {
	var d xxhash.Digest
	d.Reset()
	if h.forgetful {
		h.told++
		d.ResetWithSeed(h.told)
	}
	_, _ = d.WriteString(boot) // never fails
	return max(1, d.Sum64())
}

// sharers notes that boot has reported on key and returns among how many processes what remains is to be shared.
// As long as this node may not have heard of all of them, these are all members.
func (h *Owner) sharers(now int64, key bucket.Key, boot string, counted int) int {
	h.sweep(now)
	k := h.keys[key]
	if k == nil {
		if len(h.keys) >= h.max {
			return max(1, counted)
		}
		k = &reporters{since: now}
		h.keys[key] = k
	}
	known := false
	k.list = slices.DeleteFunc(k.list, func(r reporter) bool { return now-r.at > int64(Recent) })
	for i := range k.list {
		if k.list[i].boot == boot {
			k.list[i].at, known = now, true
		}
	}
	if !known {
		k.list = append(k.list, reporter{boot, now})
	}
	if now-k.since < int64(Recent) {
		return max(len(k.list), counted)
	}
	return len(k.list)
}

// sweep forgets the keys that nobody has reported on for Idle, now and then.
func (h *Owner) sweep(now int64) {
	if now-h.swept < int64(Recent) {
		return
	}
	h.swept = now
	for key, k := range h.keys {
		if !slices.ContainsFunc(k.list, func(r reporter) bool { return now-r.at < int64(Idle) }) {
			delete(h.keys, key)
		}
	}
}

// Keys returns how many keys have reporters.
func (h *Owner) Keys() int { return len(h.keys) }

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
		if !e.pendingGrants && e.sum == e.told && e.waiting == never {
			continue
		}
		e.pendingGrants, e.sent = false, now
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

// Learn takes what the owner says of one key, in answer to the report sent at sent; clock is the
// owner's. Answers may come twice and in any order.
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
		// The first answer, or the owner is in another window. What was admitted there, before this entry was
		// made, is known to the owner, or it would not have been forgotten.
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
