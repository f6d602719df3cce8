package peer

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// TestInterned: equal limits are one pointer, whoever sent them.
func TestInterned(t *testing.T) {
	network := newNetwork()
	var got []*bucket.Limits
	network.serve(t, "c:1", network.config("c"), handlerFunc(func(_ string, records []check.Record, _ []check.Reply) {
		for _, r := range records {
			got = append(got, r.Limits)
		}
	}))
	limits := func(count int64) *bucket.Limits {
		l, err := bucket.NewLimitsIn("shop", bucket.Limit{Algorithm: bucket.FixedWindow, Count: count, Period: time.Second},
			bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Hour, Zone: ""})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, name := range []string{"a", "b"} {
		pool := open(t, network.config(name))
		records := []check.Record{
			{Request: bucket.Request{Limits: limits(1)}}, {Request: bucket.Request{Limits: limits(2)}}, {Request: bucket.Request{Limits: limits(1)}},
		}
		if err := pool.Call(t.Context(), "c:1", records, make([]check.Reply, 3)); err != nil {
			t.Fatal(err)
		}
	}
	one, two := got[0], got[1]
	if one == two || !one.Equal(limits(1)) || !two.Equal(limits(2)) || one.Domain() != "shop" {
		t.Fatal("limits changed on the way")
	}
	for i, want := range []*bucket.Limits{one, two, one, one, two, one} {
		if got[i] != want {
			t.Errorf("record %d has a pointer of its own", i)
		}
	}
}

// TestNumbersInFrame: among as many sets as a frame can hold, in any order, no two
// have one number.
func TestNumbersInFrame(t *testing.T) {
	sets := make([]*bucket.Limits, 3*maxGather)
	for i := range sets {
		sets[i] = new(bucket.Limits)
	}
	n := numbering{maxLimits: defaultMaxLimits}
	next := 0
	fresh := func() *bucket.Limits { next++; return sets[next-1] }
	for range maxGather - 100 { // earlier frames
		n.number(fresh())
	}
	n.begin()
	frame := map[uint32]*bucket.Limits{}
	for i := range maxGather {
		set := sets[i] // old ones first, then more than there are numbers left
		if i >= 200 {
			set = fresh()
		}
		id, _ := n.number(set)
		if other := frame[id]; other != nil && other != set {
			t.Fatalf("record %d: number %d means another set earlier in the frame", i, id)
		}
		frame[id] = set
	}
}

// TestStreamForgets: a receiver keeps the sets of a bounded number of limits, and knows those of the frame.
func TestStreamForgets(t *testing.T) {
	n := numbering{maxLimits: 2048}
	d := definitions{intern: limiter.NewInterner(defaultMaxLimits)}
	made := 0
	for frame := range 200 {
		n.begin()
		var list []*peerv1.Limits
		want := map[uint32]*bucket.Limits{}
		sets := 1 + frame%50
		if frame == 0 {
			sets = maxFrameLimits / bucket.MaxLimits
		}
		for range sets {
			made++
			l := mustLimits(slices.Repeat([]bucket.Limit{{Algorithm: bucket.TokenBucket, Count: int64(made), Period: time.Second}}, bucket.MaxLimits)...)
			id, _ := n.number(l)
			list, want[id] = append(list, definitionOf(id, l)), l
		}
		if err := d.define(list); err != nil {
			t.Fatal(err)
		}
		for id, l := range want {
			if got, err := d.get(id); err != nil || !got.Equal(l) {
				t.Fatalf("frame %d: number %d means %v, %v", frame, id, got, err)
			}
		}
		kept := 0
		for _, k := range d.known {
			if k != nil {
				kept += k.Len()
			}
		}
		if most := n.maxLimits + 50*bucket.MaxLimits; frame > 0 && kept > most {
			t.Fatalf("frame %d: the sets that are kept have %d limits, want at most %d", frame, kept, most)
		}
	}
}

// TestFits: a frame holds a bounded number of records, and of their limits.
func TestFits(t *testing.T) {
	records := func(n, limits int) []check.Record {
		l := mustLimits(slices.Repeat([]bucket.Limit{{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second}}, limits)...)
		return slices.Repeat([]check.Record{{Request: bucket.Request{Limits: l}}}, n)
	}
	for _, c := range []struct {
		records   []check.Record
		n, limits int
	}{
		{make([]check.Record, 10), 10, 0},
		{make([]check.Record, maxGather+1), maxGather, 0},
		{records(maxGather+1, 1), maxGather, maxGather},
		{records(maxGather, 16), maxFrameLimits / 16, maxFrameLimits},
		{append(records(maxFrameLimits/16-1, 16), records(9, 15)...), maxFrameLimits / 16, maxFrameLimits - 1},
	} {
		if n, limits := fits(c.records); n != c.n || limits != c.limits {
			t.Errorf("%d records: %d with %d limits, want %d with %d", len(c.records), n, limits, c.n, c.limits)
		}
	}
	var q queue
	for range 3 {
		r := records(maxFrameLimits/32, 16)
		q.push(&call{records: r, limits: len(r) * 16})
	}
	if n, m := len(q.take(nil, maxGather, maxFrameLimits)), len(q.take(nil, maxGather, maxFrameLimits)); n != 2 || m != 1 {
		t.Errorf("frames take %d and %d calls, want 2 and 1", n, m)
	}
}

// TestNumbering sends so many sets of limits over one stream that every number is
// used several times, in frames of any size. What arrives is always what was sent.
func TestNumbering(t *testing.T) {
	network := newNetwork()
	network.serve(t, "b:1", network.config("b"), handlerFunc(func(_ string, records []check.Record, replies []check.Reply) {
		for i, r := range records {
			replies[i].Limit = r.Limits.At(0).Count
		}
	}))
	pool := open(t, network.config("a"))
	sets := make([]*bucket.Limits, 3*maxGather)
	for i := range sets {
		sets[i] = mustLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: int64(i), Period: time.Second})
	}
	next := 0
	for _, n := range []int{1, maxGather - 1, maxGather, 1, 100, maxGather, maxGather, 7, 2 * maxGather, 3 * maxGather, 1} {
		records, replies := make([]check.Record, n), make([]check.Reply, n)
		for i := range records {
			next = (next + 1) % len(sets)
			if i%5 == 4 { // now and then one that was used not long ago
				next = (next + len(sets) - 50) % len(sets)
			}
			records[i].Limits = sets[next]
		}
		if err := pool.Call(t.Context(), "b:1", records, replies); err != nil {
			t.Fatal(err)
		}
		for i := range records {
			if got, want := replies[i].Limit, records[i].Limits.At(0).Count; got != want {
				t.Fatalf("call of %d: record %d was held to %d, want %d", n, i, got, want)
			}
		}
	}
}
