package limiter

import (
	"cmp"
	"context"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// lines are those who wait for slots, by key: see line.
type lines struct {
	mu    sync.Mutex
	byKey map[bucket.Key]*line
	count atomic.Int64 // of byKey
	last  uint64       // of Waiter.number
	fence uint64       // the last one
}

// line is the requests for slots of a key that this node owns, in fair order: tenants by the start
// of their next request in virtual time, and the requests of each by arrival. While it is not busy,
// a timer or Limiter.Wake lets it go on. The mutex of lines guards it.
type line struct {
	key     bucket.Key
	tenants map[string]*tenant
	waiting []*tenant // those with requests, sorted
	weight  float64   // of those
	clock   float64   // virtual time, which each unit moves on by its part of weight
	given   int       // number of slots since one went to the oldest request, at most oldestEach
	size    int       // number of requests
	aside   int       // number of requests that other keys have denied: they come back
	busy    bool      // a goroutine serves it
	again   bool      // a unit may be free since that one has asked
	gather  time.Time // nobody is served before
	timer   *time.Timer
	denial  bucket.Decision // the last one
}

const (
	// fewTenants is how many tenants a line remembers at least, if they have had more than their part.
	fewTenants = 8
	// oldestEach is after how many slots one goes to the request that has waited longest, whatever the
	// weights of later ones.
	oldestEach = 64
)

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
		if len(k.tenants) > 2*(len(k.waiting)+fewTenants) {
			k.forgetLocked()
		}
		t = new(tenant)
		k.tenants[w.request.Tenant] = t
	}
	w.line, w.tenant = k, t
	if len(t.requests) > 0 {
		k.leaveLocked(t) // w may be its first, and begin as early as another tenant's
	} else {
		t.start = max(t.start, k.clock)
	}
	t.weight = float64(max(1, w.request.Weight))
	insert(&t.requests, w, (*Waiter).compare)
	k.enterLocked(t)
	k.size++
}

// nextLocked returns the request that is served next.
func (k *line) nextLocked() *Waiter {
	t := k.waiting[0]
	if k.given == oldestEach {
		t = slices.MinFunc(k.waiting, func(a, b *tenant) int { return a.requests[0].compare(b.requests[0]) })
	}
	return t.requests[0]
}

// enterLocked and leaveLocked change waiting.
func (k *line) enterLocked(t *tenant) {
	insert(&k.waiting, t, (*tenant).compare)
	k.weight += t.weight
}

func (k *line) leaveLocked(t *tenant) {
	remove(&k.waiting, t, (*tenant).compare)
	k.weight -= t.weight
}

// forgetLocked forgets tenants without requests: those that would begin at the clock, and of the
// others, if they are more than those that wait, the nearest to it.
func (k *line) forgetLocked() {
	var ahead []string
	for name, t := range k.tenants {
		switch {
		case len(t.requests) > 0:
		case t.start <= k.clock:
			delete(k.tenants, name)
		default:
			ahead = append(ahead, name)
		}
	}
	slices.SortFunc(ahead, func(a, b string) int { return cmp.Compare(k.tenants[a].start, k.tenants[b].start) })
	for _, name := range ahead[:max(0, len(ahead)-len(k.waiting)-fewTenants)] {
		delete(k.tenants, name)
	}
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
	if k.size--; units > 0 { // were it the last start alone, ever new tenants would pass others
		k.clock = max(k.clock, t.start) + float64(units)/k.weight
		k.given = (k.given + 1) % (oldestEach + 1)
	}
	k.leaveLocked(t)
	remove(&t.requests, w, (*Waiter).compare)
	if units > 0 {
		t.start += float64(units) / t.weight
	}
	if len(t.requests) > 0 {
		k.enterLocked(t)
	}
}

// nextFenceLocked returns a fence above all before.
func (q *lines) nextFenceLocked() uint64 {
	if next := q.fence + 1; guard.On(guard.FenceRises) {
		q.fence = max(next, uint64(time.Now().UnixNano()))
	} else {
		q.fence = uint64(time.Now().UnixNano())
	}
	return q.fence
}

// Cancel ends a request that is not answered. It returns false for one that is, or is being answered, such as nil.
func (w *Waiter) Cancel() bool {
	if w == nil {
		return false
	}
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

// serveFirstLocked asks for a slot of the first one in k, and returns how long to wait before the next, 0 for not at all.
func (l *Limiter) serveFirstLocked(k *line) time.Duration {
	q, w := &l.lines, k.nextLocked()
	w.asking = true
	q.mu.Unlock()
	look := w.pause > 0 && w.request.turn == nil // since reservations that are canceled are remembered for a while
	a, r := l.tryFirst(context.Background(), w.batch, &w.request, look)
	q.mu.Lock()
	w.asking = false
	switch {
	case w.over: // it was canceled meanwhile
		q.mu.Unlock()
		if a.ID != "" {
			l.ReleaseSlots(context.Background(), []Slot{a.Slot})
		}
		w.batch.Release()
		q.mu.Lock()
		return 0
	case a.Err == nil && r.Allowed:
		w.removeLocked(w.request.Units)
		a.Fence = q.nextFenceLocked()
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
