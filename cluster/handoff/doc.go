// Package handoff decides which partitions this process holds, and who has copies
// of them: epochs, fillings, the swap, claims and forks. docs/protocol.md has the
// rules.
//
// Machine is a pure step function over a bucket.Table: it takes the time, messages and
// the view, seals and opens shards, and leaves messages to be sent. It starts no
// goroutine, and its owner calls it from one; the table may be used by others
// meanwhile. Whether the process may decide at all is cluster/quorum's.
package handoff
