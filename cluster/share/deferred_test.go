package share

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/rules"
)

// TestDeferred: charges come back in the order in which they were made, and the oldest is
// forgotten when there are too many.
func TestDeferred(t *testing.T) {
	var o Deferred
	o.init(3, nil)
	k := func(i int) bucket.Key { return bucket.Key{Lo: uint64(i)} }
	add := func(i int, cost int64) { o.put(Charge{Key: k(i), Cost: cost}) }
	for i := range 5 {
		add(i, 1)
	}
	add(2, 5)
	o.withdraw(k(3), 1)
	o.withdraw(k(9), 1)
	want := "[{{0 2} <nil> 6 false 0 0} {{0 3} <nil> 0 false 0 0}]"
	if got := fmt.Sprint(o.take(2)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	add(2, 1)
	want = "[{{0 4} <nil> 1 false 0 0} {{0 2} <nil> 1 false 0 0}]"
	if got := fmt.Sprint(o.take(9)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if keys, forgotten := o.Count(); keys != 0 || forgotten != 2 {
		t.Errorf("%d left, %d forgotten", keys, forgotten)
	}
	add(5, math.MaxInt64)
	add(5, math.MaxInt64)
	if got := o.take(1)[0].Cost; got != math.MaxInt64 {
		t.Errorf("two charges of the most that there is add up to %d", got)
	}
}

// TestChargedInLaterWindow: the acknowledgement of a charge does not make room for, nor forget, what was admitted since in the next window.
func TestChargedInLaterWindow(t *testing.T) {
	s, err := New(Config{Counters: table(t), Shards: 1, MaxKeys: 10})
	if err != nil {
		t.Fatal(err)
	}
	s.When.Start(0, 0, 0)
	limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: time.Minute})
	at, r := Place{Voters: 3}, bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}
	admit := func(now time.Duration, times int) (admitted int) {
		for range times {
			if _, charged := s.Answer(int64(now), at, &r, rules.UnknownLimit, nil); charged {
				admitted++
			}
		}
		return admitted
	}
	admit(59*time.Minute, 8)
	list := s.Take(int64(59*time.Minute), 3, 10)
	admit(time.Hour, 3)
	s.Ended(int64(time.Hour), list[0], 3, Charged)
	s.Charges.Answered()
	s.Forget()
	if n := admit(time.Hour, 20); n != 7 {
		t.Errorf("%d admitted in a window in which 3 of 10 were, want 7", n)
	}
	if list := s.Take(int64(time.Hour), 3, 10); len(list) != 1 || list[0].Due != 10 {
		t.Errorf("%+v are to be charged, want 10", list)
	}
}

// TestChargedAmongMoreVoters: what was admitted is charged also when there are more voters by then than the limit admits; the same once it was on
// disk.
func TestChargedAmongMoreVoters(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.SlidingWindow} {
		s, err := New(Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		if err != nil {
			t.Fatal(err)
		}
		s.When.Start(0, 0, 0)
		limits := limitsOf(bucket.Limit{Algorithm: algorithm, Count: 6, Period: time.Hour})
		r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}
		if _, charged := s.Answer(1, Place{Voters: 3}, &r, rules.UnknownLimit, nil); !charged {
			t.Fatalf("%s: nothing admitted by one of three", algorithm)
		}
		saved, keys, err := s.Table(2, 7, 1)
		if err != nil || keys != 1 {
			t.Fatalf("%s: charges of %d keys are saved, %v; want 1", algorithm, keys, err)
		}
		again, err := New(Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		if err != nil {
			t.Fatal(err)
		}
		again.Restore(FromTable(2, saved, 0), 7)
		for name, s := range map[string]*Shares{"": s, ", from disk": again} {
			list := s.Take(3, 7, 10)
			if len(list) != 1 || list[0].Due != 1 {
				t.Fatalf("%s%s: %+v is to be charged, want 1", algorithm, name, list)
			}
			s.Ended(4, list[0], 7, Charged)
			if n := s.counts(4, list[0], 3); n != 0 {
				t.Errorf("%s%s: %d count against shares though the owner has them, want 0", algorithm, name, n)
			}
		}
	}
}
