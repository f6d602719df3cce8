package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/race"
)

// crowd has count callers ask r of n at once, and returns their answers, in the order of the decisions.
func crowd(ctx context.Context, n *Node, count int, r check.Request) []check.Answer {
	answers := make([]check.Answer, count)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = decide(ctx, n, r)[0] })
	}
	all.Wait()
	slices.SortFunc(answers, func(a, b check.Answer) int {
		if a.Allowed != b.Allowed {
			return map[bool]int{true: -1, false: 1}[a.Allowed]
		}
		return int(b.Remaining - a.Remaining)
	})
	return answers
}

// TestCombine: callers that ask for one key at once share two records: one asks alone, and all others behind it
// together. Each gets its own answer, as if it had asked alone.
func TestCombine(t *testing.T) {
	for _, limit := range []int64{100, 40} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.gather()
			a := w.nodes["a"]
			r := request(a, "b", 1, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 3 * limit, Cost: 3, Period: time.Hour}))
			admitted := min(limit, 64)
			for i, answer := range crowd(t.Context(), a, 64, r) {
				want := max(0, 3*(limit-1-int64(i)))
				wantAnswer(t, "one of them", answer, int64(i) < admitted, check.Forwarded, "b")
				if answer.Remaining != want || (answer.RetryAfter > 0) == answer.Allowed {
					t.Errorf("answer %d of %d: %+v; want %d remaining", i, limit, answer, want)
				}
			}
			if n := spent(w.nodes["b"], r); n != 3*admitted {
				t.Errorf("%d spent, want %d", n, 3*admitted)
			}
			calls := w.callsSoFar()
			if len(calls) != 2 || len(calls[1].records) != 1 || calls[1].records[0].Times != 63 {
				t.Errorf("%d calls, %+v; want one of one check and one of 63", len(calls), calls)
			}
			if s := a.Stats(); s.Forwards != 2 || s.Combined != 62 || s.Forwarded != 64 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestCombineBeside: a few records of a key go side by side before others gather, and those that are on their way are
// counted until they are back, or lost.
func TestCombineBeside(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			a := w.nodes["a"]
			a.combine.beside = 4
			r := request(a, "b", 1, hourly(100))
			if lost {
				w.decides(func(_, _ string, records []check.Record) fate {
					if len(w.mu.calls) <= 4 {
						return replyLost
					}
					return delivered
				})
			}
			for _, answer := range crowd(t.Context(), a, 64, r) {
				wantAnswer(t, "one of them", answer, true, check.Forwarded, "b")
			}
			var times []int64
			for _, call := range w.callsSoFar() {
				for _, rec := range call.records {
					times = append(times, rec.Times)
				}
			}
			if want := []int64{0, 0, 0, 0, 0, 59}; !lost && !slices.Equal(times, want) {
				t.Errorf("records of %v checks, want %v", times, want)
			}
			if n := a.combine.place(r.Key).Load(); n != 0 {
				t.Errorf("%d are on their way when all are back", n)
			}
		})
	}
}

// TestCombineFar: where a round trip takes long, more records go side by side, so that checks of a key that is not asked for more
// often than the network can carry do not wait for one.
func TestCombineFar(t *testing.T) {
	for rtt, want := range map[time.Duration]int{0: 4, 9 * time.Millisecond: 4, 10 * time.Millisecond: 8, 400 * time.Millisecond: 164} {
		c := combiner{beside: usualBeside}
		c.apart(int64(rtt))
		n := 0
		for c.enter(bucket.Key{Hi: 1}) {
			n++
		}
		if n != want {
			t.Errorf("round trips of %v: %d records side by side, want %d", rtt, n, want)
		}
	}
}

// TestCombineUnlike: what is not alike keeps records of its own, in the order of the batch.
func TestCombineUnlike(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		one := request(a, "b", 1, hourly(10))
		two, read, refund, drain := one, one, one, one
		two.Cost, read.Verb, refund.Verb, drain.Drain = 2, bucket.Read, bucket.Refund, true
		for _, c := range []struct {
			name  string
			batch []check.Request
			times []int64
			left  []int64
		}{
			{"costs", []check.Request{one, two, one}, []int64{0, 0, 0}, []int64{9, 7, 6}},
			{"a refund between", []check.Request{one, refund, one}, []int64{0, 0, 0}, []int64{5, 6, 5}},
			{"reads", []check.Request{read, read}, []int64{0, 0}, []int64{5, 5}},
			{"draining", []check.Request{drain, drain}, []int64{0, 0}, []int64{4, 3}},
			{"alike", []check.Request{one, one, one}, []int64{3}, []int64{2, 1, 0}},
		} {
			before := len(w.callsSoFar())
			for i, answer := range decide(t.Context(), a, c.batch...) {
				if answer.Err != nil || answer.Remaining != c.left[i] {
					t.Errorf("%s, check %d: %+v; want %d remaining", c.name, i, answer, c.left[i])
				}
			}
			var times []int64
			for _, call := range w.callsSoFar()[before:] {
				for _, rec := range call.records {
					times = append(times, rec.Times)
				}
			}
			if !slices.Equal(times, c.times) {
				t.Errorf("%s: records of %v checks, want %v", c.name, times, c.times)
			}
		}
	})
}

// TestCombineLeave: one who gives up, while it waits or while its record is on the way, harms nobody
// else. What it may have charged is charged once.
func TestCombineLeave(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration // a record takes twice the latency
		cause error
		spent int64
	}{
		{"waiting behind the first", latency, check.ErrUnsent, 9},
		{"on the way", 3 * latency, check.ErrAmbiguous, 10},
	} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.gather()
			a := w.nodes["a"]
			r := request(a, "b", 1, hourly(100))
			r.Limits = hourly(100)
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			defer cancel()
			var first, gone check.Answer
			var rest []check.Answer
			var all sync.WaitGroup
			all.Go(func() { first = decide(t.Context(), a, r)[0] })
			synctest.Wait()
			closed := r
			closed.OnFailure = 1 // of no matter for what shares a record
			all.Go(func() { gone = decide(ctx, a, r)[0] })
			all.Go(func() { rest = crowd(t.Context(), a, 8, closed) })
			all.Wait()
			if gone.Source != check.Share {
				t.Errorf("%s: who gave up got %+v", c.name, gone)
			}
			for _, answer := range append(rest, first) {
				wantAnswer(t, c.name, answer, true, check.Forwarded, "b")
			}
			if n := spent(w.nodes["b"], r); n != c.spent {
				t.Errorf("%s: %d spent, want %d", c.name, n, c.spent)
			}
			if n := a.Stats().Ambiguous; (n == 1) != errors.Is(c.cause, check.ErrAmbiguous) {
				t.Errorf("%s: %d ambiguous", c.name, n)
			}
		})
	}
}

// TestCombineLost: where nobody knows what became of a record, nobody of those who shared it does. They ask again: what is
// charged may be twice as much, what is admitted is not.
func TestCombineLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.gather()
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(20))
		w.decides(func(_, _ string, records []check.Record) fate {
			if records[0].Times == 15 && len(w.mu.calls) == 2 {
				return replyLost
			}
			return delivered
		})
		allowed := 0
		for _, answer := range crowd(t.Context(), a, 16, r) {
			if answer.Allowed {
				allowed++
			}
			if answer.Source != check.Forwarded {
				t.Errorf("%+v", answer)
			}
		}
		if n := spent(w.nodes["b"], r); n != 20 || allowed != 5 { // 1, and of 15 a second time 4
			t.Errorf("%d spent, %d admitted; want 20 and 5", n, allowed)
		}
		if s := a.Stats(); s.Ambiguous != 15 {
			t.Errorf("%+v", s)
		}
	})
}

// TestCombineElsewhere: a record goes with those who wait behind it when the holder changes.
func TestCombineElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		w.gather()
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(20))
		pose(w.nodes["b"], viewOf(2, "a", "c"))
		pose(w.nodes["c"], viewOf(2, "a", "c"))
		holder := w.nodes["c"].Ring().Owner(r.Key.Shard(31))
		if holder == "a" {
			t.Fatal("the key moves to the node that asks: take another")
		}
		for _, answer := range crowd(t.Context(), a, 16, r) {
			wantAnswer(t, "after the change", answer, true, check.Forwarded, holder)
		}
		if n := spent(w.nodes[holder], r); n != 16 {
			t.Errorf("%d spent, want 16", n)
		}
	})
}

// TestPart: however the checks of a record are divided, each gets the answer that it would have
// alone, and an answer that leaves some out is none.
func TestPart(t *testing.T) {
	l := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Cost: 2, Period: time.Hour})
	rec := &check.Record{Request: bucket.Request{Limits: l, Cost: 3}, Times: 5}
	denial := &bucket.Decision{Limit: 100, Remaining: 5, RetryAfter: time.Second}
	reply := &check.Reply{Status: check.Decided, Lent: true, Granted: 2, Denial: denial, Decision: bucket.Decision{Allowed: true, Limit: 100, Remaining: 5}}
	for place, want := range []bucket.Decision{{Allowed: true, Limit: 100, Remaining: 11}, reply.Decision, *denial, *denial, *denial} {
		if got := part(reply, rec, int64(place), 1); got.Decision != want || got.Status != check.Decided || !got.Lent {
			t.Errorf("check %d: %+v, want %+v", place, got, want)
		}
		mine := part(reply, rec, int64(place), 5-int64(place))
		for next := int64(0); next < 5-int64(place); next++ {
			divided := *rec
			divided.Times = 5 - int64(place)
			if a, b := part(&mine, &divided, next, 1), part(reply, rec, int64(place)+next, 1); a.Decision != b.Decision {
				t.Errorf("check %d behind %d: %+v, want %+v", next, place, a.Decision, b.Decision)
			}
		}
	}
	reply.Denial = nil
	if got := part(reply, rec, 2, 1); got != (check.Reply{}) {
		t.Errorf("an answer to two of five: %+v", got)
	}
	reply.Remaining = 99
	if got := part(reply, rec, 0, 1); got.Remaining != 100 {
		t.Errorf("more is left than there is: %+v", got)
	}
}

// TestForwardAllocs: that others may wait behind a check costs one that nobody waits behind nothing.
func TestForwardAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("pools drop things under the race detector")
	}
	a := paired(t)
	for _, a.combine.beside = range []int32{0, usualBeside} {
		forwardAllocs(t, a)
	}
}

func forwardAllocs(t *testing.T, a *Node) {
	b := &check.Batch{Requests: []check.Request{request(a, "b", 1, hourly(1<<40))}, Answers: make([]check.Answer, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	a.Decide(ctx, b)
	if n := testing.AllocsPerRun(1000, func() { a.Decide(ctx, b) }); n != 0 {
		t.Errorf("%v allocations a forwarded check, want none; %d may go beside it", n, a.combine.beside)
	}
}

// paired returns node a of two, between which there is no network.
func paired(t *testing.T) *Node {
	w, peers := newWorld(t), direct{}
	for _, name := range []string{"a", "b"} {
		peers[name+":7462"] = w.add(name, func(c *Config) { c.Peers = peers })
	}
	w.agree(1)
	return w.nodes["a"]
}
