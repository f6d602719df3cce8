package share

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
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
	want := "[{{0 2} <nil> 6 false 0 0 0 0} {{0 3} <nil> 0 false 0 0 0 0}]"
	if got := fmt.Sprint(o.take(2)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	add(2, 1)
	want = "[{{0 4} <nil> 1 false 0 0 0 0} {{0 2} <nil> 1 false 0 0 0 0}]"
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
	s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
	limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: time.Minute})
	at, r := Place{Parts: Parts{Voters: 3}}, bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}
	admit := func(now time.Duration, times int) (admitted int) {
		for range times {
			if _, charged := s.Answer(int64(now), at, &r, rules.UnknownLimit, nil); charged {
				admitted++
			}
		}
		return admitted
	}
	admit(59*time.Minute, 8)
	list := s.Take(int64(59*time.Minute), Parts{Voters: 3}, 10)
	admit(time.Hour, 3)
	s.Ended(int64(time.Hour), list[0], Parts{Voters: 3}, Charged)
	s.Charges.Answered()
	s.Forget()
	if n := admit(time.Hour, 20); n != 7 {
		t.Errorf("%d admitted in a window in which 3 of 10 were, want 7", n)
	}
	if list := s.Take(int64(time.Hour), Parts{Voters: 3}, 10); len(list) != 1 || list[0].Due != 10 {
		t.Errorf("%+v are to be charged, want 10", list)
	}
}

// TestChargedAmongMoreVoters: what was admitted is charged also when there are more voters by then than the limit admits; the same once it was on
// disk.
func TestChargedAmongMoreVoters(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.SlidingWindow} {
		s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		limits := limitsOf(bucket.Limit{Algorithm: algorithm, Count: 6, Period: time.Hour})
		r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}
		if _, charged := s.Answer(1, Place{Parts: Parts{Voters: 3}}, &r, rules.UnknownLimit, nil); !charged {
			t.Fatalf("%s: nothing admitted by one of three", algorithm)
		}
		saved, keys, err := s.Table(2, Parts{Voters: 7}, 1)
		if err != nil || keys != 1 {
			t.Fatalf("%s: charges of %d keys are saved, %v; want 1", algorithm, keys, err)
		}
		again := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		again.Restore(FromTable(2, saved, 0), Parts{Voters: 7})
		for name, s := range map[string]*Shares{"": s, ", from disk": again} {
			list := s.Take(3, Parts{Voters: 7}, 10)
			if len(list) != 1 || list[0].Due != 1 {
				t.Fatalf("%s%s: %+v is to be charged, want 1", algorithm, name, list)
			}
			s.Ended(4, list[0], Parts{Voters: 7}, Charged)
			if n := s.counts(4, list[0], Parts{Voters: 3}); n != 0 {
				t.Errorf("%s%s: %d count against shares though the owner has them, want 0", algorithm, name, n)
			}
		}
	}
}

// TestLostAnswerWithOnce: a charge whose answer was lost is sent again if it is named, by that name, also when it cannot be sent for a while.
// It counts as admitted meanwhile, and as charged when its name may be forgotten.
func TestLostAnswerWithOnce(t *testing.T) {
	s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
	parts := Parts{Voters: 3}
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(30), Cost: 1}
	take := func(now time.Duration) Charge {
		t.Helper()
		list := s.Take(int64(now), parts, 10)
		s.Charges.Answered()
		if len(list) != 1 {
			t.Fatalf("%+v are to be charged", list)
		}
		return list[0]
	}
	s.Answer(1, Place{Parts: parts}, &r, rules.UnknownLimit, nil)
	c := take(1)
	c.Once = 7
	s.Ended(1, c, parts, NotCharged)
	if c = take(2); c.Once != 0 {
		t.Errorf("%+v: certainly not charged, so the name may be of a larger charge", c)
	}
	c.Once = 8
	s.Ended(2, c, parts, AnswerLost)
	s.Answer(3, Place{Parts: parts}, &r, rules.UnknownLimit, nil)
	list := s.Take(3, parts, 10)
	s.Charges.Answered()
	if len(list) != 2 || list[0].Once != 8 || list[0].Due != 1 || list[1].Once != 0 {
		t.Fatalf("%+v", list)
	}
	s.Ended(3, list[0], parts, NotCharged)
	s.Ended(3, list[1], parts, Charged)
	if c = take(4); c.Once != 8 || s.counts(4, c, parts) != 1 {
		t.Errorf("%+v, %d counts", c, s.counts(4, c, parts))
	}
	s.Ended(int64(bucket.OnceFor), c, parts, AnswerLost)
	if keys, _ := s.Charges.Count(); keys != 0 {
		t.Error("sent again after the owner may have forgotten it")
	}
}

// TestLostAnswerIsSaved: a charge is on disk while it is sent, and one that is to be sent again from when its answer is
// lost, together with a later one of its key.
func TestLostAnswerIsSaved(t *testing.T) {
	changes := 0
	s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10, Changed: func() { changes++ }})
	parts, at := Parts{Voters: 3}, Place{Parts: Parts{Voters: 3}}
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(30), Cost: 2}
	s.Answer(1, at, &r, rules.UnknownLimit, nil)
	c := s.Take(1, parts, 10)[0]
	c.Once = 7
	if _, keys, err := s.Table(1, parts, 1); err != nil || keys != 1 {
		t.Errorf("%d keys are saved while their charges are sent: %v", keys, err)
	}
	before := changes
	if s.Charges.Answered(); changes == before {
		t.Error("nobody is told that the charge is sent no more")
	}
	before = changes
	s.Ended(1, c, parts, AnswerLost)
	for _, want := range []int64{2, 4} {
		saved, keys, err := s.Table(2, parts, 1)
		if list := FromTable(2, saved, 0); err != nil || keys != 1 || len(list) != 1 || list[0].Cost != want || changes == before {
			t.Errorf("%d keys are saved, %+v, after %d changes, %v; want a cost of %d", keys, list, changes-before, err, want)
		}
		s.Answer(2, at, &r, rules.UnknownLimit, nil)
	}
}

// TestAdmittedIsNotCut: what a node has admitted as one of three is charged in full when it is one of seven, though that is more than its
// share is then.
func TestAdmittedIsNotCut(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.LeakyBucket, bucket.SlidingCounter} {
		s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		limits := limitsOf(bucket.Limit{Algorithm: algorithm, Count: 60, Period: 1000 * time.Hour})
		r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 20}
		if _, charged := s.Answer(1, Place{Parts: Parts{Voters: 3}}, &r, rules.UnknownLimit, nil); !charged {
			t.Fatalf("%s: a third was not admitted", algorithm)
		}
		if list := s.Take(2, Parts{Voters: 7}, 10); len(list) != 1 || list[0].Due != 20 {
			t.Errorf("%s: %+v is to be charged, want 20", algorithm, list)
		}
		r.Cost = 1
		if _, charged := s.Answer(3, Place{Parts: Parts{Voters: 7}}, &r, rules.UnknownLimit, nil); charged {
			t.Errorf("%s: admitted above the share", algorithm)
		}
	}
}
