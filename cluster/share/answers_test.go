package share

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// TestAnswersKeepNoLimits: limits that came with a check go when nothing else refers to them.
func TestAnswersKeepNoLimits(t *testing.T) {
	var a Answers
	limits := hourly(100)
	a.Note(1, &bucket.Request{Limits: limits}, &bucket.Decision{Allowed: true, Remaining: 4, ResetAfter: time.Hour})
	kept := weak.Make(limits)
	runtime.GC()
	if kept.Value() != nil {
		t.Error("they are still there")
	}
	left := make([]int64, 1)
	if a.left(2, bucket.Key{}, hourly(100), left); left[0] != 4 {
		t.Errorf("%d are left to limits that are equal, want 4", left[0])
	}
	if a.left(2, bucket.Key{}, hourly(101), left); left[0] != unknown {
		t.Errorf("%d are left to others", left[0])
	}
}

// TestAnswers: what is remembered of a key is what its owner has said last, as long as it says something.
func TestAnswers(t *testing.T) {
	const hour = int64(time.Hour)
	several := limitsOf(
		bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Minute}, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 500, Period: time.Hour})
	one, flow := hourly(100), limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 100, Period: time.Hour})
	k := bucket.Key{Hi: 1, Lo: 2}
	said := func(index uint8, left int64, allowed bool, reset time.Duration) bucket.Decision {
		return bucket.Decision{Index: index, Limit: 100, Remaining: left, Allowed: allowed, ResetAfter: reset}
	}
	type answer struct {
		asked int64
		d     bucket.Decision
	}
	for _, c := range []struct {
		name    string
		limits  *bucket.Limits
		answers []answer
		at      int64
		want    []int64
		least   int64
	}{
		{"nothing", one, nil, hour, []int64{unknown}, unknown},
		{"an answer", one, []answer{{hour, said(0, 40, true, time.Hour)}}, hour + 5, []int64{40}, 40},
		{"a later one", one, []answer{{hour, said(0, 40, true, time.Hour)}, {hour + 1, said(0, 39, true, time.Hour)}}, hour + 5, []int64{39}, 39},
		{"an earlier one that comes late", one, []answer{{hour + 1, said(0, 39, true, time.Hour)}, {hour, said(0, 40, true, time.Hour)}}, hour + 5, []int64{39}, 39},
		{"an earlier one that was decided later", one, []answer{{hour + 1, said(0, 40, true, time.Hour)}, {hour, said(0, 39, true, time.Hour)}}, hour + 5, []int64{39}, 39},
		{"at the end of the window", one, []answer{{hour, said(0, 40, true, time.Minute)}}, hour + int64(time.Minute) - 1, []int64{40}, 40},
		{"in the next window", one, []answer{{hour, said(0, 40, true, time.Minute)}}, hour + int64(time.Minute), []int64{unknown}, unknown},
		{"a bucket", flow, []answer{{hour, said(0, 40, true, time.Minute)}}, 2*hour - 1, []int64{40}, 40},
		{"a bucket long ago", flow, []answer{{hour, said(0, 40, true, time.Minute)}}, 2 * hour, []int64{unknown}, unknown},
		{"one of two limits, admitted", several, []answer{{hour, said(0, 4, true, time.Minute)}}, hour, []int64{4, unknown}, 4},
		{"one of two limits, denied", several, []answer{{hour, said(0, 0, false, time.Minute)}}, hour, []int64{0, unknown}, unknown},
		{"one after the other", several, []answer{{hour, said(0, 4, true, time.Minute)}, {hour + 1, said(1, 3, true, time.Hour)}}, hour + 1, []int64{4, 3}, 3},
	} {
		var a Answers
		for _, x := range c.answers {
			a.Note(x.asked, &bucket.Request{Key: k, Limits: c.limits}, &x.d)
		}
		if fresh := a.fresh(hour, k, c.limits); fresh != (c.answers != nil) {
			t.Errorf("%s: fresh=%v before", c.name, fresh)
		}
		left := make([]int64, c.limits.Len())
		least := a.left(c.at, k, c.limits, left)
		for i := range left {
			if left[i] != c.want[i] || least != c.least {
				t.Errorf("%s: %v left, at least %d; want %v, %d", c.name, left, least, c.want, c.least)
			}
		}
		if a.fresh(hour, k, c.limits) {
			t.Errorf("%s: fresh after", c.name)
		}
		if other := hourly(99); a.left(c.at, k, other, left[:1]) != unknown || left[0] != unknown {
			t.Errorf("%s: %d left of another limit", c.name, left[0])
		}
	}
}

// TestAnswersBounded: of a set that is full the key goes that is in it for longest.
func TestAnswersBounded(t *testing.T) {
	var a Answers
	limits := hourly(10)
	key := func(i int) bucket.Key { return bucket.Key{Hi: uint64(i) + 1, Lo: 7} } // all of one set
	for i := range answerWays + 2 {
		a.Note(int64(i+1), &bucket.Request{Key: key(i), Limits: limits}, &bucket.Decision{Remaining: int64(i), ResetAfter: time.Hour})
	}
	for i := range answerWays + 2 {
		var left [1]int64
		a.left(10, key(i), limits, left[:])
		want := int64(i)
		if i < 2 {
			want = unknown
		}
		if left[0] != want {
			t.Errorf("key %d: %d left, want %d", i, left[0], want)
		}
	}
}

func limitsOf(list ...bucket.Limit) *bucket.Limits {
	limits, err := bucket.NewLimits(list...)
	if err != nil {
		panic(err)
	}
	return limits
}

func hourly(count int64) *bucket.Limits {
	return limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: count, Period: time.Hour})
}

// TestWindowOfAnOwnerAhead: an owner whose clock is 30 ms ahead answers of its next window 10 ms before that begins by this node's clock. Nothing
// is given of it until then, and from then on no more than the share of what was left.
func TestWindowOfAnOwnerAhead(t *testing.T) {
	const hour, ms = int64(time.Hour), int64(time.Millisecond)
	for _, replica := range []bool{false, true} {
		counters := table(t)
		s := started(t, Config{Counters: counters, Shards: 1, MaxKeys: 10})
		r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(100), Cost: 1}
		now := 2*hour - 10*ms
		if replica {
			// As it comes with a transfer: with the time that is left.
			owners := table(t)
			owners.Leave(now+30*ms, r.Key, r.Limits, []int64{6})
			var im bucket.Image
			owners.Export(now+30*ms, 0, []bucket.KeyAt{{Key: r.Key}}, &im)
			if err := counters.Import(now, 0, &im, im.Data, 1, false); err != nil {
				t.Fatal(err)
			}
		} else {
			s.Answers.Note(now, &r, &bucket.Decision{Allowed: true, Limit: 100, Remaining: 6, ResetAfter: time.Hour - 20*time.Millisecond})
		}
		at := Place{Parts: Parts{Voters: 3}, Quorum: replica, Owns: replica}
		for ; now < 2*hour; now += ms {
			if d, _ := s.Answer(now, at, &r, rules.UnknownLimit, nil); d.Allowed {
				t.Fatalf("replica %v: admitted %v before the window begins here", replica, time.Duration(2*hour-now))
			}
		}
		n := 0
		for range 10 {
			if d, _ := s.Answer(now, at, &r, rules.UnknownLimit, nil); d.Allowed {
				n++
			}
		}
		if n != 2 {
			t.Errorf("replica %v: %d admitted of 6 left among 3, want 2", replica, n)
		}
	}
}

// TestWindowOfAnOwnerEndsFirst: an owner's window ends 30 ms before it does by this node's clock. Nothing is given between.
func TestWindowOfAnOwnerEndsFirst(t *testing.T) {
	const hour, ms = int64(time.Hour), int64(time.Millisecond)
	var a Answers
	limits := hourly(100)
	a.Note(hour, &bucket.Request{Limits: limits}, &bucket.Decision{Allowed: true, Remaining: 6, ResetAfter: time.Hour - 30*time.Millisecond})
	for at, want := range map[int64]int64{2*hour - 31*ms: 6, 2*hour - 30*ms: 0, 2*hour - 1: 0, 2 * hour: unknown} {
		left := make([]int64, 1)
		if a.left(at, bucket.Key{}, limits, left); left[0] != want {
			t.Errorf("%v before the end: %d left, want %d", time.Duration(2*hour-at), left[0], want)
		}
	}
}
