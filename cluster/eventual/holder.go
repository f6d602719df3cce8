package eventual

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

// Holder is what a node makes of reports on keys that it holds. Not safe for concurrent use.
//
// All that must not be lost is in the table. Beside it is only who has reported lately.
type Holder struct {
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

// NewHolder returns the Holder of table, which remembers the reporters of at most max keys. Of others it
// takes every counted member for one.
func NewHolder(table *bucket.Table, max int) *Holder {
	return &Holder{table: table, max: max, keys: make(map[bucket.Key]*reporters)}
}

// Counted says what a line has done.
type Counted struct {
	// Added was charged, Over of it beyond the limit.
	Added, Over int64
}

// Count takes one line of a report of the process boot, and answers it. ok is false if the shard cannot decide
// now; the next report will say the same and more. counted is how many members the stable set has. now is
// Unix time in ns.
func (h *Holder) Count(now int64, boot string, l *message.Line, counted int) (s message.Standing, c Counted, ok bool) {
	if l.Limits == nil || !l.Limits.Windowed() || l.Sum < 0 || l.Sum > MaxSum {
		return s, c, false
	}
	r := bucket.Request{Key: l.Key, Limits: l.Limits, Cost: l.Sum, Transient: l.Transient}
	// Of a window that is over, or has not begun here yet, nothing is charged: it will be told again.
	x, v := h.table.Tally(now, &r, h.tag(boot), l.Ends)
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
func (h *Holder) tag(boot string) uint64 {
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
func (h *Holder) sharers(now int64, key bucket.Key, boot string, counted int) int {
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
func (h *Holder) sweep(now int64) {
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
func (h *Holder) Keys() int { return len(h.keys) }
