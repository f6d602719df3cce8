package main

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// shards are as many as a cluster has partitions.
const shards = 1021

// table is what is compared. It is safe for concurrent use.
type table interface {
	// take decides one check of cost 1 at now and reports whether the key was known.
	take(now int64, k bucket.Key) (allowed, known bool)
}

func newTable(kind string, size int) (table, error) {
	perShard := size/shards + 1
	switch kind {
	case "bucket":
		return newBucketTable(size)
	case "lru":
		return newLRUTable(perShard)
	case "clock":
		return newFlatTable(perShard, evictClock), nil
	case "sampled":
		return newFlatTable(perShard, evictSampled), nil
	}
	return nil, fmt.Errorf("no table is called %q", kind)
}

// The toy limit: burst a million, a token each second. interval × burst must
// not overflow.
const (
	interval = int64(time.Second)
	burst    = 1_000_000
)

// state is a counter of 64 bytes less its key, of which the toy uses two words.
type state struct {
	// now is when it was last used, full when the bucket would be full again.
	now, full int64
	// Room for what bucket's counters have besides.
	_ [3]int64
}

// take is the generic cell rate algorithm: one token of cost, see ITU-T I.371.
func (s *state) take(now int64) bool {
	s.now = now
	full := max(s.full, now) + interval
	if full-now > burst*interval {
		return false
	}
	s.full = full
	return true
}

// bucketTable is the product.
type bucketTable struct {
	table  *bucket.Table
	limits *bucket.Limits
}

func newBucketTable(size int) (*bucketTable, error) {
	t, err := bucket.NewTable(bucket.Config{Shards: shards, MaxEntries: size})
	if err != nil {
		return nil, err
	}
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Duration(interval), Burst: burst})
	return &bucketTable{t, l}, err
}

// take knows a key by what it has spent: a new bucket lacks one token after the
// first. In this experiment no bucket gets full again.
func (t *bucketTable) take(now int64, k bucket.Key) (allowed, known bool) {
	d := t.table.Do(now, &bucket.Request{Key: k, Limits: t.limits, Cost: 1})
	return d.Allowed, d.Remaining < burst-1
}
