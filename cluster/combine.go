package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
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

// likeness returns what is alike in all checks of f.
func (f *flight) likeness() likeness {
	return likeness{f.addr, f.request.Request, f.request.Sync, f.request.Fresh}
}

// combiner lets concurrent checks of one key travel to its holder as one record: while a record of a
// key is on its way, others that are alike gather, and leave together when it is back. The answers
// are the clock, as they are of frames. A key that nobody else asks for at the time costs one pointer
// in a table; there is no goroutine unless some have gathered, and then one for each key.
type combiner struct {
	node   *Node
	shards [flightShards]flights
}

const (
	flightShards = 64
	// places is how many flights of a shard have a place of their own.
	places = 512
)

// flights are the records on their way of some keys.
type flights struct {
	mu struct {
		sync.Mutex
		// at has those whose place was free, or is nil; of has all others.
		at []*flight
		of map[likeness]*flight
	}
}

// flight is a record on its way, and who waits behind it, in the order of their coming.
type flight struct {
	addr    string // of the node that is asked
	request *check.Request
	waiting []*ticket
}

// ticket is a caller's place in a record: times checks that are alike.
type ticket struct {
	// behind says which flight it is of, by a request of its own: a caller that gives up takes the other away.
	behind  flight
	request check.Request
	times   int64
	trace   *check.Trace // of the caller, mostly nil
	// done is closed when reply and err are there. Whoever closes it writes them before.
	done  chan struct{}
	reply check.Reply
	err   error
	// age is how old reply is, if it is from memory.
	age time.Duration
	// left: it is in a record that is on its way. Guarded by the shard's mu.
	left bool
}

func (c *combiner) shard(k bucket.Key) *flights { return &c.shards[k.Lo%flightShards] }

// placeLocked is where a flight of k may stand. The shard was chosen by the low bits.
func (s *flights) placeLocked(k bucket.Key) **flight {
	if s.mu.at == nil {
		s.mu.at = make([]*flight, places)
	}
	return &s.mu.at[k.Lo/flightShards%places]
}

// findLocked returns the flight that is like f, or nil.
func (s *flights) findLocked(f *flight) *flight {
	first := *s.placeLocked(f.request.Key)
	if first != nil && first.request.Key == f.request.Key && first.likeness() == f.likeness() {
		return first
	}
	if len(s.mu.of) == 0 {
		return nil
	}
	return s.mu.of[f.likeness()]
}

// addLocked notes that f, which is like none that is there, is on its way.
func (s *flights) addLocked(f *flight) {
	if place := s.placeLocked(f.request.Key); *place == nil {
		*place = f
		return
	}
	if s.mu.of == nil {
		s.mu.of = make(map[likeness]*flight)
	}
	s.mu.of[f.likeness()] = f
}

// removeLocked takes f out.
func (s *flights) removeLocked(f *flight) {
	if place := s.placeLocked(f.request.Key); *place == f {
		*place = nil
		return
	}
	delete(s.mu.of, f.likeness())
}

// combines reports whether r may be part of a record of several checks.
func combines(r *check.Request) bool {
	return r.Verb == bucket.Check && r.Cost > 0 && !r.Drain && r.Limits.Repeatable()
}

// board gives times checks that are like f a place behind the record that is on its way. Without one, it returns nil, and
// the caller sends them. Then it must say when they are back, by land, if its record leads; f is the combiner's until then.
func (c *combiner) board(f *flight, times int64, at *check.Trace) (t *ticket, leads bool) {
	for combines := false; ; combines = true {
		t, leads, ask := c.tryBoard(f, times, at, combines)
		if !ask {
			return t, leads
		}
		if !c.node.cfg.Peers.Combines(f.addr) {
			return nil, false // an older node gets them one by one, as before
		}
	}
}

// tryBoard is board, but asks first whether the node that is asked combines, if that matters.
func (c *combiner) tryBoard(f *flight, times int64, at *check.Trace, combines bool) (t *ticket, leads, ask bool) {
	s := c.shard(f.request.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.findLocked(f)
	switch {
	case first == nil:
		s.addLocked(f)
		return nil, true, false
	case !combines:
		return nil, false, true
	case len(first.waiting) >= maxGathered:
		return nil, false, false
	}
	t = &ticket{request: *f.request, times: times, trace: at, done: make(chan struct{})}
	t.behind = flight{addr: f.addr, request: &t.request}
	first.waiting = append(first.waiting, t)
	return t, false, false
}

// land says that the record of f that was on its way is back, or lost. Who has gathered goes.
func (c *combiner) land(f *flight) {
	s := c.shard(f.request.Key)
	s.mu.Lock()
	s.removeLocked(f)
	if len(f.waiting) == 0 {
		s.mu.Unlock()
		return
	}
	request := *f.request
	own := &flight{f.addr, &request, f.waiting} // f is the caller's again
	s.addLocked(own)
	batch := s.nextLocked(own)
	s.mu.Unlock()
	c.node.returning.Go(func() { c.carry(own, batch) })
}

// carry sends batch, and then what has gathered meanwhile, until there is nothing.
func (c *combiner) carry(f *flight, batch []*ticket) {
	r := f.request
	for ; batch != nil; batch = c.next(f) {
		if c.recall(r, batch) {
			continue
		}
		rec := []check.Record{{Request: r.Request, Sync: r.Sync}}
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
		span := c.node.ask(at, f.addr, rec)
		err := c.node.cfg.Peers.Call(ctx, f.addr, rec, replies)
		cancel()
		endAsk(span, replies, err)
		c.node.stats.forwarding.Observe(time.Duration(c.node.cfg.Clock() - sent))
		last := part(&replies[0], &rec[0], rec[0].Times-1, 1)
		c.node.learn(sent, &r.Request, r.Fresh, &last)
		handOut(batch, &rec[0], &replies[0], err)
	}
}

// recall answers batch by the denial that the record before it has brought, if it has.
func (c *combiner) recall(r *check.Request, batch []*ticket) bool {
	if r.Fresh || r.NoDelay {
		return false
	}
	d, holder, age, ok := c.node.denials.Answer(c.node.cfg.Clock(), &r.Request)
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

// next takes the tickets of the next record of f, which is over if none has gathered.
func (c *combiner) next(f *flight) []*ticket {
	s := c.shard(f.request.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(f.waiting) == 0 {
		s.removeLocked(f)
		return nil
	}
	return s.nextLocked(f)
}

// nextLocked takes the tickets of one record out of f, in the order of their coming. There must be some.
func (s *flights) nextLocked(f *flight) []*ticket {
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
	if c.leave(t) {
		return check.Reply{}, fmt.Errorf("peer %s: %w: %w", t.behind.addr, check.ErrUnsent, ctx.Err())
	}
	select {
	case <-t.done:
		return t.reply, t.err
	default:
		return check.Reply{}, fmt.Errorf("peer %s: %w: %w", t.behind.addr, check.ErrAmbiguous, ctx.Err())
	}
}

// leave takes t out of those that wait, and reports whether it was still among them.
func (c *combiner) leave(t *ticket) bool {
	s := c.shard(t.behind.request.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.findLocked(&t.behind)
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
