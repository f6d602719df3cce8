// Package cluster is the node: it answers every check, out of the counters it
// holds or through the node that holds them.
//
// It decides where a check is decided, and whether here and now it may be: what this node
// holds it decides at once while it has the right to; the rest goes to the holders, one
// call for each. A node that is asked by another for what it does not hold never
// decides: it names the holder it knows, and the asker learns. While a partition is being
// handed over, checks wait behind it. When no holder answers in time, the rule's
// on_failure does, and when this node has no right, on_partition. It also decides what
// all-or-nothing means across keys and nodes, and tells holders what was admitted
// without them.
//
// It leaves to others: what a check costs and whether that is too much (bucket), who
// is a member (cluster/gossip), who is counted and has the right (cluster/quorum), who
// holds what and has copies (cluster/handoff), how records and messages travel
// (whoever implements Peers), how a snapshot lies on disk (internal/snapshot), and who asked (the
// front doors). Ring tables come from package ring.
//
// Goroutines: Run is the caller's and owns five. The runner owns both machines: it gives
// them the time, messages and the view, and publishes what checks need in three atomics:
// the routing, until when there is a right, and what copies have confirmed. The placer
// builds rings beside it. The three others sweep expired counters, settle what was
// admitted as shares, and return what is not used of leases. A batch that needs several nodes has one goroutine per further
// node until it is answered. Charges are given back to other nodes by goroutines
// that live at most GiveBackTimeout; Run waits for them, as for those that carry what has gathered of a
// hot key, and ask for leases of it.
//
// Locks: held.mu takes shard locks under it; no other lock is held while another is
// taken. No lock is held while a peer is called.
package cluster
