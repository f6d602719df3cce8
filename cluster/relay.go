package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// A node that does not hear a key's owner sends the check to a third node, which relays it to the owner: so one failed link
// between two nodes loses no decision. A relayed record is not relayed again, so there is no loop.

// maxRelayWait bounds the wait of a relayed record for the owner: later frames of its stream wait too.
const maxRelayWait = 500 * time.Millisecond

// relay returns a heard node that must relay k because this node does not hear the owner, another one for each try; or noNode.
func (r *routing) relay(k bucket.Key, try int) int {
	if r.silent(k) == nil {
		return noNode
	}
	for i := range r.nodes {
		at := (i + try + int(k.Lo%uint64(len(r.nodes)))) % len(r.nodes)
		if n := &r.nodes[at]; at != r.self && n.lives && n.addr != "" {
			return at
		}
	}
	return noNode
}

// relays reports whether a record of k from the process with the boot id from can be relayed: another node than the sender
// owns the key, and is heard here.
func (r *routing) relays(from string, k bucket.Key) bool {
	to := r.owner(k)
	return to != noNode && to != r.self && r.nodes[to].lives && r.nodes[to].addr != "" && r.nodes[to].boot != from
}

// relay forwards records to their owners, and fills in their replies. byOwner has the indexes of the records, by the owner's
// index in routing.nodes.
func (n *Node) relay(r *routing, byOwner map[int][]int, records []check.Record, replies []check.Reply) {
	var all sync.WaitGroup
	for to, list := range byOwner {
		all.Go(func() { n.relayTo(r.nodes[to].addr, list, records, replies) })
	}
	all.Wait()
}

// relayTo forwards the records with these indexes to the node at addr.
func (n *Node) relayTo(addr string, indexes []int, records []check.Record, replies []check.Reply) {
	most := time.Duration(0)
	asked, answers := make([]check.Record, len(indexes)), make([]check.Reply, len(indexes))
	for j, i := range indexes {
		asked[j] = records[i]
		asked[j].Relay = false
		if rec := &records[i]; rec.Grant || rec.Return || rec.Reservation != nil { // For is of the grant
			most = maxRelayWait
			continue
		}
		most = max(most, records[i].For)
		// The owner must still know that it may be from another region; without For it is not relayed again.
		asked[j].Relay, asked[j].For = records[i].Home() == bucket.HomeAuto, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(most, maxRelayWait))
	defer cancel()
	err := n.cfg.Peers.Call(ctx, addr, asked, answers)
	n.stats.relayed.Add(uint64(len(indexes)))
	for j, i := range indexes {
		switch {
		case answers[j].Status != 0:
			replies[i] = answers[j]
		case errors.Is(err, check.ErrUnsent) || errors.Is(err, check.ErrOverloaded):
			replies[i].Status = check.NotReady
		default:
			replies[i] = check.Reply{} // it may have been charged
		}
	}
}
