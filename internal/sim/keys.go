package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// key is a counter's key, its limit, and what the model knows of it.
type key struct {
	name      string
	partition int
	place     int // among the keys of its partition
	request   bucket.Request
	limit     int64
	// sync: an admitted check is answered only once a copy has it.
	sync bool
	// brief is nil unless the key's windows end within a run. Such a key has no accounts.
	brief *brief
	// shared is nil unless shares may answer the key. Such a key has no accounts either.
	shared *sharing

	accounts []*account
}

// account is what the model knows of a key in one cluster ID.
type account struct {
	clusterID string
	// charges are the checks that were decided and allowed.
	charges []charge
	// released of them were answered: of async keys all, of sync keys those that a copy had.
	released int64
	// lost is how much less than the model the tables of new owners had.
	lost int64
}

// account returns k's in a cluster ID.
func (k *key) account(clusterID string) *account {
	for _, a := range k.accounts {
		if a.clusterID == clusterID {
			return a
		}
	}
	a := &account{clusterID: clusterID}
	k.accounts = append(k.accounts, a)
	return a
}

// charge is one allowed check.
type charge struct {
	at      int64 // the simulated cluster's time
	process *process
}

// long is a period in which nothing comes back within a run.
const long = 1000 * time.Hour

// newKeys draws a few keys for each partition, of limits that about so many checks
// for each use up.
func newKeys(r *rand.Rand, partitions int, checks int64) []*key {
	var keys []*key
	each := 2 + r.IntN(3)
	for p := range partitions {
		for i := range each {
			limit := 1 + checks*(20+r.Int64N(80))/100
			k := &key{partition: p, place: i, limit: limit}
			k.request.Key = bucket.Key{Hi: uint64(p*100 + i), Lo: uint64(i*partitions + p)}
			k.request.Cost = 1
			var rule bucket.Limit
			switch r.IntN(3) {
			case 0:
				rule = bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: long, Align: bucket.AlignFirstHit}
			case 1:
				rule = bucket.Limit{Algorithm: bucket.TokenBucket, Count: limit, Period: long}
			case 2:
				rule = bucket.Limit{Algorithm: bucket.SlidingCounter, Count: limit, Period: time.Hour}
			}
			limits, err := bucket.NewLimits(rule)
			if err != nil {
				panic(fmt.Sprintf("sim: %+v: %v", rule, err)) // all of these are valid
			}
			k.request.Limits = limits
			kind := "async"
			switch r.IntN(8) {
			case 0, 1:
				k.sync, k.request.DenyLost, kind = true, true, "sync"
			case 2:
				k.request.Transient, kind = true, "transient"
			}
			k.name = fmt.Sprintf("p%d.%d %s", p, i, kind)
			keys = append(keys, k)
		}
	}
	return keys
}

// spent returns what p's table has counted for k, what it lacks left aside. It changes nothing.
func (w *simCluster) spent(p *process, k *key) int64 {
	r := k.request
	r.Verb, r.DenyLost = bucket.Read, false
	return k.limit - p.table.Do(w.clock(p), &r).Remaining
}

// someKey draws a key; some are asked for more than others.
func (w *simCluster) someKey() *key {
	if w.rng.IntN(3) == 0 {
		return w.brief[w.rng.IntN(len(w.brief))]
	}
	n := len(w.keys)
	return w.keys[min(w.rng.IntN(n), w.rng.IntN(n))]
}

// Besides the keys whose limits outlast a run, each partition has one whose windows end within it. What such a key has been told
// must hold, whoever holds it by then and whatever the clock there shows: where nothing may get lost, nothing is admitted before the
// time that the first denial in a row has said; and where every denial must be right, none comes much later than that.

// brief is what is known of a key whose windows end.
type brief struct {
	// denied is when the first denial in a row was (the simulated cluster's time), until for how long it was; 0 if the last check was admitted.
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
func (w *simCluster) judgeBrief(p *process, k *key, d bucket.Decision) {
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
