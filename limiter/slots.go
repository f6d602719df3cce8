package limiter

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/leaf/guard"
)

const (
	// SlotTTL is how long a slot lasts after it was given or renewed.
	SlotTTL = 2 * time.Second
	// MaxWaiting is the most requests that wait for slots of one key.
	MaxWaiting = 1 << 14
	// MaxTenant is the most bytes of the name of a tenant, MaxWeight the largest weight.
	MaxTenant, MaxWeight = 128, 1_000_000

	// gatherFor is how long a line waits for others when the first request comes from a line of another node.
	gatherFor = 100 * time.Millisecond
	// A line asks again after retrySlot where there was no decision, and lastRetry at the latest.
	retrySlot, lastRetry = 50 * time.Millisecond, time.Second
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
	waiting heapOf[*tenant] // those with requests
	clock   float64         // virtual time
	size    int             // number of requests
	busy    bool            // a goroutine serves it
	again   bool            // a unit may be free since that one has asked
	gather  time.Time       // nobody is served before
	timer   *time.Timer
	denial  bucket.Decision // the last one
}

// tenant is those of a line with one SlotRequest.Tenant.
type tenant struct {
	weight, start float64
	requests      heapOf[*Waiter]
	place         int
}

func (t *tenant) before(o *tenant) bool {
	return t.start < o.start || t.start == o.start && t.requests[0].before(o.requests[0])
}
func (t *tenant) moveTo(i int) { t.place = i }

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
	place   int
	waited  bool // it was denied at least once, or came behind others
	asking  bool // its line asks for it just now
	over    bool // it is answered, or canceled
}

func (w *Waiter) before(o *Waiter) bool {
	return w.arrival.Before(o.arrival) || w.arrival.Equal(o.arrival) && w.number < o.number
}
func (w *Waiter) moveTo(i int) { w.place = i }

// ordered is an item of a heapOf, which knows its place there.
type ordered[T any] interface {
	before(T) bool
	moveTo(int)
}

var (
	_ ordered[*tenant] = (*tenant)(nil)
	_ ordered[*Waiter] = (*Waiter)(nil)
)

// heapOf is a heap.Interface.
type heapOf[T ordered[T]] []T

func (h heapOf[T]) Len() int           { return len(h) }
func (h heapOf[T]) Less(i, j int) bool { return h[i].before(h[j]) }
func (h heapOf[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].moveTo(i)
	h[j].moveTo(j)
}

func (h *heapOf[T]) Push(x any) {
	x.(T).moveTo(len(*h))
	*h = append(*h, x.(T))
}

func (h *heapOf[T]) Pop() any {
	list := *h
	last := list[len(list)-1]
	clear(list[len(list)-1:])
	*h = list[:len(list)-1]
	return last
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
	heap.Push(&t.requests, w)
	k.size++
	if len(t.requests) == 1 {
		t.start = max(t.start, k.clock)
		heap.Push(&k.waiting, t)
	} else {
		heap.Fix(&k.waiting, t.place) // it may be the first, and begin as early as another tenant's
	}
}

// removeLocked takes w out of its line. units are those that it has got, 0 for none.
func (w *Waiter) removeLocked(units int64) {
	k, t := w.line, w.tenant
	w.over = true
	heap.Remove(&t.requests, w.place)
	k.size--
	if units > 0 {
		k.clock = max(k.clock, t.start)
		t.start += float64(units) / t.weight
	}
	if len(t.requests) == 0 {
		heap.Remove(&k.waiting, t.place)
	} else {
		heap.Fix(&k.waiting, t.place)
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
	case k.size > 0 && !r.Wait, k.size >= MaxWaiting:
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
	case len(r.Tenant) > MaxTenant:
		return key, &Error{Code: Invalid, Field: "tenant", Message: fmt.Sprintf("%d bytes; want at most %d", len(r.Tenant), MaxTenant)}
	}
	return l.counterKey(b, c, x.Rule), nil
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
	if w.line.size == 0 && !w.line.busy {
		q.dropLocked(w.line)
	}
	return true
}

// dropLocked forgets the line k, which is empty and not busy.
func (q *lines) dropLocked(k *line) {
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
	q.dropLocked(k)
}

// serveFirstLocked asks for a slot of the first one in k, and returns how long to wait before the next, 0 for not at all.
func (l *Limiter) serveFirstLocked(k *line) time.Duration {
	q, w := &l.lines, k.waiting[0].requests[0]
	w.asking = true
	q.mu.Unlock()
	began := time.Now()
	got, err := l.Reserve(context.Background(), w.batch, ReserveRequest{Units: w.request.Units, TTL: SlotTTL})
	q.mu.Lock()
	w.asking = false
	a := SlotAnswer{ID: got.ID, Until: began.Add(got.ExpiresAfter), Err: w.batch.Results[0].Err}
	if err != nil {
		a.Err = errorOf(err)
	}
	if got.ID != "" {
		a.Slot, _ = l.Slot(got.ID) // it is this node's
	}
	r := &w.batch.Results[0]
	allowed := a.Err == nil && r.Allowed
	switch {
	case w.over: // it was canceled meanwhile
		q.mu.Unlock()
		if got.ID != "" {
			l.ReleaseSlots(context.Background(), []Slot{a.Slot})
		}
		w.batch.Release()
		q.mu.Lock()
		return 0
	case allowed:
		w.removeLocked(w.request.Units)
		if next := q.fence + 1; guard.On(guard.FenceRises) {
			q.fence = max(next, uint64(time.Now().UnixNano()))
		} else {
			q.fence = uint64(time.Now().UnixNano())
		}
		a.Fence = q.fence
	case w.request.Wait && a.Err != nil && (a.Err.Code == Unavailable || a.Err.Code == Overloaded):
		return retrySlot
	case a.Err == nil && r.Source == check.Forwarded:
		l.moveLocked(k, r.Owner)
		return 0
	case w.request.Wait && a.Err == nil && !r.Never():
		k.denial, w.waited = r.Decision, true
		return min(max(r.RetryAfter, time.Millisecond), lastRetry)
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
		for _, c := range s.cells {
			b.Requests = append(b.Requests, check.Request{Sync: c.sync, Request: bucket.Request{
				Key: c.key, Verb: verb, Unreplicated: c.unreplicated, Reservation: &bucket.Reservation{ID: s.id, For: SlotTTL},
			}})
		}
	}
	if len(b.Requests) > 0 {
		b.Answers = make([]check.Answer, len(b.Requests))
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
