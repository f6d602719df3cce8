package peer

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport"
)

// Equal checks of one key in a frame are sent as one record with a count (peer.v1 Request.times), so the owner of a hot key decides
// one record a frame. A check is merged only into the last record of its key, which keeps the order of the key's checks.

// merger finds the last record of each key in a frame. Keys are hashes already, so an open-addressing table saves hashing them.
type merger struct {
	slots  []int32 // index of a record plus one; 0 is free
	traced []bool  // by record, of the first ones
}

// trace notes that record i has a trace, and reports whether it had none. A record of several checks is in one trace only.
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
	return r.Verb == bucket.Check && r.Cost > 0 && r.Limits != nil && !r.Drain && !r.Undoable && !r.GiveBack && !r.Grant && !r.Return && !r.Relay && !r.Report &&
		r.Limits.Repeatable()
}

// equal reports whether record i of m, of the same key, equals r, which is mergeable and has limits of that number.
func equal(m *peerv1.Request, i int, r *check.Record, limits uint32) bool {
	return m.Limits[i] == limits && m.Cost[i] == r.Cost && m.Verb[i] == verbOf(r) && m.Flags[i] == flagsOf(r) &&
		m.Reserve[i] == r.Reserve && m.Lost[i] == bit(r.DenyLost, denyLost) && m.Id[i] == 0 && max(1, m.Times[i])+max(1, r.Times) <= bucket.MaxTimes
}

// splitReply returns the reply to times checks of rec out of the reply to all checks of the record; before of them come first.
func splitReply(reply *check.Reply, rec *check.Record, before, times int64) check.Reply {
	if reply.Status != check.Decided {
		return *reply
	}
	granted := min(max(reply.Admitted-before, 0), times)
	switch {
	case granted == 0 && reply.Denial != nil:
		return check.Reply{Status: check.Decided, Owner: reply.Owner, Decision: *reply.Denial, LeasedOut: reply.LeasedOut}
	case granted < times && reply.Allowed && reply.Denial == nil:
		return check.Reply{} // a correct node answers all of them
	}
	mine := *reply
	mine.Admitted = granted
	if granted == times {
		mine.Denial = nil
	}
	if granted > 0 {
		mine.Decision = earlier(&reply.Decision, rec, reply.Admitted-before-granted)
	}
	return mine
}

// earlier returns the decision of the check n before that of d, both admitted at the same instant: more was left of the same
// limit. ResetAfter is that of d, which is not much later.
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

// definitionOf returns the message that defines id as l from this frame on.
func definitionOf(id uint32, l *bucket.Limits) *peerv1.Limits {
	d := &peerv1.Limits{Id: id, Domain: l.Domain(), Home: l.Home(), Limits: make([]*sluicev1.Limit, l.Len())}
	for i := range d.Limits {
		d.Limits[i] = transport.LimitToProto(l.At(i))
	}
	return d
}

// definitions are the limits by their numbers on one stream, as its receiver knows them. A definition of number 1 forgets all
// earlier ones; there are at most maxLimitIDs.
type definitions struct {
	intern *limiter.Interner
	known  []*bucket.Limits // by number; nil if undefined
}

// inapplicable stands for limits that this node cannot apply, for example of an algorithm of a newer minor. Records that name
// them are answered as invalid, and the stream goes on.
var inapplicable = new(bucket.Limits)

// define takes the definitions of one frame. Defining a number again replaces its limits from now on.
func (d *definitions) define(list []*peerv1.Limits) error {
	for _, p := range list {
		if p.Id == 0 || p.Id > maxLimitIDs {
			return fmt.Errorf("definition of limits %d; want 1 to %d", p.Id, maxLimitIDs)
		}
		if p.Id == 1 {
			clear(d.known)
		}
		for int(p.Id) >= len(d.known) {
			d.known = append(d.known, nil)
		}
		domain := p.Domain
		if len(domain) > limiter.MaxText {
			domain = "" // no check can have named it
		}
		limits, err := transport.LimitsFromProto(domain, p.Home, p.Limits)
		if d.known[p.Id] = inapplicable; err == nil {
			d.known[p.Id] = d.intern.Shared(limits)
		}
	}
	return nil
}

// get returns the limits of number id; nil for 0, and for limits that this node cannot apply.
func (d *definitions) get(id uint32) (*bucket.Limits, error) {
	switch {
	case id == 0:
		return nil, nil
	case int64(id) >= int64(len(d.known)) || d.known[id] == nil:
		return nil, fmt.Errorf("limits %d were not defined on this stream", id)
	case d.known[id] == inapplicable:
		return nil, nil
	}
	return d.known[id], nil
}

// numbering is the sender's side of definitions: it numbers the sets of limits of one stream, from 1. Before a frame it forgets
// all of them if it might run out of numbers, or if the sets have most limits in all. Not safe for concurrent use.
type numbering struct {
	numbers   map[*bucket.Limits]uint32
	limits    int // of all sets
	maxLimits int
}

// begin begins a frame, which defines at most maxGather sets.
func (n *numbering) begin() {
	if len(n.numbers) > maxLimitIDs-maxGather || n.limits >= n.maxLimits {
		clear(n.numbers)
		n.limits = 0
	}
}

// number returns the number of l, 0 for nil, and whether it must be defined in this frame.
func (n *numbering) number(l *bucket.Limits) (id uint32, fresh bool) {
	if l == nil {
		return 0, false
	}
	if id, ok := n.numbers[l]; ok {
		return id, false
	}
	if n.numbers == nil {
		n.numbers = make(map[*bucket.Limits]uint32)
	}
	id = uint32(len(n.numbers)) + 1
	n.numbers[l] = id
	n.limits += l.Len()
	return id, true
}
