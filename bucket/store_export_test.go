package bucket

// counterOf returns a copy of the counter of key in its shard, nil if there is none.
func (t *Table) counterOf(key Key) *counter {
	sh := &t.shards[key.Shard(len(t.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.getLocked(key)
	if c == nil {
		return nil
	}
	made := c.copyTo(new(more))
	made.unshare()
	return &made
}

// countersOf returns copies of the counters of a shard.
func (t *Table) countersOf(shard int) (list []*counter) {
	for _, key := range t.Keys(shard, nil) {
		list = append(list, t.counterOf(key))
	}
	return list
}
