package cluster

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/message"
)

// A node remembers what holders have denied it, and answers from that for a moment instead of asking
// again. What makes room meanwhile ends it: at once where it goes through this node, and elsewhere by
// a letter of the holder to all.

// remembered answers check i of b by a denial of its holder, if that can be.
func (n *Node) remembered(now int64, b *check.Batch, i int) bool {
	req := &b.Requests[i]
	if req.Verb != bucket.Check || req.Fresh || req.Drain || req.NoDelay {
		return false
	}
	d, holder, age, ok := n.denials.Answer(now, &req.Request)
	if !ok {
		return false
	}
	b.Answers[i] = check.Answer{Decision: d, Source: check.Forwarded, Holder: holder, Age: age}
	n.stats.remembered.Add(1)
	return true
}

// onlyAsks reports whether nothing in b makes room that what stands behind it could use.
func onlyAsks(b *check.Batch) bool {
	return !slices.ContainsFunc(b.Requests, func(r check.Request) bool { return makesRoom(r.Verb) })
}

// makesRoom reports whether v can be followed by an admission that there would not have been before it.
func makesRoom(v bucket.Verb) bool { return v == bucket.Refund || v == bucket.Reset }

// learn remembers reply to r, which was asked at sent, if it is a denial that may be given again.
func (n *Node) learn(sent int64, r *bucket.Request, fresh bool, reply *check.Reply) {
	if reply.Status != check.Decided || reply.Allowed || reply.Lent || fresh {
		return
	}
	if good := check.DeniedFor(r, &reply.Decision); good > 0 {
		n.denials.Remember(sent, n.cfg.Clock(), r, &reply.Decision, reply.Holder, good)
	}
}

// Bounds of what a holder tells others of room.
const (
	toldSlots = 4096
	maxRoomy  = 1024
)

// refused remembers when this node has denied something to others, who may answer by it
// still. Keys that share a slot only cause a letter too many.
type refused struct{ at [toldSlots]atomic.Int64 }

func (t *refused) slot(k bucket.Key) *atomic.Int64 { return &t.at[(k.Lo^k.Hi)%toldSlots] }

// denied notes that k was denied at now.
func (t *refused) denied(now int64, k bucket.Key) { t.slot(k).Store(now) }

// take reports whether k may have been denied so lately that somebody remembers it at now, and forgets
// that it was.
func (t *refused) take(now int64, k bucket.Key) bool {
	s := t.slot(k)
	at := s.Load()
	return at != 0 && now-at < int64(check.MaxDenied) && s.CompareAndSwap(at, 0)
}

// roomy are keys of which others are to be told that there is room again.
type roomy struct {
	mu struct {
		sync.Mutex
		keys []bucket.Key
	}
}

// madeRoom says that at now something was given back to k, which this node holds.
func (n *Node) madeRoom(now int64, k bucket.Key) {
	n.denials.Forget(now, k)
	if !n.refused.take(now, k) {
		return
	}
	n.roomy.mu.Lock()
	// What is too many is found out in at most check.MaxDenied.
	if len(n.roomy.mu.keys) < maxRoomy {
		n.roomy.mu.keys = append(n.roomy.mu.keys, k)
	}
	n.roomy.mu.Unlock()
	signal(n.runner.kick)
}

// take returns the keys since the last call.
func (r *roomy) take() []bucket.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := r.mu.keys
	r.mu.keys = nil
	return keys
}

// tellRoom posts to all others which keys have room again.
func (r *runner) tellRoom() {
	keys := r.node.roomy.take()
	if len(keys) == 0 {
		return
	}
	for p, addr := range r.addrs {
		if p != r.self && addr != "" {
			r.node.cfg.Peers.Post(addr, message.Envelope{From: r.self, To: p, Body: &message.Room{Keys: keys}})
		}
	}
}

// heardRoom takes a letter of a holder.
func (n *Node) heardRoom(to message.Peer, m *message.Room) {
	if to.Boot != n.cfg.Boot {
		return
	}
	now := n.cfg.Clock()
	for _, k := range m.Keys {
		n.denials.Forget(now, k)
	}
}
