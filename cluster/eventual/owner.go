package eventual

import (
	"maps"

	"github.com/cespare/xxhash/v2"
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// Owner counts reports on keys that a node owns. Not safe for concurrent use. All that must not be lost is in the table;
// beside it is only which processes have reported recently.
type Owner struct {
	table *bucket.Table
	max   int
	keys  map[bucket.Key]*reporters
	swept int64
}

// reporters are the processes that have reported on a key.
type reporters struct {
	since int64
	last  map[uint64]int64 // time of the last report, by tag
}

// NewOwner returns the Owner of table, which remembers the reporters of at most max keys. Of other keys it takes every
// voter for a reporter.
func NewOwner(table *bucket.Table, max int) *Owner {
	return &Owner{table: table, max: max, keys: make(map[bucket.Key]*reporters)}
}

// Count charges one line of a report of the process with that Tag, and returns the answer and what was charged. ok is false if the
// shard cannot decide now; the next report includes this one. voters is the number of processes that may report, now Unix time in ns.
func (h *Owner) Count(now int64, tag uint64, l *message.Line, voters int) (s message.Standing, c bucket.Counted, ok bool) {
	if l.Limits == nil || !l.Limits.Windowed() || l.Sum < 0 || l.Sum > MaxSum {
		return s, c, false
	}
	r := bucket.Request{Key: l.Key, Limits: l.Limits, Cost: l.Sum, Unreplicated: l.Unreplicated}
	// Of a window that is over, or has not begun here yet, nothing is charged: it will be reported again.
	c, v := h.table.Counts(now, &r, tag, l.Ends)
	if v != bucket.Decided {
		return s, c, false
	}
	s = message.Standing{
		Key: l.Key, Ends: c.Ends, Known: c.Known, Remaining: c.Decision.Remaining,
		Reporters: h.sharers(now, l.Key, tag, voters),
	}
	return s, c, true
}

// Tag names the process with a boot ID, and its sums; it is not 0.
func Tag(boot string) uint64 { return max(1, xxhash.Sum64String(boot)) }

// sharers records that a process has reported on key, and returns among how many processes what remains must be shared: all
// voters as long as this node may not have heard from all reporters.
func (h *Owner) sharers(now int64, key bucket.Key, tag uint64, voters int) int {
	h.sweep(now)
	k := h.keys[key]
	if k == nil {
		if len(h.keys) >= h.max {
			return max(1, voters)
		}
		k = &reporters{now, make(map[uint64]int64, 1)}
		h.keys[key] = k
	}
	maps.DeleteFunc(k.last, func(_ uint64, at int64) bool { return now-at > int64(Recent) })
	k.last[tag] = now
	if now-k.since < int64(Recent) {
		return max(len(k.last), voters)
	}
	return len(k.last)
}

// sweep drops the keys without a report for Idle, once in a while.
func (h *Owner) sweep(now int64) {
	if now-h.swept < int64(Recent) {
		return
	}
	h.swept = now
	maps.DeleteFunc(h.keys, func(_ bucket.Key, k *reporters) bool {
		for _, at := range k.last {
			if now-at < int64(Idle) {
				return false
			}
		}
		return true
	})
}

// Keys returns how many keys have reporters.
func (h *Owner) Keys() int { return len(h.keys) }
