package gubernatordiff

import (
	"fmt"
	"math/rand/v2"
	"testing"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

const (
	under = gubernatorv1.Status_UNDER_LIMIT
	over  = gubernatorv1.Status_OVER_LIMIT

	sequences = 400
	steps     = 60
)

// sequence is a random conversation about one counter. It follows what gubernator answers, so that it
// can stay clear of the differences that are meant; those are in differences_test.go.
type sequence struct {
	*pair
	rnd *rand.Rand
	q   *gubernatorv1.RateLimitReq
	log []string

	// open: gubernator has a counter; left is what it said remains, began and end are when its window
	// began and ends.
	open             bool
	left, began, end int64
	// charged is when sluice last charged or refunded something, kept the limit of the last check that was no read.
	charged, kept int64
	// denied: it has denied a check for having nothing left, and remembers that until the window ends.
	denied bool
}

// oneOf returns one of the values.
func oneOf[T any](s *sequence, values ...T) T { return values[s.rnd.IntN(len(values))] }

// one reports true once in n times.
func (s *sequence) one(n int) bool { return s.rnd.IntN(n) == 0 }

// between returns a number from a to b.
func (s *sequence) between(a, b int64) int64 { return a + s.rnd.Int64N(b-a+1) }

// harmless are behaviors that change nothing on one node.
func (s *sequence) harmless() gubernatorv1.Behavior {
	return gubernatorv1.Behavior(oneOf(s, 0, 0, 1, 2, 16, 18, 19))
}

// exchange asks both, compares all but what depends on the algorithm, and follows gubernator. The status
// is compared where both mean the same by it: of what was to be spent, unless gubernator still reports an earlier
// denial; else sluice says whether anything remains.
func (s *sequence) exchange(t *testing.T) (theirs, ours *gubernatorv1.RateLimitResp) {
	t.Helper()
	q := s.q
	theirs, ours = s.record(t)
	if theirs.GetError() != "" || ours.GetError() != "" || ours.GetLimit() != theirs.GetLimit() || ours.GetRemaining() != theirs.GetRemaining() {
		s.fail(t, "the answers differ")
	}
	reset := q.GetBehavior()&gubernatorv1.Behavior_RESET_REMAINING != 0
	want := under
	switch {
	case q.GetHits() <= 0 && !reset:
		if ours.GetRemaining() == 0 {
			want = over
		}
	case s.denied && !reset: // then gubernator's status says nothing: what was left before decides
		if q.GetHits() > s.left {
			want = over
		}
	default:
		want = theirs.GetStatus()
	}
	if ours.GetStatus() != want {
		s.fail(t, "sluice's status is not "+want.String())
	}
	if q.GetHits() != 0 {
		s.kept = q.GetLimit()
	}
	if q.GetHits() < 0 || q.GetHits() > 0 && (ours.GetStatus() == under || q.GetBehavior()&gubernatorv1.Behavior_DRAIN_OVER_LIMIT != 0) {
		s.charged = s.ms
	}
	return theirs, ours
}

// record asks both and keeps what they say for a fault's account.
func (s *sequence) record(t *testing.T) (theirs, ours *gubernatorv1.RateLimitResp) {
	t.Helper()
	theirs, ours = s.ask(t, s.q)
	s.log = append(s.log, fmt.Sprintf("%d: %v\n\tgubernator %v\n\tsluice     %v", s.ms, s.q, theirs, ours))
	return theirs, ours
}

func (s *sequence) fail(t *testing.T, why string) {
	t.Helper()
	for _, line := range s.log {
		t.Log(line)
	}
	t.Fatal(why)
}

// play runs sequences of one kind, each with a seed that its name tells.
func play(t *testing.T, p *pair, kind func(*testing.T, *sequence)) {
	for seed := range uint64(sequences) {
		s := &sequence{pair: p, rnd: rand.New(rand.NewPCG(seed, 1)), q: &gubernatorv1.RateLimitReq{Name: "diff", UniqueKey: p.key()}}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { kind(t, s) }) {
			return
		}
	}
}

// TestAlike: the same questions get the same answers, in sequences of every kind.
func TestAlike(t *testing.T) {
	p := newPair(t)
	for _, c := range []struct {
		name string
		kind func(*testing.T, *sequence)
	}{
		{"windows", windows},
		{"leaky buckets", leakyBuckets},
		{"leaky buckets in parts of tokens", leakyFractions},
		{"leaky buckets of the calendar", leakyCalendar},
		{"windows of the calendar", calendarWindows}, // which takes the clock some decades on
	} {
		t.Run(c.name, func(t *testing.T) { play(t, p, c.kind) })
	}
}

// windows are token buckets. The first check of a window is one that opens it in sluice too, and nothing is
// asked in the millisecond in which one ends.
func windows(t *testing.T, s *sequence) {
	q := s.q
	q.Limit, q.Duration, q.Burst = s.between(1, 20), s.between(10, 100_000), s.between(0, 3)
	used := map[int64]bool{q.Duration: true}
	for range steps {
		s.ms += oneOf(s, 0, 0, 1, s.between(0, q.Duration/4+1), s.between(0, q.Duration+5))
		if s.open && s.ms == s.end {
			s.ms++
		}
		if s.open && s.ms > s.end {
			s.open, s.denied = false, false
		}
		q.Behavior = s.harmless()
		renewed := false
		if !s.open {
			s.began = s.ms
			q.Hits = s.between(1, q.Limit)
		} else {
			s.changeLimit()
			before := q.Duration
			renewed = s.changeDuration(used)
			s.chooseHits(renewed)
			switch {
			case q.Duration != before && q.Hits == 0:
				q.Hits = 1 // sluice changes nothing where nothing is charged
			case q.Duration > before && !renewed:
				q.Hits = min(q.Hits, s.left) // nor does a denied check make a window longer
			}
		}
		fresh := !s.open
		theirs, ours := s.exchange(t)
		if ours.GetResetTime() != theirs.GetResetTime() {
			s.fail(t, "the windows end at different times")
		}
		if q.Behavior&gubernatorv1.Behavior_RESET_REMAINING != 0 {
			s.open, s.denied = false, false
			continue
		}
		if renewed {
			s.began = s.ms
		}
		s.denied = s.denied || !fresh && q.Hits > 0 && s.left == 0
		s.open, s.left, s.end = true, theirs.GetRemaining(), theirs.GetResetTime()
	}
}

// changeLimit changes the limit now and then, but not below what is spent. It keeps s.left.
func (s *sequence) changeLimit() {
	if s.one(6) {
		spent := s.q.Limit - s.left
		s.q.Limit = s.between(max(1, spent), spent+20)
		s.left = s.q.Limit - spent
	}
}

// changeDuration changes the duration now and then, to one that was never used, and reports whether that renews
// the window: then something must have been left, because gubernator forgets to look again. A longer one needs that too.
// Sluice bounds what the changed limit has left by what former ones have, so the limit is not raised with the duration, and
// nothing was charged after the end of a window that is renewed.
func (s *sequence) changeDuration(used map[int64]bool) (renewed bool) {
	if !s.one(6) {
		return false
	}
	d := s.between(10, 100_000)
	renewed = s.began+d <= s.ms
	if used[d] || (renewed || d > s.q.Duration) && s.left == 0 || renewed && s.began+d <= s.charged || s.q.Limit > s.kept {
		return false
	}
	used[d] = true
	s.q.Duration = d
	if renewed {
		s.left = s.q.Limit
	}
	return renewed
}

// chooseHits draws hits of every sort for an open window. Some of what is spent stays spent: sluice
// closes a window in which nothing is.
func (s *sequence) chooseHits(renewed bool) {
	q, spent := s.q, s.q.Limit-s.left
	switch {
	case renewed:
		q.Hits = s.between(1, q.Limit)
	case s.one(12):
		q.Behavior |= gubernatorv1.Behavior_RESET_REMAINING
		q.Hits = s.between(-2, 5)
	case s.one(4):
		q.Hits = 0
	case s.one(4) && spent > 1:
		q.Hits = -s.between(1, spent-1)
	default:
		q.Hits = s.between(1, s.left+3)
		if s.one(4) {
			q.Behavior |= gubernatorv1.Behavior_DRAIN_OVER_LIMIT
		}
	}
}

// units are the lengths, in milliseconds, of the units of the calendar that gubernator knows, the
// longest that occurs.
var units = map[int64]int64{0: 60_000, 1: 3_600_000, 2: 86_400_000, 4: 31 * 86_400_000, 5: 366 * 86_400_000}

// calendarWindows are token buckets of a unit of the calendar. Gubernator says the last millisecond of
// the unit, sluice the first of the next.
func calendarWindows(t *testing.T, s *sequence) {
	q := s.q
	q.Limit, q.Duration = s.between(1, 20), oneOf(s, int64(0), 1, 2, 4, 5)
	for range steps {
		s.ms += s.between(0, units[q.Duration]/oneOf(s, int64(20), 200, 1000))
		if s.open && s.ms > s.end {
			s.open, s.denied = false, false
		}
		q.Behavior = s.harmless()
		fresh := !s.open
		if fresh {
			q.Hits = s.between(1, q.Limit)
		} else {
			s.changeLimit()
			s.chooseHits(false)
		}
		q.Behavior |= gubernatorv1.Behavior_DURATION_IS_GREGORIAN
		theirs, ours := s.exchange(t)
		if q.Behavior&gubernatorv1.Behavior_RESET_REMAINING != 0 {
			s.open, s.denied = false, false
			continue
		}
		if ours.GetResetTime() != theirs.GetResetTime()+1 {
			s.fail(t, "the windows end at different times")
		}
		s.denied = s.denied || !fresh && q.Hits > 0 && s.left == 0
		s.open, s.left, s.end = true, theirs.GetRemaining(), theirs.GetResetTime()
	}
}
