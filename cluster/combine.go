package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// maxGathered bounds who waits behind one record. Those on top go by themselves, and meet the bounds of
// the way to the node that is asked.
const maxGathered = 4096

// likeness is what the checks of one record have in common.
type likeness struct {
	addr    string // of the node that is asked
	request bucket.Request
	sync    bool
	fresh   bool // as in check.Request
}

// combiner lets concurrent checks of one key travel to its holder as one record: while a record of a
// key is on its way, others that are alike gather, and leave together when it is back. The answers
// are the clock, as they are of frames. That is for keys that many ask for at once: the first few records go side by side,
// and are only counted. There is no goroutine unless some have gathered, and then one for each key.
type combiner struct {
	node *Node
	// beside is how many records of a key go side by side before others gather.
	beside int32
	// far is how many more go where nodes are far apart: a check that gathers waits for up to a round trip more.
	far atomic.Int32
	// crowd counts these, of all keys that share a place.
	crowd  [1 << 15]atomic.Int32
	shards [64]flights
}

// usualBeside: of the 100,000 keys that 64 callers ask for in thousands, four in ten are on their way at any time, and where that
// is one record a place, four others are there one time in twenty-five.
const usualBeside = 4

// apart says how long the longest round trip to another node takes, in ns: beside records may go every 10 ms of it.
func (c *combiner) apart(rtt int64) { c.far.Store(int32(rtt/int64(10*time.Millisecond)) * c.beside) }

// flights are the records on their way of some keys.
type flights struct {
	mu struct {
		sync.Mutex
		// of are nil where nobody has gathered behind.
		of map[likeness]*flight
	}
}

// flight is who waits behind a record, in the order of their coming.
type flight struct{ waiting []*ticket }

// ticket is a caller's place in a record: times checks that are alike.
type ticket struct {
	like  likeness
	times int64
	trace *check.Trace // of the caller, mostly nil
	// done is closed when reply and err are there. Whoever closes it writes them before.
	done  chan struct{}
	reply check.Reply
	err   error
	// age is how old reply is, if it is from memory.
	age time.Duration
	// left: it is in a record that is on its way. Guarded by the shard's mu.
	left bool
}

func (c *combiner) place(k bucket.Key) *atomic.Int32 { return &c.crowd[k.Hi%uint64(len(c.crowd))] }

// enter reports whether a record of k may go by itself. Then the caller must say when it is back, by leave.
func (c *combiner) enter(k bucket.Key) bool {
	p := c.place(k)
	if p.Add(1) <= c.beside+c.far.Load() {
		return true
	}
	p.Add(-1)
	return false
}

// leave says that a record that has entered is back, or lost.
func (c *combiner) leave(k bucket.Key) { c.place(k).Add(-1) }

func (c *combiner) shard(l *likeness) *flights {
	return &c.shards[l.request.Key.Lo%uint64(len(c.shards))]
}

// combines reports whether r may be part of a record of several checks.
func combines(r *check.Request) bool {
	return r.Verb == bucket.Check && r.Cost > 0 && !r.Drain && r.Limits.Repeatable()
}

// board gives times checks a place behind the record of l that is on its way. Without one, it returns nil, and
// the caller sends them. Then it must say when they are back, by land, if its record leads.
func (c *combiner) board(l likeness, times int64, at *check.Trace) (t *ticket, leads bool) {
	s := c.shard(&l)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, flying := s.mu.of[l]
	switch {
	case !flying:
		if s.mu.of == nil {
			s.mu.of = make(map[likeness]*flight)
		}
		s.mu.of[l] = nil
		return nil, true
	case f == nil:
		f = new(flight)
		s.mu.of[l] = f
	case len(f.waiting) >= maxGathered:
		return nil, false
	}
	t = &ticket{like: l, times: times, trace: at, done: make(chan struct{})}
	f.waiting = append(f.waiting, t)
	return t, false
}

// land says that the record of l that was on its way is back, or lost. Who has gathered goes.
func (c *combiner) land(l likeness) {
	if batch := c.next(l); batch != nil {
		c.node.returning.Go(func() { c.carry(l, batch) })
	}
}

// carry sends batch, and then what has gathered meanwhile, until there is nothing.
func (c *combiner) carry(l likeness, batch []*ticket) {
	for ; batch != nil; batch = c.next(l) {
		if c.recall(l, batch) {
			continue
		}
		rec := []check.Record{{Request: l.request, Sync: l.sync}}
		var at *check.Trace // of the first that is in one: a record has one place
		for _, t := range batch {
			rec[0].Times += t.times
			if at == nil {
				at = t.trace
			}
		}
		replies := make([]check.Reply, 1)
		// No caller's context: who gives up does not take the others with it.
		ctx, cancel := context.WithTimeout(context.Background(), c.node.cfg.CheckTimeout)
		c.node.stats.forwards.Add(1)
		c.node.stats.combined.Add(uint64(rec[0].Times - 1))
		sent := c.node.cfg.Clock()
		span := c.node.ask(at, l.addr, rec)
		err := c.node.cfg.Peers.Call(ctx, l.addr, rec, replies)
		cancel()
		endAsk(span, replies, err)
		c.node.stats.forwarding.Observe(time.Duration(c.node.cfg.Clock() - sent))
		last := part(&replies[0], &rec[0], rec[0].Times-1, 1)
		c.node.learn(sent, &l.request, l.fresh, &last)
		handOut(batch, &rec[0], &replies[0], err)
	}
}

// recall answers batch by the denial that the record before it has brought, if it has.
func (c *combiner) recall(l likeness, batch []*ticket) bool {
	if l.fresh || l.request.NoDelay {
		return false
	}
	d, holder, age, ok := c.node.denials.Answer(c.node.cfg.Clock(), &l.request)
	if !ok {
		return false
	}
	for _, t := range batch {
		t.reply, t.age = check.Reply{Status: check.Decided, Holder: holder, Decision: d}, age
		close(t.done)
	}
	return true
}

// handOut gives each of batch its part of the reply.
func handOut(batch []*ticket, rec *check.Record, reply *check.Reply, err error) {
	before := int64(0)
	for _, t := range batch {
		t.reply, t.err = part(reply, rec, before, t.times), err
		before += t.times
		close(t.done)
	}
}

// next takes the tickets of the next record of l, nil if none has gathered. The order is
// that of their coming.
func (c *combiner) next(l likeness) []*ticket {
	s := c.shard(&l)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.mu.of[l]
	if f == nil || len(f.waiting) == 0 {
		delete(s.mu.of, l)
		return nil
	}
	n, times := 0, int64(0)
	for _, t := range f.waiting {
		if times += t.times; times > bucket.MaxTimes {
			break
		}
		t.left = true
		n++
	}
	batch := slices.Clone(f.waiting[:n])
	f.waiting = slices.Delete(f.waiting, 0, n)
	return batch
}

// wait waits for t's reply until ctx ends. Then t's checks were not sent, or may have been charged.
func (c *combiner) wait(ctx context.Context, t *ticket) (check.Reply, error) {
	select {
	case <-t.done:
		return t.reply, t.err
	case <-ctx.Done():
	}
	if c.giveUp(t) {
		return check.Reply{}, fmt.Errorf("peer %s: %w: %w", t.like.addr, check.ErrUnsent, ctx.Err())
	}
	select {
	case <-t.done:
		return t.reply, t.err
	default:
		return check.Reply{}, fmt.Errorf("peer %s: %w: %w", t.like.addr, check.ErrAmbiguous, ctx.Err())
	}
}

// giveUp takes t out of those that wait, and reports whether it was still among them.
func (c *combiner) giveUp(t *ticket) bool {
	s := c.shard(&t.like)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.mu.of[t.like]
	if t.left || f == nil {
		return false
	}
	f.waiting = slices.DeleteFunc(f.waiting, func(other *ticket) bool { return other == t })
	return true
}

// part returns the reply to times checks of rec that stand behind before others, out of the reply to all.
func part(reply *check.Reply, rec *check.Record, before, times int64) check.Reply {
	if reply.Status != check.Decided || !rec.Many() {
		return *reply
	}
	granted := min(max(reply.Granted-before, 0), times)
	switch {
	case granted == 0 && reply.Denial != nil:
		return check.Reply{Status: check.Decided, Holder: reply.Holder, Decision: *reply.Denial, Lent: reply.Lent}
	case granted < times && reply.Allowed && reply.Denial == nil:
		return check.Reply{} // no honest node leaves out the answer to some
	}
	mine := *reply
	mine.Granted = granted
	if granted == times {
		mine.Denial = nil
	}
	if granted > 0 {
		mine.Decision = earlier(&reply.Decision, rec, reply.Granted-before-granted)
	}
	return mine
}

// earlier returns the decision of the check that stood n before the one of d, both admitted at the same
// instant: there was more left of the same limit. When all of it is free again is that of d, which
// is not much later.
func earlier(d *bucket.Decision, rec *check.Record, n int64) bucket.Decision {
	e := *d
	if int(d.Index) >= rec.Limits.Len() || n == 0 {
		return e
	}
	units := rec.Cost
	if c := rec.Limits.At(int(d.Index)).Cost; c > 1 {
		if units > math.MaxInt64/c {
			return e
		}
		units *= c
	}
	if room := d.Limit - d.Remaining; units > room/n {
		e.Remaining = d.Limit
	} else {
		e.Remaining += n * units
	}
	return e
}
