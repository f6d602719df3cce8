package peer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// everyRecord are records with everything that one may have, and everyReply replies.
func everyRecord() []check.Record {
	daily := mustLimits(
		bucket.Limit{Algorithm: bucket.FixedWindow, Count: 500, Align: bucket.AlignCalendar, Unit: bucket.Day, Zone: "Europe/Berlin"},
		bucket.Limit{Algorithm: bucket.SlidingLog, Count: 3, Period: time.Second, MinInterval: time.Millisecond, CountDenied: true})
	request := func(hi, lo uint64, l *bucket.Limits, cost int64, v bucket.Verb) bucket.Request {
		return bucket.Request{Key: bucket.Key{Hi: hi, Lo: lo}, Limits: l, Cost: cost, Verb: v}
	}
	reserving := func(v bucket.Verb, cost int64, once uint64, r bucket.Reservation) check.Record {
		return check.Record{Request: bucket.Request{Verb: v, Cost: cost, Once: once, Reservation: &r}}
	}
	drain, fast := request(1, 1, tenAMinute, 1, bucket.Check), request(1, 3, tenAMinute, 3, bucket.Read)
	drain.Drain, drain.DenyLost, fast.NoDelay = true, true, true
	return []check.Record{
		{Request: request(1, 2, tenAMinute, 1, bucket.Check)},
		{Request: request(math.MaxUint64, math.MaxUint64, daily, math.MaxInt64, bucket.Charge), Undoable: true, ID: math.MaxUint64},
		{Request: request(0, 0, tenAMinute, 0, bucket.Read)},
		{Request: request(3, 4, daily, 7, bucket.Refund), ID: 1},
		{Request: bucket.Request{Key: bucket.Key{Hi: 3, Lo: 4}, Limits: daily, Cost: 7, Verb: bucket.Charge, Once: math.MaxUint64}},
		{Request: request(5, 6, nil, 0, bucket.Reset)},
		{Request: request(7, 8, nil, 0, bucket.Check), GiveBack: true, ID: 9},
		{Request: drain, Report: true}, {Request: fast, Undoable: true},
		{Request: bucket.Request{Key: bucket.Key{Hi: 1, Lo: 2}, Limits: tenAMinute, Reserve: 7, Unreplicated: true}, Relay: true},
		{Times: 4}, {Times: 1024, ID: 2}, {Grant: true, Want: 1, Rate: 2, For: 3, ID: 3}, {Return: true, Want: 5, ID: 4},
		// Also where there are no limits that say so. One column is for Least and Most.
		reserving(bucket.Reserve, 9, 7, bucket.Reservation{ID: 1, Least: 3, Most: 3, MaxOpen: 5, For: time.Minute, Release: true, Fresh: true}),
		reserving(bucket.Reserve, 9, 0, bucket.Reservation{ID: 1, Least: 3, Most: 3, Lease: true, Hold: true}),
		reserving(bucket.Extend, -9, 7, bucket.Reservation{ID: 1, Least: 3, Most: 3, For: time.Second, Home: bucket.HomeAuto}),
		reserving(bucket.Spend, 9, 7, bucket.Reservation{ID: 1, Home: bucket.HomeAuto}),
		reserving(bucket.Settle, 9, 0, bucket.Reservation{ID: 1, Home: bucket.HomeAuto, Fresh: true}),
		reserving(bucket.Cancel, 0, 7, bucket.Reservation{ID: 1, For: time.Second}),
	}
}

func everyReply() []check.Reply {
	denial := bucket.Decision{Index: 2, Limit: 9, Remaining: 1, ResetAfter: time.Minute, RetryAfter: time.Second}
	most := bucket.Decision{Index: 1, Limit: math.MaxInt64, Remaining: math.MaxInt64, ResetAfter: math.MaxInt64, RetryAfter: bucket.Never}
	return []check.Reply{
		{Status: check.Decided, Owner: "b", Decision: bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Second}},
		{Status: check.Decided, Owner: "b", Decision: most},
		{Status: check.NotOwner, Owner: "c"},
		{Status: check.NotOwner, Owner: ""},
		{Status: check.Overloaded, Owner: "c"},
		{Status: check.NotReady, Owner: "c"},
		{Status: check.Invalid, Owner: "b", Decision: bucket.Decision{Allowed: true, Soft: true, Delay: time.Millisecond}},
		{Status: check.Decided, Owner: "b", Admitted: 4, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 5}},
		{Status: check.Decided, Owner: "b", Admitted: 2, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 1}, Denial: &denial},
		{Status: check.Decided, Owner: "b", Decision: denial},
		{Status: check.Decided, Owner: "b", Admitted: 7, Grant: 9, For: time.Second, LeasedOut: true},
		{Status: check.Decided, Owner: "b", Decision: bucket.Decision{Lost: true}, Late: true},
		{Status: check.Decided, Owner: "b", Repeated: true}, {Status: check.Decided, Owner: "b", Unknown: true},
		{Status: check.Decided, Owner: "b", Admitted: 1, Decision: bucket.Decision{Allowed: true, Limit: 1}, Denial: &bucket.Decision{Limit: 1, RetryAfter: 1}},
	}
}

// TestRoundTrip: every record and reply arrives as it was sent, alone and beside others, so that columns are left out or not.
func TestRoundTrip(t *testing.T) {
	records, replies := everyRecord(), everyReply()
	var batches [][]check.Record
	for _, r := range records {
		batches = append(batches, []check.Record{r})
	}
	backwards, syncs := slices.Clone(records), slices.Clone(records)
	slices.Reverse(backwards)
	for i := range syncs {
		syncs[i].Sync = true
	}
	var got []check.Record
	var from string
	var answer []check.Reply
	_, _, pool := pair(t, handlerFunc(func(f string, rs []check.Record, out []check.Reply) {
		from, got = f, slices.Clone(rs)
		copy(out, answer)
	}))
	for n, sent := range append(batches, records, backwards, syncs) {
		answer = nil
		for i := range sent {
			answer = append(answer, replies[(n+i)%len(replies)])
		}
		back := make([]check.Reply, len(sent))
		if err := pool.Call(t.Context(), "b:1", sent, back); err != nil {
			t.Fatal(err)
		}
		if from != "a-1" || len(got) != len(sent) {
			t.Fatalf("%d records from %q, want %d of the boot id a-1", len(got), from, len(sent))
		}
		for i, w := range sent {
			g := got[i]
			if (g.Limits == nil) != (w.Limits == nil) || g.Limits != nil && !g.Limits.Equal(w.Limits) {
				t.Errorf("%+v: limits changed on the way", w)
			}
			g.Limits, w.Limits = nil, nil
			if w.Reservation != nil { // they are columns of a reservation
				g.ID, g.Want, g.Rate, g.For = 0, 0, 0, 0
			}
			if !reflect.DeepEqual(g, w) {
				t.Errorf("arrived as %+v, sent was %+v", g, w)
			}
		}
		if !reflect.DeepEqual(back, answer) {
			t.Errorf("replies came back as %+v, sent were %+v", back, answer)
		}
	}
}

// TestSizes: calls larger than a frame are split, and nobody notices.
func TestSizes(t *testing.T) {
	_, _, pool := pair(t, handlerFunc(echo))
	for _, n := range []int{0, 1, 2, 1000, maxGather, maxGather + 1, 10_000} {
		costs := make([]int64, n)
		for i := range costs {
			costs[i] = int64(i)
		}
		replies := make([]check.Reply, n)
		if err := pool.Call(t.Context(), "b:1", costing(costs...), replies); err != nil {
			t.Fatal(err)
		}
		for i, r := range replies {
			if r.Status != check.Decided || r.Remaining != int64(i) {
				t.Fatalf("%d records: reply %d is %+v", n, i, r)
			}
		}
	}
	if err := pool.Call(t.Context(), "b:1", costing(1), nil); !errors.Is(err, check.ErrUnsent) {
		t.Errorf("a record without room for its reply: %v", err)
	}
}

// TestGather: two frames go at once, and what comes meanwhile leaves as one when an
// answer is back. No time passes.
func TestGather(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newGate()
		_, _, pool := pair(t, b)
		start := time.Now()
		results := make(chan error)
		caller := func(cost int64) { results <- ask(t.Context(), pool, "b:1", cost) }

		go caller(1)
		if n := <-b.arrived; n != 1 {
			t.Fatalf("first frame has %d records", n)
		}
		go caller(2)
		synctest.Wait()
		if s := pool.Stats(); s.Frames != 2 || s.Waiting != 0 {
			t.Fatalf("the second call did not leave at once: %+v", s)
		}
		for i := range 50 {
			go caller(int64(3 + i))
		}
		synctest.Wait()
		if s := pool.Stats(); s.Frames != 2 || s.Waiting != 50 {
			t.Fatalf("with two frames unanswered: %+v", s)
		}
		b.pass <- 1
		if n := <-b.arrived; n != 1 {
			t.Fatalf("second frame has %d records", n)
		}
		b.pass <- 1
		if n := <-b.arrived; n != 50 {
			t.Fatalf("third frame has %d records, want the 50 that waited", n)
		}
		b.pass <- 1
		for range 52 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if s := pool.Stats(); s.Frames != 3 || s.Records != 52 {
			t.Errorf("at the end: %+v", s)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v: something waits for a timer", took)
		}
	})
}

// TestManyCallers is for the race detector, and for answers that get mixed up.
func TestManyCallers(t *testing.T) {
	_, _, pool := pair(t, handlerFunc(echo))
	results := make(chan error)
	for g := range 32 {
		go func() {
			var err error
			for i := range 100 {
				costs := make([]int64, 1+(g*i)%40)
				for j := range costs {
					costs[j] = int64(g*1000 + i + j)
				}
				replies := make([]check.Reply, len(costs))
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if i%7 == 6 { // give up somewhere on the way
					ctx, cancel = context.WithTimeout(ctx, time.Duration(g)*10*time.Microsecond)
				}
				e := pool.Call(ctx, "b:1", costing(costs...), replies)
				cancel()
				if e != nil {
					if i%7 != 6 || !errors.Is(e, context.DeadlineExceeded) {
						err = e
					}
					continue
				}
				for j, r := range replies {
					if r.Remaining != costs[j] {
						err = fmt.Errorf("caller %d: reply %d is %d, want %d", g, j, r.Remaining, costs[j])
					}
				}
			}
			results <- err
		}()
	}
	for range 32 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// TestOverloaded: the queue of a peer is bounded in records, and what is rejected does
// not disturb what waits.
func TestOverloaded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, b := newNetwork(), newGate()
		network.serve(t, "b:1", network.config("b"), b)
		c := network.config("a")
		c.MaxQueue = maxGather
		pool := open(t, c)
		results := make(chan error)
		go func() { results <- ask(t.Context(), pool, "b:1", 1) }()
		<-b.arrived
		go func() { results <- ask(t.Context(), pool, "b:1", 2) }()
		synctest.Wait()
		many := costing(make([]int64, maxGather)...)
		go func() { results <- pool.Call(t.Context(), "b:1", many, make([]check.Reply, len(many))) }()
		synctest.Wait()
		if err := ask(t.Context(), pool, "b:1", 3); !errors.Is(err, check.ErrOverloaded) {
			t.Errorf("one more than fits: %v, want %v", err, check.ErrOverloaded)
		}
		if s := pool.Stats(); s.Waiting != maxGather || s.Overloaded != 1 {
			t.Errorf("%+v", s)
		}
		b.open()
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if err := ask(t.Context(), pool, "b:1", 3); err != nil {
			t.Errorf("with an empty queue: %v", err)
		}
	})
}
