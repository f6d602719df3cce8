package peer

import (
	"fmt"
	"hash/maphash"
	"weak"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
)

// intern gives equal sets of limits of one domain one pointer, whichever stream defined them:
// a counter recognises its limits by pointer first. It is bounded, keeps no set alive, and is safe for
// concurrent use.
type intern struct {
	seed maphash.Seed
	sets *lru.Cache[uint64, weak.Pointer[bucket.Limits]]
}

func newIntern(size int) *intern {
	sets, err := lru.New[uint64, weak.Pointer[bucket.Limits]](size)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &intern{seed: maphash.MakeSeed(), sets: sets}
}

// one returns the pointer that stands for l. Should two different sets have one
// hash, the later takes the place: sharing is an economy, never assumed.
func (in *intern) one(l *bucket.Limits) *bucket.Limits {
	sum := in.sum(l)
	found, _ := in.sets.Get(sum)
	if known := found.Value(); known != nil && known.Domain() == l.Domain() && known.Equal(l) {
		return known
	}
	in.sets.Add(sum, weak.Make(l))
	return l
}

// sum is equal for equal sets.
func (in *intern) sum(l *bucket.Limits) uint64 {
	var h maphash.Hash
	h.SetSeed(in.seed)
	h.WriteString(l.Domain())
	maphash.WriteComparable(&h, l.Sum())
	return h.Sum64()
}

// definitionOf returns what tells a receiver that id stands for l from this frame on.
func definitionOf(id uint32, l *bucket.Limits) *peerv1.Limits {
	d := &peerv1.Limits{Id: id, Domain: l.Domain(), Limits: make([]*sluicev1.Limit, l.Len())}
	for i := range d.Limits {
		d.Limits[i] = transport.LimitToProto(l.At(i))
	}
	return d
}

// definitions are what the numbers of limits mean on one stream, as its receiver
// knows them. At most maxLimitIDs are kept, because no higher number is taken, and none before the last definition of number 1.
type definitions struct {
	intern *intern
	known  []definition
}

type definition struct {
	defined bool
	// limits is nil where this node cannot make sense of the definition, for
	// example of an algorithm that a newer minor added. Records that name it are
	// answered as invalid, and the stream goes on.
	limits *bucket.Limits
}

// define takes the definitions of one frame. A number that was defined before means
// the new limits from now on.
func (d *definitions) define(list []*peerv1.Limits) error {
	for _, p := range list {
		if p.Id == 0 || p.Id > maxLimitIDs {
			return fmt.Errorf("definition of limits %d; want 1 to %d", p.Id, maxLimitIDs)
		}
		if p.Id == 1 {
			clear(d.known)
		}
		for int(p.Id) >= len(d.known) {
			d.known = append(d.known, definition{})
		}
		limits, err := transport.LimitsFromProto(accounted(p.Domain), p.Limits)
		if err != nil {
			d.known[p.Id] = definition{defined: true}
			continue
		}
		d.known[p.Id] = definition{defined: true, limits: d.intern.one(limits)}
	}
	return nil
}

// accounted returns the domain that counters are accounted to: domain, unless no check can have named it.
func accounted(domain string) string {
	if len(domain) > limiter.MaxText {
		return ""
	}
	return domain
}

// get returns the limits that id stands for, nil if this node cannot apply them.
func (d *definitions) get(id uint32) (*bucket.Limits, error) {
	if int64(id) >= int64(len(d.known)) || !d.known[id].defined {
		return nil, fmt.Errorf("limits %d were not defined on this stream", id)
	}
	return d.known[id].limits, nil
}

// numbering is the sender's side of definitions: it numbers the sets of limits that
// go over one stream, from 1. Between two frames all are forgotten, on both sides, when there might not be numbers for another
// frame, or when their sets have most limits. Not safe for concurrent use.
type numbering struct {
	numbers map[*bucket.Limits]uint32
	limits  int // of all sets
	most    int
}

// begin begins a frame, which defines at most maxGather sets.
func (n *numbering) begin() {
	if len(n.numbers) > maxLimitIDs-maxGather || n.limits >= n.most {
		clear(n.numbers)
		n.limits = 0
	}
}

// number returns the number of l and whether it must be defined in this frame.
func (n *numbering) number(l *bucket.Limits) (id uint32, fresh bool) {
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
