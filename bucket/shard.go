package bucket

import (
	"math"
	"slices"
	"sync"
	"time"
)

// shard is the part of a table under one lock.
type shard struct {
	table *Table
	// number is its index in the table.
	number int
	mu     struct {
		sync.Mutex
		// sealed: Try decides nothing here.
		sealed bool
		store  store
		// seq counts the changes, recorded or not.
		seq     uint64
		journal journal
		// lost is the loss that requests with DenyLost consider.
		lost lost
		// ahead is how far (ns) the shard's time, used by its counters, is ahead of the callers' clock.
		ahead int64
		// spare is a buffer for counters that are not in the table.
		spare more
		// work is the counter of the key in question, seen one that an eviction or a sweep looks at. What their sides have is in
		// workSide and seenSide.
		work, seen         counter
		workSide, seenSide side
		// births numbers the counters that were made here.
		births uint16
	}
}

func (t *Table) lock(shard int) *shard {
	sh := &t.shards[shard]
	sh.mu.Lock()
	return sh
}

func (t *Table) lockKey(k Key) *shard { return t.lock(k.Shard(len(t.shards))) }

// unlock unlocks sh. If it has grown, the table makes room in others.
func (sh *shard) unlock(now int64, grown bool) {
	sh.mu.Unlock()
	if grown && sh.table.over() != nothing {
		sh.evictElsewhere(now)
	}
}

// getLocked returns the counter of key, nil if there is none. It is valid until the next call, and what is changed of it is
// kept by keepLocked. Its grants whose deadline has passed at at have ended.
func (sh *shard) getLocked(at int64, key Key) *counter {
	slot, ok := sh.mu.store.find(key)
	if !ok {
		return nil
	}
	c := &sh.mu.work
	sh.mu.store.load(sh.table, slot, c, &sh.mu.workSide)
	if c.ledger() != nil {
		sh.lapseLocked(c, at)
		c.more.shard, c.more.lo = sh, key.Lo
		c.hold()
	}
	return c
}

// lookLocked reads the counter of slot, for an eviction or a sweep, without what deciding needs besides. It is valid until the next
// call.
func (sh *shard) lookLocked(slot uint32) *counter {
	sh.mu.store.load(sh.table, slot, &sh.mu.seen, &sh.mu.seenSide)
	return &sh.mu.seen
}

func (sh *shard) keepLocked(c *counter, did effects) outcome {
	before := sh.mu.store.bytes
	sh.mu.store.save(c)
	return outcome{did, c, sh.mu.store.bytes - before}
}

// saveLocked is keepLocked for a counter that grows or shrinks without a change.
func (sh *shard) saveLocked(c *counter) { sh.grewLocked(c.set, sh.keepLocked(c, 0).grown) }

// clearLocked forgets what the counter c has counted, but not its grants.
func (sh *shard) clearLocked(c *counter) (o outcome) {
	if c.granted() == 0 {
		return outcome{did: removed, grown: -sh.removeLocked(c)}
	}
	return sh.restartLocked(c, c.limits, c.now, 0)
}

// restartLocked makes c anew at the time at, under the limits l, with its grants.
func (sh *shard) restartLocked(c *counter, l *Limits, at int64, did effects) outcome {
	made := newCounter(l, at, new(more))
	made.keepLedger(c)
	return sh.keepLocked(sh.replaceLocked(c, &made), did)
}

// bornLocked returns the number of a counter that is made now.
func (sh *shard) bornLocked() uint16 {
	sh.mu.births++
	return sh.mu.births & birthsMask
}

// outcome is the effect on a shard. It is small enough to be returned in registers, because copying it would slow down a check.
type outcome struct {
	did effects
	// counter is the key's counter if it was changed or has grown; nil means none.
	counter *counter
	// grown is the growth of the shard in bytes.
	grown int64
}

type effects uint8

const (
	charged effects = 1 << iota
	inserted
	removed
	// changed: the key's counter was changed or forgotten, which replicas must learn.
	changed
)

func (o outcome) has(d effects) bool { return o.did&d == d }

// and combines the outcomes o and then p for one key.
func (o outcome) and(p outcome) outcome {
	counter := p.counter
	if counter == nil && p.did == 0 {
		counter = o.counter
	}
	return outcome{did: o.did | p.did, counter: counter, grown: o.grown + p.grown}
}

// decideLocked answers r, with verb and cost in normal form, in d, which is zero. It fills rc, if not nil, when it charged.
func (sh *shard) decideLocked(now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) outcome {
	if r.DenyLost && sh.mu.lost.since != 0 {
		o, answered := sh.decideLostLocked(now, r, verb, cost, d)
		if answered {
			return o
		}
		return o.and(sh.decideKnownLocked(now, r, verb, cost, rc, d))
	}
	return sh.decideKnownLocked(now, r, verb, cost, rc, d)
}

// decideKnownLocked is decideLocked without regard to a loss.
func (sh *shard) decideKnownLocked(now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) outcome {
	c := sh.getLocked(now, r.Key)
	switch {
	case c == nil:
		return sh.firstLocked(now, r, verb, cost, rc, d)
	case verb == Read || verb == status:
		sh.readLocked(c, now, r, verb, cost, d)
		return outcome{}
	case verb == Reset:
		return sh.resetLocked(c, now, r, d)
	}
	return sh.useLocked(c, now, r, verb, cost, rc, d)
}

// resetLocked forgets what r.Key's counter c has counted, except grants, which may still be spent.
func (sh *shard) resetLocked(c *counter, now int64, r *Request, d *Decision) (o outcome) {
	if c.granted() == 0 {
		o = outcome{did: removed | changed, grown: -sh.removeLocked(c)}
		sh.firstLocked(now, r, status, 0, nil, d)
		return o
	}
	o = sh.restartLocked(c, r.Limits, c.settle(now), changed)
	o.counter.status(o.counter.now, d)
	d.seenFrom(now, o.counter.now)
	return o
}

// firstLocked answers for a key without a counter, and inserts one if there is something to remember.
func (sh *shard) firstLocked(now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) outcome {
	if verb == Check && !r.Limits.stateless && sh.table.fullFor(r.Limits) {
		sh.table.deniedFull.Add(1)
		*d = Decision{Limit: r.Limits.plans[0].limit, RetryAfter: fullRetry, ResetAfter: fullRetry}
		return outcome{}
	}
	c := newCounter(r.Limits, now, &sh.mu.spare)
	if rc != nil {
		rc.before(&c, now)
	}
	if verb == Refund {
		verb = status // there is nothing to refund
	}
	did := c.apply(r, verb, now, cost, d)
	switch {
	case verb == Reset:
		return outcome{did: changed} // a replica may have a counter that was evicted here
	case did == 0 || r.Limits.stateless:
		return outcome{}
	}
	if rc != nil && did&charged != 0 {
		c.cuts |= flagHeld
	}
	o := sh.insertLocked(r.Key, &c)
	o.did |= did
	if rc != nil && o.has(charged) {
		rc.after(r, o.counter, cost, sh.mu.ahead)
	}
	sh.mu.spare.release()
	return o
}

// fullRetry is the RetryAfter of a check denied for lack of room.
const fullRetry = time.Second

// insertLocked inserts a copy of c as the counter of key, which has none. The outcome's counter has c's data behind pointers.
func (sh *shard) insertLocked(key Key, c *counter) outcome {
	made, before := &sh.mu.work, sh.mu.store.bytes
	*made = *c
	made.slot, made.birth = sh.mu.store.add(key), sh.bornLocked()
	sh.enter(made, 0)
	sh.mu.store.save(made)
	return outcome{inserted, made, sh.mu.store.bytes - before}
}

// readLocked answers from c without changing it.
func (sh *shard) readLocked(c *counter, now int64, r *Request, verb Verb, cost int64, d *Decision) {
	sh.mu.store.at(c.slot).meta |= meta(flagAgain)
	seen := c.under(r.Limits, now, &sh.mu.spare)
	at := seen.settle(now)
	seen.apply(r, verb, at, cost, d)
	d.seenFrom(now, at)
	sh.mu.spare.release()
}

// useLocked answers a verb that may change c.
func (sh *shard) useLocked(c *counter, now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) (o outcome) {
	if verb == Refund {
		// So that earlier receipts do not find their counter.
		c.birth = sh.bornLocked()
	}
	if c.limits != r.Limits && verb == Check && sh.deniedLocked(c, now, r, cost, d) {
		return o
	}
	c, o = sh.underLocked(c, r.Limits, now)
	c.cuts |= flagAgain
	at := c.settle(now)
	if rc != nil {
		rc.before(c, at)
	}
	did := c.apply(r, verb, at, cost, d)
	if rc != nil && did&charged != 0 {
		c.cuts |= flagHeld
		rc.after(r, c, cost, sh.mu.ahead)
	}
	if did != 0 {
		o = o.and(sh.keepLocked(c, did))
	} else {
		sh.mu.store.at(c.slot).meta |= meta(flagAgain) // its time stays
	}
	d.seenFrom(now, at)
	return o
}

// deniedLocked answers a check under other limits than those of c if it is denied and leaves no trace; see change.go.
func (sh *shard) deniedLocked(c *counter, now int64, r *Request, cost int64, d *Decision) bool {
	counts := func(p plan) bool { return p.countDenied || p.blocks }
	if c.limits.Equal(r.Limits) || r.Drain || slices.ContainsFunc(r.Limits.plans, counts) {
		return false
	}
	seen := c.under(r.Limits, now, &sh.mu.spare)
	defer sh.mu.spare.release()
	if !c.endsBefore(&seen) {
		return false
	}
	at := seen.settle(now)
	if seen.admits(r, at, cost, d) {
		*d = Decision{}
		return false
	}
	sh.mu.store.at(c.slot).meta |= meta(flagAgain)
	seen.denied(r, at, cost, d)
	d.seenFrom(now, at)
	return true
}

// underLocked puts the counter c under the limits l, keeps it, and returns it. Under equal limits it stays in its domain's
// account: using another domain's counter does not take it over.
func (sh *shard) underLocked(c *counter, l *Limits, now int64) (*counter, outcome) {
	switch {
	case c.limits == l:
	case !c.limits.Equal(l):
		c = sh.replaceLocked(c, c.withLimits(l, now))
		return c, sh.keepLocked(c, changed)
	case c.limits.domain == l.domain || c.limits.domain == "":
		n := sh.exit(c)
		c.limits = l // parsed again; next time the pointers are equal
		sh.enter(c, n)
		sh.mu.store.save(c)
	}
	return c, outcome{}
}

// undoLocked undoes the charge in rc if its counter still exists. In a sealed shard it does not: the charge is in the state
// that was handed over. It ends no grants, since the owner may have lost quorum meanwhile; see
// settleBothLocked. So it undoes as of a time before their deadlines.
func (sh *shard) undoLocked(now int64, rc *Receipt) (o outcome) {
	if sh.mu.sealed {
		return o
	}
	c := sh.getLocked(math.MinInt64, rc.key)
	// Births wrap, so the receipt may be of an earlier counter with other limits.
	if c == nil || !c.has(flagHeld) || c.birth != rc.birth || rc.ahead != sh.mu.ahead || len(rc.rest) != len(c.limits.plans)-1 {
		return o
	}
	if l := c.ledger(); l != nil && l.n > 0 {
		now = min(now, l.deadlines()[0].at-1)
	}
	c.undo(rc, c.settle(now))
	return sh.keepLocked(c, changed)
}

// replaceLocked replaces old by made, which receipts of old do not find, and returns it.
func (sh *shard) replaceLocked(old, made *counter) *counter {
	n := sh.exit(old)
	made.slot, made.birth = old.slot, sh.bornLocked()
	sh.mu.work = *made
	sh.enter(&sh.mu.work, n)
	return &sh.mu.work
}

// removeLocked removes the counter c and returns the bytes that it had.
func (sh *shard) removeLocked(c *counter) int64 {
	n := sh.exit(c)
	s := &sh.mu.store
	r := s.at(c.slot)
	if r.isOpen() && !sh.mu.sealed {
		sh.closeLocked(r)
	}
	if s.isDirty(c.slot) {
		sh.mu.journal.dirty--
		sh.goneLocked(r.keyAt(0))
	}
	s.remove(c.slot)
	if sh.mu.work.slot == s.n {
		sh.mu.work.slot = c.slot // it was the last
	}
	return n
}

// seenFrom converts a decision made at the counter's time at for a caller whose clock shows now, which may be earlier:
// durations are counted from now.
func (d *Decision) seenFrom(now, at int64) {
	if at > now {
		postpone(elapsed(now, at), &d.RetryAfter, &d.Delay, &d.ResetAfter)
	}
}

// postpone adds by (ns) to the times that are not 0.
func postpone(by uint64, times ...*time.Duration) {
	for _, t := range times {
		if *t > 0 {
			*t = time.Duration(addSat(int64(*t), saturate(by)))
		}
	}
}
