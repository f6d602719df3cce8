package peer

import (
	"math"
	"math/bits"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Equal checks of one key that wait for the same frame travel as one record with a count (peer.v1 Request.times): the owner of a hot key decides
// one record a frame, however many callers wait. A check only joins the last record of its key in the frame, so the checks of a key
// are decided in the order in which they came.

// merger finds the last record of each key in a frame. Keys are hashes already, so a lookup is one probe of an open-addressing table;
// Go's map would hash them again.
type merger struct {
	slots  []int32 // index of a record plus one; 0 is free
	traced []bool  // by record, of the first ones
}

// trace reports whether record i is in no trace yet, and notes that it is in one from now on: a record of several checks has one place in one trace.
func (t *merger) trace(i int32) bool {
	for int(i) >= len(t.traced) {
		t.traced = append(t.traced, false)
	}
	first := !t.traced[i]
	t.traced[i] = true
	return first
}

// grow makes room for n keys. m has the records so far.
func (t *merger) grow(m *peerv1.Request, n int) {
	size := 2 << bits.Len(uint(n))
	if size <= len(t.slots) {
		return
	}
	if cap(t.slots) < size {
		t.slots = make([]int32, size)
	}
	t.slots = t.slots[:size]
	clear(t.slots)
	for i := range m.KeyLo {
		*t.slot(m, bucket.Key{Hi: m.KeyHi[i], Lo: m.KeyLo[i]}) = int32(i) + 1
	}
}

// slot returns where the index of the last record of key k in m is, or would be. t must have room for it.
func (t *merger) slot(m *peerv1.Request, k bucket.Key) *int32 {
	for i := k.Hi; ; i++ {
		slot := &t.slots[i%uint64(len(t.slots))]
		if *slot == 0 || m.KeyHi[*slot-1] == k.Hi && m.KeyLo[*slot-1] == k.Lo {
			return slot
		}
	}
}

// mergeable reports whether r may be one of several checks of a record.
func mergeable(r *check.Record) bool {
	return r.Verb == bucket.Check && r.Cost > 0 && r.Limits != nil && !r.Drain && !r.Hold && !r.GiveBack && !r.Lend && !r.Return && !r.Relay &&
		r.Limits.Repeatable()
}

// equal reports whether record i of m asks the same as r, which is mergeable, under limits of that number. Their keys are equal.
func equal(m *peerv1.Request, i int, r *check.Record, limits uint32) bool {
	return m.Limits[i] == limits && m.Cost[i] == r.Cost && m.Verb[i] == verbOf(r) && m.Flags[i] == flagsOf(r) &&
		m.Reserve[i] == r.Reserve && m.Lost[i] == lostOf(r) && m.Id[i] == 0 && max(1, m.Times[i])+max(1, r.Times) <= bucket.MaxTimes
}

// part returns the reply to times checks of rec that came after before others, out of the reply to all of them.
func part(reply *check.Reply, rec *check.Record, before, times int64) check.Reply {
	if reply.Status != check.Decided {
		return *reply
	}
	granted := min(max(reply.Granted-before, 0), times)
	switch {
	case granted == 0 && reply.Denial != nil:
		return check.Reply{Status: check.Decided, Holder: reply.Holder, Decision: *reply.Denial, Lent: reply.Lent}
	case granted < times && reply.Allowed && reply.Denial == nil:
		return check.Reply{} // a correct node answers all of them
	}
	mine := *reply
	mine.Granted = granted
	if granted == times {
		mine.Denial = nil
	}
	if granted > 0 {
		mine.Decision = earlier(&reply.Decision, rec, reply.Granted-before-granted)
	}
	return mine
}

// earlier returns the decision of the check that came n before the one of d, both admitted at the same
// instant: there was more left of the same limit. ResetAfter is that of d, which is not much later.
func earlier(d *bucket.Decision, rec *check.Record, n int64) bucket.Decision {
	e := *d
	if int(d.Index) >= rec.Limits.Len() || n == 0 {
		return e
	}
	units := rec.Cost
	if c := rec.Limits.At(int(d.Index)).Cost; c > 1 {
		if units > math.MaxInt64/c {
			return e
		}
		units *= c
	}
	if spent := d.Limit - d.Remaining; units > spent/n {
		e.Remaining = d.Limit
	} else {
		e.Remaining += n * units
	}
	return e
}
