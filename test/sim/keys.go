package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// key is a counter's key, its limit, and the model's data of it.
type key struct {
	name      string
	partition int
	place     int // index among the keys of its partition
	request   bucket.Request
	limit     int64
	// sync: an admitted check is answered only once a replica has it.
	sync bool
	// brief is set if the key's windows end within a run. Such a key has no accounts.
	brief *brief
	// shared is set if shares may answer the key. Such a key has no accounts either.
	shared *sharing

	accounts []*account
}

// account is the model's data of a key in one cluster ID.
type account struct {
	clusterID string
	// charges are the allowed checks.
	charges []charge
	// released is the number of answered charges: for async keys all, for sync keys those that a replica had.
	released int64
	// lost is how much less than the model the tables of new owners had.
	lost int64
}

// account returns k's account for a cluster ID.
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
	at      int64 // simulated time
	process *process
}

// long is a period that does not end within a run.
const long = 1000 * time.Hour

// newKeys draws a few keys for each partition, with limits that about this number of checks per key exhaust.
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
				k.request.Unreplicated, kind = true, "unreplicated"
			}
			k.name = fmt.Sprintf("p%d.%d %s", p, i, kind)
			keys = append(keys, k)
		}
	}
	return keys
}

// spent returns p's count of k, without lost counters. It changes nothing.
func (w *simCluster) spent(p *process, k *key) int64 {
	r := k.request
	r.Verb, r.DenyLost = bucket.Read, false
	return k.limit - p.table.Do(w.clock(p), &r).Remaining
}

// someKey draws a key; some are more frequent than others.
func (w *simCluster) someKey() *key {
	if w.rng.IntN(3) == 0 {
		return w.brief[w.rng.IntN(len(w.brief))]
	}
	n := len(w.keys)
	return w.keys[min(w.rng.IntN(n), w.rng.IntN(n))]
}

// Each partition also has a key whose windows end within a run. What clients were told about it must hold, whichever process
// owns it later and whatever its clock shows: where nothing may be lost, no check is admitted before the retry time of the
// first denial in a row; where every denial must be right, no denial comes much later.

// brief is the model's data of a key whose windows end.
type brief struct {
	// denied is the simulated time of the first denial in a row, until its retry-after; 0 if the last check was admitted.
	denied, until int64
}

// newBriefKeys draws one such key for each partition.
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

// apace is the maximum relative difference of two clock rates. standstill is how long a counter may stand still in transfer,
// resends included.
const (
	apace      = 25 // 1/25
	standstill = int64(1500 * time.Millisecond)
)

// judgeBrief is called after p has decided a check of a key whose windows end.
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
