package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestNeverStale is I9 under faults: whatever messages take, and whichever get lost, a denial from memory is one
// that the owner gave at most 100 ms ago; and as long as nothing is given back, it would give it still.
func TestNeverStale(t *testing.T) {
	const most = 100 * time.Millisecond
	answered := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 9))
		limits, err := bucket.NewLimits(bucket.Limit{
			Algorithm: []bucket.Algorithm{bucket.TokenBucket, bucket.FixedWindow, bucket.SlidingLog}[seed%3],
			Count:     1 + rng.Int64N(5), Period: time.Duration(50+rng.IntN(2000)) * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		table, err := bucket.NewTable(bucket.Config{Shards: 1})
		if err != nil {
			t.Fatal(err)
		}
		refunds := seed%2 == 0
		r := &bucket.Request{Key: bucket.Key{Lo: seed}, Limits: limits, Cost: 1}
		var d Denials
		const start = 1_700_000_000_000 * ms
		now := start
		at := map[int64][]func(){}
		later := func(f func()) {
			if rng.IntN(10) > 0 { // else it is lost
				when := now + int64(1+rng.IntN(80))*ms
				at[when] = append(at[when], f)
			}
		}
		given := map[int64]bool{} // when the owner denied
		for ; now < start+3000*ms; now += ms {
			for _, f := range at[now] {
				f()
			}
			if rng.IntN(3) > 0 {
				continue
			}
			if refunds && rng.IntN(20) == 0 {
				back := *r
				back.Verb = bucket.Refund
				table.Do(now, &back)
				later(func() { d.Forget(now, r.Key) })
			}
			_, _, age, ok := d.Answer(now, r)
			if !ok {
				sent := now
				later(func() {
					decision := table.Do(now, r)
					if given[now] = !decision.Allowed; !decision.Allowed {
						later(func() { d.Remember(sent, now, r, &decision, "owner", min(decision.RetryAfter, most)) })
					}
				})
				continue
			}
			answered++
			fresh := false
			for h := now; h >= now-int64(most) && !fresh; h -= ms {
				fresh = given[h]
			}
			if !fresh || age > most {
				t.Fatalf("seed %d: a denial that was asked for %v ago, and the owner has given none for %v", seed, age, most)
			}
			read := *r
			read.Verb = bucket.Read
			if !refunds && table.Do(now, &read).Allowed {
				t.Fatalf("seed %d: denied by an answer of %v ago, and the owner would admit it", seed, age)
			}
		}
	}
	if answered < 1000 {
		t.Errorf("%d answered from memory", answered)
	}
}
