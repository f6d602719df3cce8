package client

import (
	"cmp"
	"context"
	"slices"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

const (
	// refreshEvery is how often the members are asked for, and soonest how long after the last time at
	// least when something has changed.
	refreshEvery   = 15 * time.Second
	soonest        = 100 * time.Millisecond
	refreshTimeout = 2 * time.Second
)

// fleet are the nodes that are asked. It is immutable.
type fleet struct {
	// nodes are the members that serve, by name; empty while none is known.
	nodes  []*node
	byName map[string]*node
}

// pick returns a node to be asked about the counter called key, other than avoid if there is
// another: its holder if that is known, else one in turn. nil if none may be asked now.
func (c *Client) pick(key counterKey, avoid *node) (n *node, known bool) {
	f := c.fleet.Load()
	if len(f.nodes) > 1 {
		if h, ok := c.holders.Get(key); ok {
			if n := f.byName[h.name]; n != nil && n != avoid && (n.current.Load() != nil || n.up(time.Now())) {
				return n, true
			}
		}
	}
	if n := c.inTurn(f.nodes, avoid); n != nil {
		return n, false
	}
	return c.inTurn(c.seeds, avoid), false
}

// inTurn returns the next of nodes that may be asked, avoid only if no other may.
func (c *Client) inTurn(nodes []*node, avoid *node) *node {
	if len(nodes) == 0 {
		return nil
	}
	var now time.Time
	start := int(c.turn.Add(1) % uint64(len(nodes)))
	var last *node
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		if n.current.Load() == nil {
			if now.IsZero() {
				now = time.Now()
			}
			if !n.up(now) {
				continue
			}
		}
		if n != avoid {
			return n
		}
		last = n
	}
	return last
}

// holder is what is remembered of a counter: the name of the node that decides it, and the limit, for a
// policy that stands in for it.
type holder struct {
	name   string
	limit  int64
	period time.Duration
}

// learn notes what the answer of n tells about the counter. known says that n was asked because it was
// taken for the holder.
func (c *Client) learn(key counterKey, n *node, known bool, d *Decision) {
	if d.Source != SourceHeld && d.Source != SourceForwarded || known && d.Holder == n.name && !c.opts.policy.local() {
		return
	}
	f := c.fleet.Load()
	if len(f.nodes) < 2 && !c.opts.policy.local() {
		return
	}
	h := holder{name: d.Holder}
	if c.opts.policy.local() {
		h.limit, h.period = d.Limit, d.Period
	}
	if old, ok := c.holders.Peek(key); !ok || old != h {
		c.holders.Add(key, h)
	}
	if f.byName[d.Holder] == nil {
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

// follow asks for the members now and then, and when something has changed, until the client
// is closed. It also ends streams that do not answer.
func (c *Client) follow() {
	watch := time.NewTicker(c.opts.timeout / 8)
	defer watch.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	last := time.Time{}
	for {
		select {
		case <-c.ctx.Done():
			return
		case now := <-watch.C:
			c.endStalled(now)
			continue
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

// endStalled ends streams that have not answered within half of the time that a check has, so that
// the other half is left for another node.
func (c *Client) endStalled(now time.Time) {
	for _, n := range slices.Concat(c.fleet.Load().nodes, c.seeds) {
		if s := n.current.Load(); s != nil && s.stalled(now, c.opts.timeout/2) {
			s.end(context.DeadlineExceeded)
		}
	}
}

// refresh asks one node after the other for the members, until one answers.
func (c *Client) refresh() {
	if c.opts.noRouting {
		return
	}
	for _, n := range slices.Concat(c.fleet.Load().nodes, c.seeds) {
		ctx, cancel := context.WithTimeout(c.ctx, refreshTimeout)
		res, err := sluicev1.NewSluiceServiceClient(n.conn).Members(ctx, &sluicev1.MembersRequest{})
		cancel()
		if err == nil {
			c.setMembers(res.GetMembers())
			return
		}
		if c.ctx.Err() != nil {
			return
		}
	}
}

// setMembers makes those that serve the fleet. Nodes that stay keep their streams; the others
// are closed once what they were asked is answered.
func (c *Client) setMembers(members []*sluicev1.Member) {
	before := c.fleet.Load()
	after := &fleet{byName: map[string]*node{}}
	for _, m := range members {
		if m.GetState() != "serving" || m.GetGrpcAddress() == "" {
			continue
		}
		n := before.byName[m.GetName()]
		if n == nil || n.addr != m.GetGrpcAddress() {
			made, err := c.newNode(m.GetName(), m.GetGrpcAddress())
			if err != nil {
				continue // an address that gRPC cannot dial: the target's are still there
			}
			n = made
		}
		after.nodes = append(after.nodes, n)
		after.byName[n.name] = n
	}
	slices.SortFunc(after.nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	c.fleet.Store(after)
	for _, n := range before.nodes {
		if after.byName[n.name] != n {
			c.retire(n)
		}
	}
}

// retire closes n, which nobody picks any more, once what it was asked has had time to be answered.
func (c *Client) retire(n *node) {
	if !c.spawn(func() {
		t := time.NewTimer(c.opts.timeout)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.ctx.Done():
		}
		n.close()
	}) {
		n.close()
	}
}
