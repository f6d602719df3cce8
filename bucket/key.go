package bucket

// Key names one counter: a 128-bit keyed hash of a domain and a descriptor. The
// strings themselves are never kept beside a counter.
type Key struct{ Hi, Lo uint64 }

// Shard returns the shard, in [0, shards), that k belongs to. A cluster uses as
// many shards as it has partitions, so that one lock, one LRU list and one unit
// of ownership are the same thing. shards must be positive.
func (k Key) Shard(shards int) int { return int(k.Lo % uint64(shards)) }
