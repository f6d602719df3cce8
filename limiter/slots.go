package limiter

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/leaf/guard"
	"github.com/sluice-project/sluice/internal/leaf/pause"
	"github.com/sluice-project/sluice/rules"
)

const (
	// SlotTTL is how long a slot lasts after it was given or renewed: those of a process that was killed are free within 2 s.
	SlotTTL = 1900 * time.Millisecond
	// MaxWaiting is the most requests that wait for slots of one key.
	MaxWaiting = 1 << 14
	// MaxTenant is the most bytes of the name of a tenant, MaxWeight the largest weight.
	MaxTenant, MaxWeight = 128, 1_000_000

	// gatherFor is how long a line waits for others when the first request comes from a line of another node.
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

// lines are those who wait for slots, by key: see line.
type lines struct {
	mu    sync.Mutex
	byKey map[bucket.Key]*line
	count atomic.Int64 // of byKey
	last  uint64       // of Waiter.number
	fence uint64       // the last one
}

// line is the requests for slots of a key that this node owns, in start-time fair order: tenants by the start of their next request in
// virtual time, and the requests of each by arrival. While it is not busy, a timer or Limiter.Wake lets it go on. The mutex of lines
// guards it.
type line struct {
	key     bucket.Key
	tenants map[string]*tenant
	waiting []*tenant // those with requests, sorted
	clock   float64   // virtual time
	size    int       // number of requests
	aside   int       // number of requests that other keys have denied: they come back
	busy    bool      // a goroutine serves it
	again   bool      // a unit may be free since that one has asked
	gather  time.Time // nobody is served before
	timer   *time.Timer
	denial  bucket.Decision // the last one
}

// tenant is those of a line with one SlotRequest.Tenant.
type tenant struct {
	weight, start float64
	requests      []*Waiter // sorted
}

func (t *tenant) compare(o *tenant) int {
	return cmp.Or(cmp.Compare(t.start, o.start), t.requests[0].compare(o.requests[0]))
}

// Waiter is a request for a slot.
type Waiter struct {
	limiter *Limiter
	batch   *Batch
	request SlotRequest
	done    func(*Batch, SlotAnswer)
	line    *line
	tenant  *tenant
	arrival time.Time
	number  uint64
	waited  bool // it was denied at least once, or came behind others
	asking  bool // its line asks for it just now
	over    bool // it is answered, or canceled
	pause   time.Duration
	aside   *time.Timer // it is out of its line until then, if not nil
}

func (w *Waiter) compare(o *Waiter) int {
	return cmp.Or(w.arrival.Compare(o.arrival), cmp.Compare(w.number, o.number))
}

// insert and remove change a sorted list. Most requests come at its end, and leave from its beginning.
func insert[T any](list *[]T, x T, compare func(T, T) int) {
	i, _ := slices.BinarySearchFunc(*list, x, compare)
	*list = slices.Insert(*list, i, x)
}

func remove[T any](list *[]T, x T, compare func(T, T) int) {
	i, _ := slices.BinarySearchFunc(*list, x, compare)
	if i == 0 {
		clear((*list)[:1])
		*list = (*list)[1:]
		return
	}
	*list = slices.Delete(*list, i, i+1)
}

// addLocked queues w.
func (k *line) addLocked(w *Waiter) {
	t := k.tenants[w.request.Tenant]
	if t == nil {
		if len(k.tenants) > 2*len(k.waiting)+16 { // those that have fallen behind the clock would begin at it
			for name, t := range k.tenants {
				if len(t.requests) == 0 && t.start <= k.clock {
					delete(k.tenants, name)
				}
			}
		}
		t = new(tenant)
		k.tenants[w.request.Tenant] = t
	}
	t.weight = float64(max(1, w.request.Weight))
	w.line, w.tenant = k, t
	if len(t.requests) > 0 {
		remove(&k.waiting, t, (*tenant).compare) // w may be its first, and begin as early as another tenant's
	} else {
		t.start = max(t.start, k.clock)
	}
	insert(&t.requests, w, (*Waiter).compare)
	insert(&k.waiting, t, (*tenant).compare)
	k.size++
}

// removeLocked takes w out of its line. units are those that it has got, 0 for none.
func (w *Waiter) removeLocked(units int64) {
	k, t := w.line, w.tenant
	w.over = true
	if w.aside != nil {
		w.aside.Stop()
		k.aside--
		return
	}
	remove(&k.waiting, t, (*tenant).compare)
	remove(&t.requests, w, (*Waiter).compare)
	k.size--
	if units > 0 {
		k.clock = max(k.clock, t.start)
		t.start += float64(units) / t.weight
	}
	if len(t.requests) > 0 {
		insert(&k.waiting, t, (*tenant).compare)
	}
}

// Acquire implements Service.
func (l *Limiter) Acquire(b *Batch, r SlotRequest, done func(*Batch, SlotAnswer)) *Waiter {
	w := &Waiter{limiter: l, batch: b, request: r, done: done, arrival: r.Arrival, waited: !r.Arrival.IsZero()}
	if !w.waited {
		w.arrival = time.Now()
	}
	key, err := l.slotKey(b, &r)
	if err != nil {
		w.over = true
		done(b, SlotAnswer{Err: err})
		return w
	}
	q := &l.lines
	q.mu.Lock()
	k := q.byKey[key]
	switch {
	case k == nil:
		k = &line{key: key, tenants: map[string]*tenant{}}
		q.byKey[key] = k
		q.count.Add(1)
	case k.size > 0 && !r.Wait, k.size+k.aside >= MaxWaiting:
		w.over = true
		b.Results[0].Decision, b.Results[0].Source = k.denial, check.Owned
		a := SlotAnswer{}
		if r.Wait {
			a.Err = ErrBusy
		}
		q.mu.Unlock()
		done(b, a)
		return w
	}
	if w.waited && k.gather.IsZero() && guard.On(guard.Gather) {
		k.gather = time.Now().Add(gatherFor)
	}
	w.waited = w.waited || k.size > 0
	q.last++
	w.number = q.last
	k.addLocked(w)
	l.wakeUnlock(k)
	return w
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
	return set != nil && slices.ContainsFunc(b.Checks, func(c Check) bool {
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

// Cancel ends a request that is not answered. It returns false for one that is, or is being answered.
func (w *Waiter) Cancel() bool {
	q := &w.limiter.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.over {
		return false
	}
	w.removeLocked(0)
	if !w.asking {
		w.batch.Release()
	}
	q.dropLocked(w.line)
	return true
}

// dropLocked forgets the line k if it is empty and not busy.
func (q *lines) dropLocked(k *line) {
	if k.busy || k.size+k.aside > 0 {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	delete(q.byKey, k.key)
	q.count.Add(-1)
}

// Wake lets those who wait for slots of key go on, because units may be free, and nil all of them, because nodes have other keys. It does
// not block.
func (l *Limiter) Wake(key *bucket.Key) {
	q := &l.lines
	if q.count.Load() == 0 {
		return
	}
	q.mu.Lock()
	if key != nil {
		if k := q.byKey[*key]; k != nil {
			l.wakeUnlock(k)
			return
		}
	} else {
		for _, k := range q.byKey {
			l.wakeUnlock(k)
			q.mu.Lock()
		}
	}
	q.mu.Unlock()
}

// wakeUnlock lets k be served, and unlocks the lines.
func (l *Limiter) wakeUnlock(k *line) {
	k.again = true
	start := !k.busy
	k.busy = true
	l.lines.mu.Unlock()
	if start {
		go l.serve(k)
	}
}

// serve gives slots to those in k, until there is none free.
func (l *Limiter) serve(k *line) {
	q := &l.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	for k.size > 0 {
		if owner, here := l.config.Cluster.Owner(k.key); !here {
			l.moveLocked(k, owner)
			continue
		}
		wait := time.Until(k.gather)
		if wait <= 0 {
			k.again = false
			if wait = l.serveFirstLocked(k); wait == 0 || k.again && guard.On(guard.WakeAgain) {
				continue
			}
		}
		if k.timer == nil {
			k.timer = time.AfterFunc(wait, func() { l.Wake(&k.key) })
		} else {
			k.timer.Reset(wait)
		}
		k.busy = false
		return
	}
	k.busy = false
	q.dropLocked(k)
}

// stepAsideLocked takes w, which another key denies, out of its line for a while, so that those behind it need not wait for that key.
func (l *Limiter) stepAsideLocked(w *Waiter, wait time.Duration) {
	w.pause = min(max(2*w.pause, leastPause), lastPause)
	w.removeLocked(0)
	w.over, w.waited = false, true
	w.line.aside++
	some := w.pause/2 + mathrand.N(w.pause/2) // #nosec G404 -- two that want the same keys in another order must not always meet
	w.aside = time.AfterFunc(min(max(wait, some), lastPause), func() {
		l.lines.mu.Lock()
		if w.over {
			l.lines.mu.Unlock()
			return
		}
		w.aside = nil
		w.line.aside--
		w.line.addLocked(w)
		l.wakeUnlock(w.line)
	})
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

// serveFirstLocked asks for a slot of the first one in k, and returns how long to wait before the next, 0 for not at all.
func (l *Limiter) serveFirstLocked(k *line) time.Duration {
	q, w := &l.lines, k.waiting[0].requests[0]
	w.asking = true
	q.mu.Unlock()
	began, ask := time.Now(), ReserveRequest{Units: w.request.Units, TTL: SlotTTL, Slots: len(w.batch.Checks) > 1}
	if w.request.turn != nil {
		ask = *w.request.turn
	}
	w.batch.AllOrNothing = true
	var got Reservation
	var err error
	free := true
	if w.pause > 0 && w.request.turn == nil { // it looks first, since reservations that are canceled are remembered for a while
		w.batch.reserving = nil
		for i := range w.batch.Checks {
			w.batch.Checks[i].Verb, w.batch.Checks[i].Cost = bucket.Read, ask.Units
		}
		err = l.Check(context.Background(), w.batch)
		free, _, _ = Overall(w.batch.Results)
	}
	if err == nil && free {
		got, err = l.Reserve(context.Background(), w.batch, ask)
	}
	q.mu.Lock()
	w.asking = false
	a := SlotAnswer{ID: got.ID, Until: began.Add(got.ExpiresAfter)}
	var r Result
	if err != nil {
		r.Err = errorOf(err)
	} else {
		a.Check = deniedBy(w.batch)
		r = w.batch.Results[a.Check]
	}
	if a.Err = r.Err; got.ID != "" {
		a.Slot = Slot{new(w.batch.reserving.ticket)}
	}
	switch {
	case w.over: // it was canceled meanwhile
		q.mu.Unlock()
		if got.ID != "" {
			l.ReleaseSlots(context.Background(), []Slot{a.Slot})
		}
		w.batch.Release()
		q.mu.Lock()
		return 0
	case a.Err == nil && r.Allowed:
		w.removeLocked(w.request.Units)
		if next := q.fence + 1; guard.On(guard.FenceRises) {
			q.fence = max(next, uint64(time.Now().UnixNano()))
		} else {
			q.fence = uint64(time.Now().UnixNano())
		}
		a.Fence = q.fence
	case a.Err == nil && a.Check == 0 && r.Source == check.Forwarded:
		l.moveLocked(k, r.Owner)
		return 0
	case w.request.Wait && (a.Err == nil && !r.Never() || a.Err != nil && (a.Err.Code == Unavailable || a.Err.Code == Overloaded)):
		wait := retrySlot
		if a.Err == nil {
			wait = min(max(r.RetryAfter, time.Millisecond), askSlot)
		}
		if a.Check > 0 {
			if a.Err != nil || r.Limits.Slots() {
				wait = 0
			}
			l.stepAsideLocked(w, wait)
			return 0
		}
		if w.waited = true; a.Err == nil {
			k.denial = r.Decision
		}
		return wait
	default:
		w.removeLocked(0)
	}
	q.mu.Unlock()
	w.done(w.batch, a)
	q.mu.Lock()
	return 0
}

// moveLocked sends all of k to another node.
func (l *Limiter) moveLocked(k *line, owner string) {
	var list []*Waiter
	for k.size > 0 {
		w := k.waiting[0].requests[0]
		w.removeLocked(0)
		list = append(list, w)
	}
	l.lines.mu.Unlock()
	for _, w := range list {
		w.done(w.batch, SlotAnswer{Moved: true, Owner: owner, Waited: w.waited})
	}
	l.lines.mu.Lock()
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
	b, done := new(check.Batch), make([]bool, len(slots))
	for i, s := range slots {
		done[i] = true
		s.add(b, verb, 0, 0, SlotTTL)
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
