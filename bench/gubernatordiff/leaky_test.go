package gubernatordiff

import (
	"testing"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// leakyBuckets have tokens that come back at whole multiples of the time that passes, so that no fraction is
// ever there to be dropped. Limit and duration change between two checks at one moment, of which the first charged
// something.
func leakyBuckets(t *testing.T, s *sequence) {
	const tick = 1024 // ms: a multiple of every rate
	q := s.q
	q.Algorithm, q.Burst = gubernatorv1.Algorithm_LEAKY_BUCKET, s.between(1, 20)
	used := map[int64]bool{}
	rate := s.changeRate(used)
	var forgotten int64 // when gubernator forgets the bucket
	for range steps {
		wait := tick * oneOf(s, 0, 0, 1, s.between(0, 3), s.between(0, 12))
		if s.open {
			// That is a duration after the last check that was no read, full or not.
			late := s.ms+wait > forgotten
			if late && s.left+wait/rate < q.Burst {
				wait, late = 0, false
			}
			s.left, s.open = min(q.Burst, s.left+wait/rate), !late
		}
		s.ms += wait
		q.Behavior = s.harmless()
		switch {
		case !s.open:
			s.left = q.Burst
			q.Hits = s.between(0, q.Burst)
		case s.left > 0 && s.ms == s.charged && s.one(3):
			before := rate
			rate = s.changeRate(used)
			q.Hits = s.between(1, s.left+3) // a read would not change sluice's
			if rate > before {
				q.Hits = min(q.Hits, s.left) // nor would a denied check make it slower
			}
		default:
			s.chooseLeakyHits()
		}
		hits := q.Hits
		_, ours := s.exchangeLeaky(t)
		want := s.ms
		switch missing := q.Burst - ours.GetRemaining(); {
		case ours.GetStatus() == over && hits > q.Burst:
			want += missing * rate
		case ours.GetStatus() == over:
			want += (max(1, hits) - ours.GetRemaining()) * rate
		case missing > 0:
			want += rate
		}
		if ours.GetResetTime() != want {
			s.fail(t, "sluice's reset time is not that of the next token, or of enough")
		}
		if hits != 0 || !s.open {
			forgotten = s.ms + q.Duration
		}
		s.open, s.left = true, ours.GetRemaining()
	}
}

// changeRate draws a limit and a duration, and returns the time (ms) in which a token comes back. A limit that
// was in force before would take up what it had then.
func (s *sequence) changeRate(used map[int64]bool) int64 {
	rate := oneOf(s, int64(1), 64, 128, 256, 512, 1024)
	for s.q.Limit = s.between(1, 1000); used[s.q.Limit]; s.q.Limit++ {
	}
	used[s.q.Limit] = true
	s.q.Duration = s.q.Limit * rate
	return rate
}

// chooseLeakyHits draws hits of every sort.
func (s *sequence) chooseLeakyHits() {
	q := s.q
	switch {
	case s.one(12):
		q.Behavior |= gubernatorv1.Behavior_RESET_REMAINING
		q.Hits = s.between(0, q.Burst+2)
	case s.one(4):
		q.Hits = 0
	case s.one(4) && s.left < q.Burst:
		q.Hits = -s.between(1, q.Burst-s.left)
	default:
		q.Hits = s.between(1, s.left+3)
		if s.one(4) {
			q.Behavior |= gubernatorv1.Behavior_DRAIN_OVER_LIMIT
		}
	}
}

// exchangeLeaky is exchange where gubernator remembers no denial.
func (s *sequence) exchangeLeaky(t *testing.T) (theirs, ours *gubernatorv1.RateLimitResp) {
	t.Helper()
	s.denied = false
	return s.exchange(t)
}

// leakyFractions are asked at any time, so that parts of tokens flow. Gubernator is up to a token behind, as it
// adds what has flowed only when that is a whole token by itself. The bucket is never full after the first
// hit and never taken to its end, where gubernator's fractions differ by more.
func leakyFractions(t *testing.T, s *sequence) {
	q := s.q
	rate := oneOf(s, int64(64), 128, 256, 512)
	q.Algorithm, q.Limit = gubernatorv1.Algorithm_LEAKY_BUCKET, 40
	q.Duration, q.Hits = q.Limit*rate, 20
	for range steps {
		theirs, ours := s.record(t)
		if behind := ours.GetRemaining() - theirs.GetRemaining(); behind < 0 || behind > 1 || ours.GetStatus() != theirs.GetStatus() {
			s.fail(t, "the answers differ")
		}
		if d := ours.GetResetTime() - s.ms; ours.GetStatus() == under && (d < 1 || d > rate) {
			s.fail(t, "the next token takes longer than any")
		}
		left := ours.GetRemaining()
		wait := max(0, min(q.Limit-left-4, 6)) // tokens; some stay missing
		s.ms += s.between(0, wait*rate)
		switch {
		case s.one(4) || left < 4:
			q.Hits = 0
		case s.one(5) && left < 30:
			q.Hits = -1
		case s.one(6):
			q.Hits = left + wait + 2
		default:
			q.Hits = s.between(1, left-2)
		}
	}
}

// leakyCalendar leaks over a unit of the calendar, within one of them.
func leakyCalendar(t *testing.T, s *sequence) {
	q := s.q
	q.Algorithm, q.Behavior = gubernatorv1.Algorithm_LEAKY_BUCKET, gubernatorv1.Behavior_DURATION_IS_GREGORIAN
	var rate int64
	q.Duration = oneOf(s, int64(0), 1, 2)
	length := units[q.Duration]
	q.Limit = oneOf(s, int64(12), 24)
	rate = length / q.Limit
	s.ms += length - s.ms%length // so that it begins with a unit
	end := s.ms + length
	s.left = q.Limit
	for range steps {
		q.Hits = s.between(-min(2, q.Limit-s.left), s.left+2)
		if s.open || q.Hits <= q.Limit {
			_, ours := s.exchangeLeaky(t)
			s.open, s.left = true, ours.GetRemaining()
		}
		next := s.ms + rate*oneOf(s, int64(0), 0, 1, 2)
		if next >= end {
			return
		}
		s.left = min(q.Limit, s.left+(next-s.ms)/rate)
		s.ms = next
	}
}
