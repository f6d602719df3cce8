package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// Where the link between two nodes is cut, and both are heard by a third, this one relays: the node that does not hear a key's owner
// asks another node, which asks the owner. What it asks is not relayed again, so that there is one more hop and no loop.

// mostRelay bounds how long a relayed record waits for the owner: others of its stream wait behind it.
const mostRelay = 500 * time.Millisecond

// relays reports whether a record of k from the process with the boot id from can be relayed: another node owns the key, which is
// heard here, and is not the one that asks.
func (r *routing) relays(from string, k bucket.Key) bool {
	to := r.holder(k)
	return to != nobody && to != r.self && r.nodes[to].lives && r.nodes[to].addr != "" && r.nodes[to].boot != from
}

// relay asks the owners of the records that are to be relayed, each owner once.
func (n *Node) relay(r *routing, from string, records []check.Record, replies []check.Reply) {
	places := make(map[int][]int) // in records, by owner
	for i := range records {
		if rec := &records[i]; rec.Relay && replies[i].Status == 0 && !r.holds(rec.Key) && r.relays(from, rec.Key) {
			places[r.holder(rec.Key)] = append(places[r.holder(rec.Key)], i)
		}
	}
	var all sync.WaitGroup
	for to, list := range places {
		all.Go(func() { n.relayTo(r.nodes[to].addr, list, records, replies) })
	}
	all.Wait()
}

// relayTo asks the node at addr for the records at places, and fills their replies.
func (n *Node) relayTo(addr string, places []int, records []check.Record, replies []check.Reply) {
	most := time.Duration(0)
	asked, answers := make([]check.Record, len(places)), make([]check.Reply, len(places))
	for j, i := range places {
		asked[j] = records[i]
		most = max(most, records[i].For)
		asked[j].Relay, asked[j].For = false, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(most, mostRelay))
	defer cancel()
	err := n.cfg.Peers.Call(ctx, addr, asked, answers)
	n.stats.relayed.Add(uint64(len(places)))
	for j, i := range places {
		switch {
		case answers[j].Status != 0:
			replies[i] = answers[j]
		case errors.Is(err, check.ErrUnsent) || errors.Is(err, check.ErrOverloaded):
			replies[i].Status = check.Later
		default:
			replies[i] = check.Reply{} // it may have been charged
		}
	}
}
