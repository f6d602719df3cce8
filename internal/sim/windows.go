package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Besides the keys whose limits outlast a run, each partition has one whose windows end within it. What such a key has been told
// must hold, whoever holds it by then and whatever the clock there shows: where nothing may get lost, nothing is admitted before the
// time that the first denial in a row has said; and where every denial must be right, none comes much later than that.

// brief is what is known of a key whose windows end.
type brief struct {
	// denied is when the first denial in a row was (the world's time), until for how long it was; 0 if the last check was admitted.
	denied, until int64
}

// newBriefKeys draws a key for each partition.
func newBriefKeys(r *rand.Rand, partitions int) []*key {
	var keys []*key
	for p := range partitions {
		k := &key{partition: p, limit: 1 + r.Int64N(4), brief: new(brief)}
		k.request.Key = bucket.Key{Hi: uint64(1_000_000 + p), Lo: uint64(p)}
		k.request.Cost = 1
		rule := bucket.Limit{Count: k.limit, Period: between(r, 300*time.Millisecond, 3*time.Second)}
		switch r.IntN(5) {
		case 0:
			rule.Algorithm = bucket.SlidingCounter
		case 1:
			rule.Algorithm = bucket.SlidingWindow
		case 2:
			rule.Algorithm, rule.Refill = bucket.TokenBucket, bucket.RefillInterval
		default:
			rule.Algorithm = bucket.FixedWindow
		}
		limits, err := bucket.NewLimits(rule)
		if err != nil {
			panic(fmt.Sprintf("sim: %+v: %v", rule, err)) // all of these are valid
		}
		k.request.Limits = limits
		k.name = fmt.Sprintf("p%d %s", p, rule.Algorithm)
		keys = append(keys, k)
	}
	return keys
}

// apace is how far two clocks' rates may be apart, as a part of the time; standstill is for how long a counter may stand still on its way,
// with what is sent again.
const (
	apace      = 25 // 1/25
	standstill = int64(1500 * time.Millisecond)
)

// judgeBrief is called when a check of k, whose windows end, was decided by p.
func (w *world) judgeBrief(p *process, k *key, d bucket.Decision) {
	b, gone := k.brief, w.now-k.brief.denied
	switch {
	case d.Allowed:
		if b.until > 0 && w.bound == nothing && gone < b.until-b.until/apace {
			w.fail("window", k.partition, "%s admits %s %v after it was denied for %v", p, k.name, time.Duration(gone), time.Duration(b.until))
		}
		b.until = 0
	case b.until == 0:
		b.denied, b.until = w.now, int64(d.RetryAfter)
	case w.exact && gone > b.until+b.until/apace+standstill:
		w.fail("window", k.partition, "%s denies %s %v after it was denied for %v", p, k.name, time.Duration(gone), time.Duration(b.until))
	}
}
