package main

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluice-project/sluice/bucket"
)

// lruTable has bucket's layout: in each shard a map and a list of entries that
// point to counters.
type lruTable struct{ shards [shards]lruShard }

type lruShard struct {
	mu  sync.Mutex
	lru *simplelru.LRU[bucket.Key, *counter]
}

// counter has 64 bytes, as bucket's has.
type counter struct {
	state
	_ [3]*counter
}

func newLRUTable(perShard int) (*lruTable, error) {
	t := &lruTable{}
	for i := range t.shards {
		l, err := simplelru.NewLRU[bucket.Key, *counter](perShard, nil)
		if err != nil {
			return nil, err
		}
		t.shards[i].lru = l
	}
	return t, nil
}

func (t *lruTable) take(now int64, k bucket.Key) (allowed, known bool) {
	sh := &t.shards[k.Shard(shards)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, known := sh.lru.Get(k)
	if !known {
		c = &counter{}
		sh.lru.Add(k, c)
	}
	return c.take(now), known
}
