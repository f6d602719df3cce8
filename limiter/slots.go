package limiter

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/rules"
)

const (
	// SlotTTL is how long a slot lasts after it was given or renewed: those of a process that was killed are free within 2 s.
	SlotTTL = 1900 * time.Millisecond
	// MaxWaiting is the most requests that wait for slots of one key.
	MaxWaiting = 1 << 14
	// MaxTenant is the most bytes of the name of a tenant, MaxWeight the largest weight.
	MaxTenant, MaxWeight = 128, 1_000_000

	// gatherFor is how long a line waits for others when the first request comes from a line of another node, or to a new owner.
	gatherFor = 100 * time.Millisecond
	// A line asks again after retrySlot where there was no decision, and after askSlot at the latest: with many slots the time until
	// units are free is not known exactly.
	retrySlot, askSlot = 50 * time.Millisecond, 150 * time.Millisecond
	// A request that another key denies comes back after leastPause or half of it, doubling up to lastPause.
	leastPause, lastPause = 10 * time.Millisecond, time.Second
	// renewWithin is how long a renewal waits for owners.
	renewWithin = 300 * time.Millisecond
)

// SlotRequest asks for a slot.
type SlotRequest struct {
	// Units in use at a time, 1 or more.
	Units int64
	// Wait until they are free, behind those who came earlier.
	Wait bool
	// Requests of one Tenant wait in order of arrival. Tenants share the units by Weight, 0 to MaxWeight, where 0 means 1.
	Tenant string
	Weight int64
	// Arrival is when it began to wait in a line of another node, zero if it did not.
	Arrival time.Time
	// turn is what is reserved, nil for a slot of a session.
	turn *ReserveRequest
}

// SlotAnswer answers a SlotRequest. With neither Moved nor Err, the batch has the decision.
type SlotAnswer struct {
	// ID is that of the reservation, "" if none is held; Slot is the same.
	ID string
	Slot
	// Fence rises with each slot of a key, as long as the clocks of nodes differ by less than it takes to pass a slot on.
	Fence uint64
	// Until is when the slot ends, or somewhat earlier.
	Until time.Time
	// Check is the index of the check that denied it or failed, 0 for none.
	Check int
	// Moved: the node Owner, "" for none, owns the key now. Waited: the request has waited here.
	Moved, Waited bool
	Owner         string
	Err           *Error
}

// Slot is a slot that is held.
type Slot struct{ *ticket }

// Acquire implements Service.
func (l *Limiter) Acquire(b *Batch, r SlotRequest, done func(*Batch, SlotAnswer)) *Waiter {
	key, err := l.slotKey(b, &r)
	if err != nil {
		done(b, SlotAnswer{Err: err})
		return nil
	}
	now, waited := time.Now(), !r.Arrival.IsZero()
	async := len(b.Checks) == 1 && b.Results[0].Rule != nil && b.Results[0].Rule.Replication != rules.ReplicateSync
	q := &l.lines
	q.mu.Lock()
	k := q.byKey[key]
	young := l.config.Cluster.Owned(key) < gatherFor // those who wait at its last owner are still to come
	if k == nil && !waited && async && !young {
		q.mu.Unlock()
		if a, ok := l.acquireAtOnce(b, &r, key); ok {
			done(b, a)
			return nil
		}
		q.mu.Lock()
		k = q.byKey[key]
	}
	w := &Waiter{limiter: l, batch: b, request: r, done: done, arrival: r.Arrival, waited: waited}
	if !waited {
		w.arrival = now
	}
	switch {
	case k == nil:
		k = &line{key: key, tenants: map[string]*tenant{}}
		q.byKey[key] = k
		q.count.Add(1)
	case k.size > 0 && !r.Wait, k.size+k.aside >= MaxWaiting:
		b.Results[0].Decision, b.Results[0].Source = k.denial, check.Owned
		a := SlotAnswer{}
		if r.Wait {
			a.Err = ErrBusy
		}
		q.mu.Unlock()
		done(b, a)
		return nil
	}
	if (w.waited || young) && k.gather.IsZero() && guard.On(guard.Gather) {
		k.gather = time.Now().Add(gatherFor)
	}
	w.waited = w.waited || k.size > 0
	q.last++
	w.number = q.last
	k.addLocked(w)
	l.wakeUnlock(k)
	return w
}

// atOnce is a context that has ended: what this node cannot decide at once fails.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// acquireAtOnce answers a request for a slot of key, for which nobody waits. It reports false for one that has to wait, or is to be answered
// by another node.
func (l *Limiter) acquireAtOnce(b *Batch, request *SlotRequest, key bucket.Key) (a SlotAnswer, ok bool) {
	if _, here := l.config.Cluster.Owner(key); !here {
		return a, false
	}
	a, r := l.tryFirst(atOnce, b, request, false)
	if a.Err != nil || !r.Allowed && (request.Wait || r.Source != check.Owned) {
		return a, false
	}
	if r.Allowed {
		l.lines.mu.Lock()
		a.Fence = l.lines.nextFenceLocked()
		l.lines.mu.Unlock()
	}
	return a, true
}

// slotKey returns the key of the slot that b asks for, and leaves its rule in b.Results.
func (l *Limiter) slotKey(b *Batch, r *SlotRequest) (key bucket.Key, _ *Error) {
	b.start(len(b.Checks))
	c, x := &b.Checks[0], &b.Results[0]
	l.match(l.Rules(), b, 0)
	switch {
	case x.Err != nil:
		return key, x.Err
	case x.Limits != nil && !x.Limits.Slots():
		return key, &Error{Code: Invalid, Field: "descriptor", Message: "the rule has no limit with algorithm: concurrency"}
	case r.Units < 1:
		return key, &Error{Code: Invalid, Field: "units", Message: fmt.Sprintf("%d; want 1 or more", r.Units)}
	case r.Weight < 0 || r.Weight > MaxWeight:
		return key, &Error{Code: Invalid, Field: "weight", Message: fmt.Sprintf("%d; want 1 to %d", r.Weight, MaxWeight)}
	case len(b.Checks) > MaxBudgets:
		return key, &Error{Code: Invalid, Field: "checks", Message: fmt.Sprintf("%d checks; want 1 to %d", len(b.Checks), MaxBudgets)}
	case len(r.Tenant) > MaxTenant:
		return key, &Error{Code: Invalid, Field: "tenant", Message: fmt.Sprintf("%d bytes; want at most %d", len(r.Tenant), MaxTenant)}
	}
	return l.counterKey(b, c, x.Rule), nil
}

// takesSlots reports whether one of the rules of b has a limit with algorithm concurrency.
func (l *Limiter) takesSlots(b *Batch) bool {
	set := l.Rules()
	return set.Slots() && slices.ContainsFunc(b.Checks, func(c Check) bool {
		rule, _ := set.Match(c.Domain, c.Descriptor)
		return len(c.Limits) == 0 && rule != nil && rule.Limits != nil && rule.Limits.Slots()
	})
}

// awaitTurn returns when it is b's turn among those who wait for slots of its first check, and they are reserved under b.IdempotencyKey, or
// when r.Wait or Config.MaxWait has passed. Reserve decides what comes of it.
func (l *Limiter) awaitTurn(ctx context.Context, b *Batch, r ReserveRequest) *Error {
	for i := range b.Checks {
		switch c := &b.Checks[i]; {
		case c.Err != nil:
			return nil
		case len(c.Limits) > 0:
			return &Error{Code: Invalid, Field: "wait", Message: "is set; want checks without limits of their own beside it"}
		}
	}
	if e := keyError(b); e != nil {
		return e
	}
	if b.IdempotencyKey == "" {
		b.IdempotencyKey = rand.Text()
	}
	t := &facts.Turn{Key: b.IdempotencyKey, Caller: b.Caller, Units: r.Units, Least: r.Least, TTL: r.TTL}
	for i := range b.Checks {
		c := facts.TurnCheck{Domain: b.Checks[i].Domain}
		for _, e := range b.Checks[i].Descriptor {
			c.Descriptor = append(c.Descriptor, e.Key, e.Value)
		}
		t.Checks = append(t.Checks, c)
	}
	wait := min(r.Wait, l.config.MaxWait)
	if deadline, ok := ctx.Deadline(); ok { // so that there is time to reserve
		wait = min(wait, time.Until(deadline)*7/8)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	key, err := l.slotKey(b, &SlotRequest{Units: 1})
	if err != nil {
		return err
	}
	for began := time.Now(); ctx.Err() == nil; t.Waited = time.Since(began) {
		moved := true
		switch owner, here := l.config.Cluster.Owner(key); {
		case here:
			moved = l.AwaitTurn(ctx, t)
		case owner != "":
			moved = l.config.Cluster.AskTurn(ctx, owner, t)
		}
		if !moved {
			break
		}
		pause.For(ctx, retrySlot)
	}
	return nil
}

// AwaitTurn waits for t in a line of this node. It reports true if another node owns the key now.
func (l *Limiter) AwaitTurn(ctx context.Context, t *facts.Turn) (moved bool) {
	ask := SlotRequest{Units: max(1, t.Units), Wait: true, turn: &ReserveRequest{Units: t.Units, Least: t.Least, TTL: t.TTL}}
	if t.Waited > 0 {
		ask.Arrival = time.Now().Add(-t.Waited)
	}
	b := NewBatch()
	b.IdempotencyKey, b.Caller = t.Key, t.Caller
	for i := range t.Checks {
		c := b.Add()
		c.Domain = t.Checks[i].Domain
		for d := t.Checks[i].Descriptor; len(d) > 1; d = d[2:] {
			c.Descriptor = append(c.Descriptor, rules.Entry{Key: d[0], Value: d[1]})
		}
	}
	turn := make(chan bool, 1)
	w := l.Acquire(b, ask, func(b *Batch, a SlotAnswer) {
		b.Release()
		turn <- a.Moved
	})
	select {
	case moved = <-turn:
	case <-ctx.Done():
		w.Cancel()
	}
	return moved
}

// deniedBy returns the index of the check that fails b or denies it, 0 if there is none.
func deniedBy(b *Batch) int {
	denied := 0
	for i := len(b.Results) - 1; i >= 0; i-- {
		if r := &b.Results[i]; r.Err != nil {
			return i
		} else if !r.Allowed && !r.givenBack {
			denied = i
		}
	}
	return denied
}

// tryFirst asks for a slot, and before that whether there is one if look is set. r is the result of the check that denied it or failed, or
// of the first one.
func (l *Limiter) tryFirst(ctx context.Context, b *Batch, request *SlotRequest, look bool) (a SlotAnswer, r Result) {
	began, ask := time.Now(), ReserveRequest{Units: request.Units, TTL: SlotTTL, Slots: len(b.Checks) > 1}
	if request.turn != nil {
		ask = *request.turn
	}
	b.AllOrNothing = true
	var got Reservation
	var err error
	free := true
	if look {
		b.reserving = nil
		for i := range b.Checks {
			b.Checks[i].Verb, b.Checks[i].Cost = bucket.Read, ask.Units
		}
		err = l.Check(ctx, b)
		free, _, _ = Overall(b.Results)
	}
	if err == nil && free {
		got, err = l.Reserve(ctx, b, ask)
	}
	a = SlotAnswer{ID: got.ID, Until: began.Add(got.ExpiresAfter)}
	if err != nil {
		r.Err = errorOf(err)
	} else {
		a.Check = deniedBy(b)
		r = b.Results[a.Check]
	}
	if a.Err = r.Err; got.ID != "" {
		a.Slot = Slot{b.reserving.ticket}
	}
	return a, r
}

// Slot implements Service.
func (l *Limiter) Slot(id string) (Slot, error) {
	t, err := l.ticketOf(id)
	if err != nil {
		return Slot{}, l.reject(err)
	}
	return Slot{t}, nil
}

// RenewSlots implements Service.
func (l *Limiter) RenewSlots(ctx context.Context, slots []Slot) []bool {
	ctx, cancel := context.WithTimeout(ctx, renewWithin) // the others must not wait for an owner that does not respond
	defer cancel()
	return l.askSlots(ctx, slots, bucket.Extend)
}

// ReleaseSlots implements Service.
func (l *Limiter) ReleaseSlots(ctx context.Context, slots []Slot) {
	for _, ended := range l.askSlots(context.WithoutCancel(ctx), slots, bucket.Settle) {
		if ended {
			l.reserved.settled.Add(1)
		}
	}
}

// askSlots asks for verb of all slots, and reports for which it was done.
func (l *Limiter) askSlots(ctx context.Context, slots []Slot, verb bucket.Verb) []bool {
	b, done, n := new(check.Batch), make([]bool, len(slots)), 0
	for i, s := range slots {
		done[i] = true
		n += len(s.cells)
	}
	b.Requests, b.Answers = make([]check.Request, 0, n), make([]check.Answer, 0, n)
	memory := make([]bucket.Reservation, n)
	for _, s := range slots {
		s.add(b, verb, 0, 0, SlotTTL, memory)
		for i := range s.cells {
			memory[i].Fresh = verb == bucket.Settle
		}
		memory = memory[len(s.cells):]
	}
	if len(b.Requests) > 0 {
		l.config.Decider.Decide(ctx, b)
	}
	at := 0
	for i, s := range slots {
		for range s.cells {
			done[i] = done[i] && b.Answers[at].Err == nil && (!b.Requests[at].Reservation.Reserved.Unknown || !guard.On(guard.Renewed))
			at++
		}
	}
	return done
}
