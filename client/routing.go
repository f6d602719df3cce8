package sluice

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

const (
	refreshEvery   = 15 * time.Second       // of the members
	soonest        = 250 * time.Millisecond // after the last refresh, when something has changed
	refreshTimeout = 2 * time.Second
)

// fleet are the known nodes. It is immutable.
type fleet struct {
	// nodes are the members that serve, by name; empty while none is known.
	nodes  []*node
	byName map[string]*node
}

// allNodes returns all nodes and the target's addresses.
func (c *Client) allNodes() []*node { return slices.Concat(c.fleet.Load().nodes, c.seeds) }

// pick returns a stream to the owner of the counter key if known, else to the next node, and to avoid only if there is no
// other; nil without any stream. It connects nodes without a stream in the background.
func (c *Client) pick(key counterKey, avoid *node) (s *stream, known bool) {
	f := c.fleet.Load()
	if len(f.nodes) > 1 {
		if h, ok := c.owners.Get(key); ok {
			if n := f.byName[h.name]; n != nil && n != avoid && !n.shunned() {
				if s := n.current.Load(); s != nil {
					return s, true
				}
				n.connect()
			}
		}
	}
	if s := c.inTurn(f.nodes, avoid); s != nil {
		return s, false
	}
	return c.inTurn(c.seeds, avoid), false
}

// inTurn returns a stream to the next of nodes, to a shunned one only if there is no other, and to avoid last.
func (c *Client) inTurn(nodes []*node, avoid *node) (last *stream) {
	if len(nodes) == 0 {
		return nil
	}
	start := int(c.turn.Add(1) % uint64(len(nodes)))
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		s := n.current.Load()
		switch {
		case s == nil:
			n.connect()
		case n != avoid && !n.shunned():
			return s
		case n != avoid || last == nil:
			last = s
		}
	}
	return last
}

// owner is the name of a counter's owner, and the counter's limit for FailLocal.
type owner struct {
	name   string
	limit  int64
	period time.Duration
}

// learn remembers the owner of a counter from the decision of n. known says that n was asked as the owner.
func (c *Client) learn(key counterKey, n *node, known bool, d *Decision) {
	local := c.local.Load()
	if d.Source != limit.SourceOwned && d.Source != limit.SourceForwarded || known && d.Owner == n.name && !local {
		return
	}
	f := c.fleet.Load()
	if len(f.nodes) < 2 && !local {
		return
	}
	h := owner{name: d.Owner}
	if local && d.Counted {
		h.limit, h.period = d.Limit, d.Period
	}
	if old, ok := c.owners.Peek(key); !ok || old != h {
		c.owners.Add(key, h)
	}
	if f.byName[d.Owner] == nil {
		c.refreshSoon()
	}
}

// refreshSoon wakes the goroutine that asks for the members.
func (c *Client) refreshSoon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow refreshes the members at intervals and on wake, until the client is closed.
func (c *Client) follow() {
	next := time.NewTimer(c.jitter(refreshEvery))
	defer next.Stop()
	last := time.Now()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
			next.Reset(max(0, soonest-time.Since(last)))
			continue
		case <-next.C:
		}
		c.refresh()
		last = time.Now()
		next.Reset(c.jitter(refreshEvery))
	}
}

// refresh asks one node after the other for the members, until one responds: first those that have a stream, then
// the target.
func (c *Client) refresh() {
	var order []*node
	for _, n := range c.fleet.Load().nodes {
		if n.current.Load() != nil {
			order = append(order, n)
		}
	}
	if n := len(order); n > 1 { // clients that started together ask different nodes
		at := int(c.turn.Add(1) % uint64(n))
		order = slices.Concat(order[at:], order[:at])
	}
	for _, n := range append(order, c.seeds...) {
		ctx, cancel := context.WithTimeout(c.ctx, refreshTimeout)
		res, err := sluicev1.NewRateLimitServiceClient(n.conn).Nodes(ctx, &sluicev1.NodesRequest{})
		cancel()
		if err == nil {
			c.checkTimeout.Store(max(0, res.GetCheckTimeoutNs()))
			c.setPatience(n)
			c.leases.can.Store(!c.opts.NoLeases && !c.closed.Load() && slices.Contains(res.GetFeatures(), "leases"))
			if !c.opts.NoRouting {
				c.setNodes(res.GetNodes())
			}
			return
		}
		if c.ctx.Err() != nil {
			return
		}
	}
}

// watch ends streams that hang and connects nodes after their backoff, until the client is closed.
func (c *Client) watch() {
	tick := time.NewTicker(min(max(time.Duration(c.patience.Load())/16, 5*time.Millisecond), 200*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		for _, n := range c.allNodes() {
			if s := n.current.Load(); s != nil {
				s.check(now, time.Duration(c.patience.Load()))
			}
		}
		c.connect()
	}
}

// connect connects all nodes, and the target while no node has a stream.
func (c *Client) connect() {
	reached := false
	for _, n := range c.fleet.Load().nodes {
		n.connect()
		reached = reached || n.current.Load() != nil
	}
	if !reached {
		for _, n := range c.seeds {
			n.connect()
		}
	}
}

// setNodes replaces the fleet. Nodes that stay keep their streams; the others are retired.
func (c *Client) setNodes(nodes []*sluicev1.Node) {
	before := c.fleet.Load()
	after := &fleet{byName: map[string]*node{}}
	for _, m := range nodes {
		n := before.byName[m.GetName()]
		if n == nil || n.addr != m.GetGrpcAddress() {
			made, err := c.newNode(m.GetName(), m.GetGrpcAddress())
			if err != nil {
				continue // an address that gRPC cannot dial: other nodes forward to it
			}
			n = made
		}
		after.nodes = append(after.nodes, n)
		after.byName[n.name] = n
	}
	slices.SortFunc(after.nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	c.fleet.Store(after)
	c.connect()
	for _, n := range before.nodes {
		if after.byName[n.name] != n {
			c.retire(n)
		}
	}
}

// retire closes n, which is not picked any more, after the time that calls in flight may take.
func (c *Client) retire(n *node) {
	if !c.spawn(func() {
		pause.For(c.ctx, time.Duration(c.patience.Load()))
		n.close()
	}) {
		n.close()
	}
}

// reach tells waiting calls when a node is reached.
type reach struct {
	mu struct {
		sync.Mutex
		// changed is closed when a node has been reached, or an attempt has failed.
		changed chan struct{}
		// missedAt is when a call first found no node; zero since a node was reached.
		missedAt time.Time
	}
}

// next returns a channel that is closed by the next note.
func (r *reach) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.changed == nil {
		r.mu.changed = make(chan struct{})
	}
	return r.mu.changed
}

// note wakes waiting calls: a node was reached, or an attempt has failed.
func (r *reach) note(reached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reached {
		r.mu.missedAt = time.Time{}
	}
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
}

// missed records that there is no node now, and returns for how long there has been none.
func (r *reach) missed(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.missedAt.IsZero() {
		r.mu.missedAt = now
	}
	return now.Sub(r.mu.missedAt)
}

// find returns a stream as pick does, and waits for one if there is none. The error is errUnsent when the time is up,
// ErrClosed, or that of ctx. It does not wait when no node has been reached for the time of a call.
func (c *Client) find(ctx context.Context, key counterKey, avoid *node) (s *stream, known bool, err error) {
	for {
		changed := c.reach.next()
		if s, known = c.pick(key, avoid); s != nil {
			return s, known, nil
		}
		if c.closed.Load() {
			return nil, false, ErrClosed
		}
		if c.reach.missed(time.Now()) >= time.Duration(c.patience.Load()) {
			return nil, false, errUnsent
		}
		t := time.NewTimer(c.jitter(firstPause)) // the backoff of a node may have ended
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, false, ended(ctx)
		}
		t.Stop()
	}
}

// ended returns errUnsent when the time of a call is up, else the error of the caller's context.
func ended(ctx context.Context) error {
	if context.Cause(ctx) == errUnsent {
		return errUnsent
	}
	return ctx.Err()
}

// awaitNodes waits until all nodes were tried, so that first checks go to their owners. Once one was reached, the others
// have awaitOthers left.
func (c *Client) awaitNodes(ctx context.Context) {
	var moment <-chan time.Time
	for {
		changed := c.reach.next()
		nodes := c.fleet.Load().nodes
		if len(nodes) == 0 {
			nodes = c.seeds
		}
		if !slices.ContainsFunc(nodes, func(n *node) bool { return !n.tried() }) {
			return
		}
		if moment == nil && c.reached() {
			t := time.NewTimer(awaitOthers)
			defer t.Stop()
			moment = t.C
		}
		select {
		case <-changed:
		case <-moment:
			return
		case <-ctx.Done():
			return
		}
	}
}

const awaitOthers = 100 * time.Millisecond
