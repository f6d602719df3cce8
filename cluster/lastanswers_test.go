package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// TestLastAnswers: what is remembered of a key is what its owner has said last, as long as it says something.
func TestLastAnswers(t *testing.T) {
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
		{"at the end of the window", one, []answer{{hour, said(0, 40, true, time.Minute)}}, hour + int64(time.Minute) - 1, []int64{40}, 40},
		{"in the next window", one, []answer{{hour, said(0, 40, true, time.Minute)}}, hour + int64(time.Minute), []int64{unknown}, unknown},
		{"a bucket", flow, []answer{{hour, said(0, 40, true, time.Minute)}}, 2*hour - 1, []int64{40}, 40},
		{"a bucket long ago", flow, []answer{{hour, said(0, 40, true, time.Minute)}}, 2 * hour, []int64{unknown}, unknown},
		{"one of two limits, admitted", several, []answer{{hour, said(0, 4, true, time.Minute)}}, hour, []int64{4, unknown}, 4},
		{"one of two limits, denied", several, []answer{{hour, said(0, 0, false, time.Minute)}}, hour, []int64{0, unknown}, unknown},
		{"one after the other", several, []answer{{hour, said(0, 4, true, time.Minute)}, {hour + 1, said(1, 3, true, time.Hour)}}, hour + 1, []int64{4, 3}, 3},
	} {
		var a lastAnswers
		for _, x := range c.answers {
			a.note(x.asked, &bucket.Request{Key: k, Limits: c.limits}, &x.d)
		}
		if fresh := a.fresh(k, c.limits); fresh != (c.answers != nil) {
			t.Errorf("%s: fresh=%v before", c.name, fresh)
		}
		left := make([]int64, c.limits.Len())
		least := a.left(c.at, k, c.limits, left)
		for i := range left {
			if left[i] != c.want[i] || least != c.least {
				t.Errorf("%s: %v left, at least %d; want %v, %d", c.name, left, least, c.want, c.least)
			}
		}
		if a.fresh(k, c.limits) {
			t.Errorf("%s: fresh after", c.name)
		}
		if other := hourly(99); a.left(c.at, k, other, left[:1]) != unknown || left[0] != unknown {
			t.Errorf("%s: %d left of another limit", c.name, left[0])
		}
	}
}

// TestLastAnswersBounded: of a set that is full the key goes that is in it for longest.
func TestLastAnswersBounded(t *testing.T) {
	var a lastAnswers
	limits := hourly(10)
	key := func(i int) bucket.Key { return bucket.Key{Hi: uint64(i) + 1, Lo: 7} } // all of one set
	for i := range answerWays + 2 {
		a.note(int64(i+1), &bucket.Request{Key: key(i), Limits: limits}, &bucket.Decision{Remaining: int64(i), ResetAfter: time.Hour})
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

// BenchmarkNoteRound is what remembering the answers costs a forwarded check, of 65,536 keys in turn, in rounds of one and of a
// thousand. The rest of a round is at hand, as it is when answers come; without=true is the bench itself.
func BenchmarkNoteRound(b *testing.B) {
	limits := hourly(1000)
	keys := make([]bucket.Key, 1<<16)
	for i := range keys {
		keys[i] = bucket.Key{Hi: rand.Uint64(), Lo: rand.Uint64()}
	}
	for _, size := range []int{1, 1000} {
		for _, without := range []bool{true, false} {
			b.Run(fmt.Sprintf("checks=%d/without=%v", size, without), func(b *testing.B) {
				var a lastAnswers
				f := &forwarding{batch: &check.Batch{}}
				for j := range size {
					f.batch.Requests = append(f.batch.Requests, check.Request{Request: bucket.Request{Limits: limits}})
					f.batch.Answers = append(f.batch.Answers, check.Answer{Source: check.Forwarded, Decision: bucket.Decision{Remaining: 5}})
					f.pending = append(f.pending, pending{index: j, away: true, done: true})
				}
				b.ReportAllocs()
				next := 0
				for b.Loop() {
					f.sent++
					for j := range f.batch.Requests {
						f.batch.Requests[j].Key = keys[next%len(keys)]
						next++
					}
					if !without {
						a.noteRound(f)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/check")
			})
		}
	}
}
