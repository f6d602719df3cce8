// Package cluster is the node: it answers every check, out of the counters it
// holds or through the node that holds them.
//
// It decides where a check is decided. A view of the members becomes a ring table,
// and the table's owner of a partition is its holder. What this node holds it
// decides at once; the rest goes to the holders, one call for each. A node that is
// asked by another for what it does not hold never decides: it names the holder it
// knows, and the asker learns. When no holder answers in time, the rule's
// on_failure does. It also decides what all-or-nothing means across keys and nodes.
//
// It leaves to others: what a check costs and whether that is too much (bucket), who
// is a member (cluster/gossip), how records travel (whoever implements Peers), and
// who asked (the front doors). Ring tables come from package ring.
//
// A partition that moves starts afresh: the old holder forgets its counters. Hand-off
// and the right to decide will stand where routing.holds is asked and where SetView
// drops shards.
//
// Goroutines: Run sweeps expired counters and is the caller's. A batch that needs
// several nodes has one goroutine per further node until it is answered. Charges are
// given back to other nodes by goroutines that live at most GiveBackTimeout; Run
// waits for them.
//
// Locks: Node.views is held while a view is applied and takes shard locks under it;
// held.mu takes shard locks under it. No lock is held while a peer is called.
package cluster
