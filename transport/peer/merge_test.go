package peer

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// gathered returns the frame of these calls.
func gathered(s *session, calls ...*call) *frame {
	s.link = &link{pool: &Pool{cfg: Config{MaxQueue: 5 * maxGather}}}
	for _, c := range calls {
		_, c.limits = fits(c.records)
		s.link.mu.waiting.push(c)
	}
	f := &frame{}
	s.beginFrame(f)
	for s.gather(f) {
	}
	return f
}

// TestMerge: equal checks that follow each other become one record; others keep records of their own, in their order.
func TestMerge(t *testing.T) {
	one := costing(1)[0]
	change := func(f func(r *check.Record)) check.Record {
		r := one
		f(&r)
		return r
	}
	other := change(func(r *check.Record) { r.Key.Lo++ })
	two := change(func(r *check.Record) { r.Cost = 2 })
	refund := change(func(r *check.Record) { r.Verb = bucket.Refund })
	many := change(func(r *check.Record) { r.Times = 5 })
	for _, c := range []struct {
		name    string
		records []check.Record
		times   []int64
	}{
		{"equal", []check.Record{one, one, one}, []int64{3}},
		{"with another key between", []check.Record{one, other, one, other}, []int64{2, 2}},
		{"costs", []check.Record{one, two, one}, []int64{0, 0, 0}},
		{"a refund between", []check.Record{one, refund, one}, []int64{0, 0, 0}},
		{"refunds", []check.Record{refund, refund}, []int64{0, 0}},
		{"several already", []check.Record{one, many, many}, []int64{11}},
		{"as many as there may be", []check.Record{change(func(r *check.Record) { r.Times = bucket.MaxTimes - 1 }), one, one, one}, []int64{bucket.MaxTimes, 2}},
		{"limits", []check.Record{one, change(func(r *check.Record) {
			r.Limits = mustLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour})
		})}, []int64{0, 0}},
		{"no limits", []check.Record{change(func(r *check.Record) { r.Limits = nil }), change(func(r *check.Record) { r.Limits = nil })}, []int64{0, 0}},
		{"reserve", []check.Record{one, change(func(r *check.Record) { r.Reserve = 1 })}, []int64{0, 0}},
		{"lost state", []check.Record{one, change(func(r *check.Record) { r.DenyLost = true })}, []int64{0, 0}},
		{"without delay", []check.Record{one, change(func(r *check.Record) { r.NoDelay = true })}, []int64{0, 0}},
		{"unreplicated", []check.Record{one, change(func(r *check.Record) { r.Unreplicated = true })}, []int64{0, 0}},
		{"draining", slices.Repeat([]check.Record{change(func(r *check.Record) { r.Drain = true })}, 2), []int64{0, 0}},
		{"undoable", slices.Repeat([]check.Record{change(func(r *check.Record) { r.Undoable, r.ID = true, 1 })}, 2), []int64{0, 0}},
		{"relayed", slices.Repeat([]check.Record{change(func(r *check.Record) { r.Relay = true })}, 2), []int64{0, 0}},
		{"reports", slices.Repeat([]check.Record{change(func(r *check.Record) { r.Report = true })}, 2), []int64{0, 0}},
		{"leases", slices.Repeat([]check.Record{change(func(r *check.Record) { r.Grant = true })}, 2), []int64{0, 0}},
	} {
		for _, calls := range [][]*call{{{records: c.records}}, {{records: c.records[:1]}, {records: c.records[1:]}}} {
			s := new(session)
			f := gathered(s, calls...)
			if f.checks != len(c.records) || f.records != len(c.times) || !slices.Equal(s.request.Times, c.times) {
				t.Errorf("%s, %d calls: %d checks in %d records of %v, want %v", c.name, len(calls), f.checks, f.records, s.request.Times, c.times)
			}
			if merged := len(f.positions) > 0; merged != (f.records < f.checks) {
				t.Errorf("%s: %d positions", c.name, len(f.positions))
			}
		}
	}
}

// TestMergeManyCalls: a frame takes as many calls as there are where their checks are equal, and no more records than it may have where not.
func TestMergeManyCalls(t *testing.T) {
	var calls []*call
	for range 3 * maxGather {
		calls = append(calls, &call{records: costing(1)})
	}
	s := new(session)
	if f := gathered(s, calls...); f.checks != 3*maxGather || f.records != 3*maxGather/bucket.MaxTimes || s.link.mu.waiting.first != nil {
		t.Errorf("%d checks in %d records", f.checks, f.records)
	}
	calls = nil
	for i := range int64(3 * maxGather) {
		calls = append(calls, &call{records: costing(1 + i/2)})
	}
	if f := gathered(s, calls...); f.records > maxGather || f.checks < maxGather || f.checks > 2*maxGather {
		t.Errorf("%d checks in %d records", f.checks, f.records)
	}
}

// TestMergedTrace: of checks that travel in one record, the first that is in a trace has the owner's span.
func TestMergedTrace(t *testing.T) {
	first, second := &check.Trace{ID: [16]byte{1}}, &check.Trace{ID: [16]byte{2}}
	records := costing(1, 1, 1, 7)
	for i, at := range []*check.Trace{nil, first, second, second} {
		records[i].Key.Lo, records[i].Trace = 0, at
	}
	s := new(session)
	gathered(s, &call{records: records})
	if got := s.request.Traces; len(got) != 2 || got[0].First != 0 || got[0].Id[0] != 1 || got[1].First != 1 || got[1].Id[0] != 2 {
		t.Errorf("%v", got)
	}
}

// TestMergeIsInvisible: whatever is asked at once, each caller gets the answers that it would have got if every check had been a record of its own.
func TestMergeIsInvisible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var calls []*call
		for range rapid.IntRange(1, 5).Draw(t, "calls") {
			c := &call{done: make(chan error, 1)}
			for range rapid.IntRange(1, 5).Draw(t, "records") {
				r := costing(rapid.Int64Range(1, 2).Draw(t, "cost"))[0]
				r.Key = bucket.Key{Hi: rapid.Uint64Range(1, 2).Draw(t, "key")}
				r.Verb = rapid.SampledFrom([]bucket.Verb{bucket.Check, bucket.Check, bucket.Check, bucket.Read, bucket.Refund}).Draw(t, "verb")
				c.records = append(c.records, r)
			}
			c.replies = make([]check.Reply, len(c.records))
			calls = append(calls, c)
		}
		s := new(session)
		f := gathered(s, calls...)
		s.finishFrame(f)
		records, err := readRequest(&s.request, defined(t, &s.request), nil)
		if err != nil {
			t.Fatal(err)
		}
		table, alone := newTable(t), newTable(t)
		replies := make([]check.Reply, len(records))
		for i := range records {
			replies[i] = decided(table, &records[i])
		}
		m := &peerv1.Reply{Seq: f.seq}
		writeReply(m, "b", replies)
		s.peer, s.inFlight = "b", []*frame{f}
		if err := s.answer(m); err != nil {
			t.Fatal(err)
		}
		for i, c := range calls {
			if err := <-c.done; err != nil {
				t.Fatal(err)
			}
			for j := range c.records {
				want := decided(alone, &c.records[j])
				got := c.replies[j]
				got.Admitted, want.Admitted = 0, 0 // of one check it says nothing
				if got.Allowed != want.Allowed || got.Remaining != want.Remaining || got.RetryAfter != want.RetryAfter || !reflect.DeepEqual(got.Denial, want.Denial) {
					t.Errorf("call %d, check %d: %+v, alone %+v", i, j, got, want)
				}
			}
		}
	})
}

func newTable(t *rapid.T) *bucket.Table {
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// decided is what an owner replies to r.
func decided(table *bucket.Table, r *check.Record) check.Reply {
	reply := check.Reply{Status: check.Decided, Owner: "b"}
	if !r.Many() {
		reply.Decision, _, _ = table.Try(1, &r.Request, nil)
		return reply
	}
	s, _, _, _ := table.TryTimes(1, &r.Request, r.Times)
	reply.Admitted, reply.Decision = s.Granted, s.Last
	switch {
	case s.Granted == 0:
		reply.Decision = s.Denial
	case s.Granted < r.Times:
		reply.Denial = &s.Denial
	}
	return reply
}

func defined(t *rapid.T, m *peerv1.Request) *definitions {
	d := &definitions{intern: limiter.NewInterner(10)}
	if err := d.define(m.Define); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPart: however the checks of a record are divided, each gets the answer that it would have
// alone, and an answer that leaves some out is none.
func TestPart(t *testing.T) {
	l := mustLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Cost: 2, Period: time.Hour})
	rec := &check.Record{Request: bucket.Request{Limits: l, Cost: 3}, Times: 5}
	denial := &bucket.Decision{Limit: 100, Remaining: 5, RetryAfter: time.Second}
	reply := &check.Reply{Status: check.Decided, LeasedOut: true, Admitted: 2, Denial: denial, Decision: bucket.Decision{Allowed: true, Limit: 100, Remaining: 5}}
	for place, want := range []bucket.Decision{{Allowed: true, Limit: 100, Remaining: 11}, reply.Decision, *denial, *denial, *denial} {
		if got := splitReply(reply, rec, int64(place), 1); got.Decision != want || got.Status != check.Decided || !got.LeasedOut {
			t.Errorf("check %d: %+v, want %+v", place, got, want)
		}
		mine := splitReply(reply, rec, int64(place), 5-int64(place))
		for next := int64(0); next < 5-int64(place); next++ {
			divided := *rec
			divided.Times = 5 - int64(place)
			if a, b := splitReply(&mine, &divided, next, 1), splitReply(reply, rec, int64(place)+next, 1); a.Decision != b.Decision {
				t.Errorf("check %d behind %d: %+v, want %+v", next, place, a.Decision, b.Decision)
			}
		}
	}
	reply.Denial = nil
	if got := splitReply(reply, rec, 2, 1); got != (check.Reply{}) {
		t.Errorf("an answer to two of five: %+v", got)
	}
	reply.Remaining = 99
	if got := splitReply(reply, rec, 0, 1); got.Remaining != 100 {
		t.Errorf("more is left than there is: %+v", got)
	}
}

// TestTimesApart: two calls in one frame get their own denials.
func TestTimesApart(t *testing.T) {
	m := new(peerv1.Reply)
	var want []check.Reply
	for i := range 6 {
		r := check.Reply{Status: check.Decided, Owner: "b"}
		if i%2 == 1 {
			r.Denial = &bucket.Decision{RetryAfter: time.Duration(i)}
		}
		want = append(want, r)
	}
	writeReply(m, "b", want)
	for first := range want {
		got := make([]check.Reply, len(want)-first)
		readReply(m, first, "b", got)
		if !reflect.DeepEqual(got, want[first:]) {
			t.Errorf("from reply %d: %+v, want %+v", first, got, want[first:])
		}
	}
}
