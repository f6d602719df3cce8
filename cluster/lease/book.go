package lease

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Verdict says what a Book has done with a check.
type Verdict uint8

const (
	// Ask: the owner must decide, as without a lease.
	Ask Verdict = iota
	// Spent: the check was admitted, and its cost spent of a lease.
	Spent
	// Denied: the lease is used up, and the owner had no more just before.
	Denied
)

// Party is the party for which a Book is asked.
type Party uint8

const (
	// Leaseholder: another node owns the key.
	Leaseholder Party = iota
	// Owner: this node owns the key and others lease of it, so it must lease too, however hot the key is here.
	Owner
	// Again: as Owner, for the same check once more.
	Again
)

// Request asks an owner for a lease, or for more of one. Its Part and Whole are the owner's to set.
type Request struct {
	bucket.LeaseRequest
	Rate int64  // the demand, in units a second
	Done uint64 // a grant that was fully spent, 0 if there is none: it is returned by this request
	// Client is the ID of the lease if it is for a client, whose demand is not in Rate; 0 for a node.
	Client uint64
	// Moved: it is in place of one to another book.
	Moved bool
	over  bool // more is wanted than is asked for
}

// clientWhole: a client gets at most one of so many parts of what a node has leased of another region.
const clientWhole = 4

// Return gives back the unspent units of a grant.
type Return struct {
	Key     bucket.Key
	ID      uint64
	Unspent int64
}

// Held is what a check has spent of a lease, if anything.
type Held struct {
	book  *Book
	key   lineKey
	cost  int64
	parts []grant
}

// Any reports whether anything was spent.
func (h *Held) Any() bool { return h.book != nil }

// GiveBack lets what was spent be spent again, and must be called once. It reports false if that is too late for a part: the lease has ended,
// or the owner was told that all of it is spent.
func (h *Held) GiveBack(now int64) bool {
	s := h.book.shard(h.key.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.lines[h.key]
	if l == nil {
		return false
	}
	l.expire(now, &s.mu.counts)
	back := l.giveBack(now, h.parts)
	s.mu.counts.Spent -= uint64(back)
	return back == h.cost
}

// Book is the leaseholder's side: what this node may spend of keys that others own, and which keys are hot enough for
// that. A key becomes hot by its checks, and has a line in the book until it cools down; other keys cost one lookup. The
// caller sends the Requests and Returns. Safe for concurrent use.
type Book struct {
	hot    int
	pace   atomic.Pointer[pace]
	lines  atomic.Int64
	shards [bookShards]bookShard
}

const (
	bookShards = 64
	// maxLines bounds the hot keys of a shard, heats those that may become hot.
	maxLines = 64
	heats    = 64
)

type bookShard struct {
	mu struct {
		sync.Mutex
		lines  map[lineKey]*line
		heat   []heat // nil, or heats of them
		counts Stats
		back   []Return // to be returned
		sub    uint64   // the last ID of a lease out of a lease
	}
}

// lineKey names a line: a key, and the units of it that must stay free. These depend on the priority of a check in a pool.
type lineKey struct {
	key     bucket.Key
	reserve int64
}

// heat counts the checks of a key that has no line.
type heat struct {
	key   lineKey
	since int64
	count int
	units int64
}

// NewBook returns an empty book in which that many checks within 100 ms make a key hot, e.g. DefaultHot.
func NewBook(hot int) *Book {
	b := &Book{hot: hot}
	b.pace.Store(&nodePace)
	return b
}

// hotRegion is how many checks of a key within the life of a lease make it hot in a book of another region.
const hotRegion = 2

// NewRegionBook returns a book of keys whose owners are in a region that is rtt away.
func NewRegionBook(rtt time.Duration) *Book {
	b := &Book{hot: hotRegion}
	b.pace.Store(regionPace(rtt))
	return b
}

// SetRTT sets how far away the owners of the keys of a region's book are.
func (b *Book) SetRTT(rtt time.Duration) { b.pace.Store(regionPace(rtt)) }

// region reports whether b is of another region.
func (b *Book) region() bool { return b.pace.Load() != &nodePace }

func (b *Book) shard(k bucket.Key) *bookShard { return &b.shards[k.Lo%bookShards] }

// lifeOf returns the lifetime to ask for under limits, 0 if a lease is not worth it.
func (p *pace) lifeOf(limits *bucket.Limits) time.Duration {
	longest := limits.LongestLease()
	if p != &nodePace {
		longest = limits.LongestFarLease()
	}
	d := min(p.life, longest)
	if d < max(p.worth, 2*bucket.LeastLease) {
		return 0
	}
	return d
}

// Left returns how many units of leases of key may be spent at now, and whether there is a lease.
func (b *Book) Left(now int64, key bucket.Key) (units int64, leased bool) {
	s := b.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, l := range s.mu.lines {
		if k.key != key {
			continue
		}
		for _, g := range l.grants {
			if now < g.until {
				units, leased = units+g.units, true
			}
		}
	}
	return units, leased
}

// Take tries to answer r, a check with a cost above 0, at now, and writes its decision to d, which must be zero. If asks,
// the caller must send ask, and report the outcome by Granted or Failed.
func (b *Book) Take(now int64, r *bucket.Request, by Party, d *bucket.Decision) (v Verdict, owner string, ask Request, asks bool) {
	return b.TakeTimes(now, r, 1, by, nil, d)
}

// TakeTimes is Take for so many equal checks, 1 to bucket.MaxTimes, of which all are admitted or none; or, if times is 0, for one of those
// that were counted already. With h, which must be zero, what is spent can be given back.
func (b *Book) TakeTimes(now int64, r *bucket.Request, times int64, by Party, h *Held, d *bucket.Decision) (v Verdict, owner string, ask Request, asks bool) {
	if r.Cost > maxUnits { // their sum could overflow
		return Ask, "", ask, false
	}
	s := b.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := lineKey{r.Key, max(0, r.Reserve)}
	l := b.lineLocked(s, now, k, r, times, by != Leaseholder)
	if l == nil {
		return Ask, "", ask, false
	}
	l.own = by != Leaseholder
	life := l.pace.lifeOf(r.Limits)
	if by != Again {
		l.count(now, r.Cost, times)
	}
	cost := r.Cost * max(1, times)
	var parts *[]grant
	if h != nil {
		parts = &h.parts
	}
	if v = l.take(now, cost, parts, &s.mu.counts); v == Spent && h != nil {
		h.book, h.key, h.cost = b, k, cost
	}
	if v == Denied {
		s.mu.counts.Denied++
	}
	if v != Ask {
		l.describe(now, v == Spent, d)
	}
	if asks = by != Again && l.due(now, life, v == Ask); asks {
		ask = l.ask(now, k, life, cost, r.Unreplicated, r.DenyLost)
	}
	return v, l.owner, ask, asks
}

// ask returns the request that is due, for least units or more.
func (l *line) ask(now int64, k lineKey, life time.Duration, least int64, unreplicated, denyLost bool) (ask Request) {
	target, over := l.target(life)
	want := max(target-l.lasting(now), least)
	l.asking, l.asked = l.asking+1, now
	ask.LeaseRequest = bucket.LeaseRequest{
		Key: k.key, Limits: l.limits, Want: want, Reserve: k.reserve, For: life, Unreplicated: unreplicated, DenyLost: denyLost,
	}
	ask.Rate, ask.Done, ask.over = l.rate+l.subRate, l.takeDone(now), over
	return ask
}

// Grant makes a lease out of what is leased in b, to a leaseholder whose request is r. Part of Whole is its part in the demand, which is
// Whole units a second. Without units, ok means that the owner has denied more just before. If asks, the caller must send ask, as for Take.
func (b *Book) Grant(now int64, r *Request) (g bucket.Grant, ok bool, ask Request, asks bool) {
	s := b.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := lineKey{r.Key, max(0, r.Reserve)}
	l := b.lineLocked(s, now, k, &bucket.Request{Limits: r.Limits, Cost: 1}, 1, true)
	if l == nil {
		return g, false, ask, false
	}
	life := l.pace.lifeOf(r.Limits)
	l.roll(now)
	l.expire(now, &s.mu.counts)
	l.used = now
	id, part, whole := r.Client, int64(1), int64(clientWhole)
	if id == 0 {
		l.subRate, l.subAt = r.Whole, now
		// Another node may have made one of the same key before: an ID that is a time differs from its.
		s.mu.sub = max(s.mu.sub+1, uint64(now))
		id, part, whole = s.mu.sub, r.Part, r.Whole
	}
	if g.Units, g.For = l.grantSub(now, id, r.Want, part, whole, r.For); r.Client != 0 {
		// Until it gets all that it wants; it would ask again for the rest, which must not count twice for long.
		l.wanted = min(l.wanted+max(1, min(r.Want, 2*g.Units)), maxUnits)
	}
	if g.Units > 0 {
		g.ID, ok = id, true
		s.mu.counts.Spent += uint64(g.Units)
		l.describe(now, true, &g.Decision)
	} else if l.short && now < l.denies {
		ok = true
		l.describe(now, false, &g.Decision)
		g.RetryAfter = g.Decision.RetryAfter
	}
	if asks = l.due(now, life, g.Units == 0); asks {
		ask = l.ask(now, k, life, 1, r.Unreplicated, r.DenyLost)
	}
	return g, ok, ask, asks
}

// Settle ends the lease id of a client, of which so many units were spent. It reports how many it had, 0 if it has ended, and how many may be
// spent again.
func (b *Book) Settle(now int64, key bucket.Key, id uint64, spent int64) (units, back int64) {
	s := b.shard(key)
	s.mu.Lock()
	for k, l := range s.mu.lines {
		if i := slices.IndexFunc(l.subs, func(u sub) bool { return u.id == id }); i >= 0 && k.key == key {
			units = l.subs[i].units
		}
	}
	s.mu.Unlock()
	if units == 0 {
		return 0, 0
	}
	return units, b.TakeBack(now, key, id, max(0, units-spent))
}

// TakeBack ends lease id, which Grant has made of key, of which unspent units will not be spent. It returns those that may be spent again.
func (b *Book) TakeBack(now int64, key bucket.Key, id uint64, unspent int64) (back int64) {
	s := b.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, l := range s.mu.lines {
		if k.key == key {
			l.expire(now, &s.mu.counts)
			back += l.takeBack(now, id, unspent)
		}
	}
	s.mu.counts.Spent -= uint64(back)
	return back
}

// lineLocked returns the line of k, nil if there is none and r opens none.
func (b *Book) lineLocked(s *bookShard, now int64, k lineKey, r *bucket.Request, times int64, own bool) *line {
	l := s.mu.lines[k]
	if l != nil && !l.limits.Equal(r.Limits) {
		b.endLocked(s, k, l) // the rule has changed
		l = nil
	}
	if l == nil {
		l = b.openLocked(s, now, k, r, times, own)
	}
	if l != nil {
		l.pace = b.pace.Load()
	}
	return l
}

// openLocked returns a new line for r if its key is hot, or own.
func (b *Book) openLocked(s *bookShard, now int64, k lineKey, r *bucket.Request, times int64, own bool) *line {
	rate, hot := b.warmLocked(s, now, k, r.Cost, times)
	if !hot && !own || len(s.mu.lines) >= b.pace.Load().lines || b.pace.Load().lifeOf(r.Limits) == 0 {
		return nil
	}
	if s.mu.lines == nil {
		s.mu.lines = make(map[lineKey]*line)
	}
	l := &line{limits: r.Limits, pace: b.pace.Load(), began: now, rate: rate, peak: rate, next: now}
	s.mu.lines[k] = l
	b.lines.Add(1)
	return l
}

// warmLocked counts so many checks of k, and reports whether k is hot, and its demand in units a second. Keys that share a slot
// cool each other down, so that the hottest stays.
func (b *Book) warmLocked(s *bookShard, now int64, k lineKey, cost, times int64) (rate int64, hot bool) {
	if s.mu.heat == nil {
		s.mu.heat = make([]heat, heats)
	}
	h := &s.mu.heat[k.key.Lo/bookShards%heats]
	window := b.pace.Load().window
	switch expired := now-h.since >= int64(window); {
	case !expired && h.key != k && h.count > 1:
		h.count--
		return 0, false
	case expired || h.key != k:
		*h = heat{key: k, since: now}
	}
	h.count += int(times)
	h.units = min(h.units+cost*times, maxUnits)
	// Checks that come all at once share a record, and may be the only ones: that is no demand yet.
	if hot = h.count >= b.hot && (now-h.since >= askEvery || b.region()); hot {
		if b.region() {
			window = max(time.Duration(now-h.since), 100*time.Millisecond)
		}
		rate = int64(min(float64(h.units)/window.Seconds(), maxUnits))
		*h = heat{}
	}
	return rate, hot
}

// endLocked closes a line. Its unspent units are returned.
func (b *Book) endLocked(s *bookShard, k lineKey, l *line) {
	s.giveBackLocked(k.key, l.release())
	delete(s.mu.lines, k)
	b.lines.Add(-1)
}

// giveBackLocked queues grants to be returned.
func (s *bookShard) giveBackLocked(k bucket.Key, grants []grant) {
	for _, g := range grants {
		s.mu.counts.Returned += uint64(g.units)
		s.mu.back = append(s.mu.back, Return{k, g.id, g.units})
	}
}

// Granted takes the grant of owner in answer to ask, which was sent at sent; it arrived at now. Its units may be spent for
// g.For since the sending, so that the lease ends here no later than at the owner. newest is false if the answer to a later request came before.
func (b *Book) Granted(sent, now int64, ask *Request, owner string, g *bucket.Grant) (newest bool) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.lines[lineKey{ask.Key, ask.Reserve}]
	if l == nil || !l.limits.Equal(ask.Limits) {
		s.mu.counts.Granted += uint64(g.Units)
		if g.Units > 0 {
			s.giveBackLocked(ask.Key, []grant{{id: g.ID, units: g.Units}})
		}
		return true
	}
	s.giveBackLocked(ask.Key, l.granted(sent, now, l.pace.lifeOf(l.limits), ask, owner, g, &s.mu.counts))
	return l.answered == sent
}

// Failed reports that at now ask has no answer, and will get none.
func (b *Book) Failed(now int64, ask *Request) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.lines[lineKey{ask.Key, ask.Reserve}]; l != nil && l.limits.Equal(ask.Limits) {
		l.asking, l.short, l.next = max(0, l.asking-1), l.short && l.region(), now+l.pace.every
		l.failed = now
	}
}

// Move returns the request for a lease in place of ask, which another book has made, and whose key has its owners here.
func (b *Book) Move(now int64, ask *Request) (moved Request, asks bool) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := lineKey{ask.Key, ask.Reserve}
	l := b.lineLocked(s, now, k, &bucket.Request{Limits: ask.Limits, Cost: 1}, 1, true)
	if l == nil {
		return moved, false
	}
	l.used, l.rate = now, max(l.rate, ask.Rate)
	life := l.pace.lifeOf(l.limits)
	if asks = l.due(now, life, true); asks {
		moved = l.ask(now, k, life, 1, ask.Unreplicated, ask.DenyLost)
		moved.Moved = true
	}
	return moved, asks
}

// Hot reports whether any key is hot: then Tick has something to do.
func (b *Book) Hot() bool { return b.lines.Load() > 0 }

// Tick ends the lines of keys that are not hot any more, and returns what must be given back. It must be called about
// every 20 ms while a key is Hot, and after Granted. A key stays hot down to a quarter of the demand that makes it hot.
func (b *Book) Tick(now int64) (back []Return) {
	cold := max(1, int64(float64(b.hot)/hotWindow.Seconds()/4))
	if b.region() {
		cold = 0
	}
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			l.expire(now, &s.mu.counts)
			l.roll(now)
			if l.rate < cold && !l.own || now-l.used > l.pace.idle {
				b.endLocked(s, k, l)
				continue
			}
			s.giveBackLocked(k.key, l.surplus(now, l.pace.lifeOf(l.limits)))
			for b.region() {
				id := l.takeDone(now)
				if id == 0 {
					break
				}
				s.mu.back = append(s.mu.back, Return{k.key, id, 0})
			}
		}
	})
}

// Drop ends the lines of keys that f does not keep, and returns what must be given back.
func (b *Book) Drop(keep func(bucket.Key) bool) []Return {
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			if !keep(k.key) {
				b.endLocked(s, k, l)
			}
		}
	})
}

// Close ends all lines, and returns what must be given back.
func (b *Book) Close() []Return { return b.Drop(func(bucket.Key) bool { return false }) }

// collect calls f for each shard, and takes what must be returned then.
func (b *Book) collect(f func(*bookShard)) (back []Return) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		f(s)
		back = append(back, s.mu.back...)
		s.mu.back = nil
		s.mu.Unlock()
	}
	return back
}

// Stats counts units since NewBook, but for what is marked as of now.
type Stats struct {
	// Granted units were Spent, Returned or Expired, or are Live now.
	Granted, Spent, Returned, Expired uint64
	Live                              int64
	// Denied checks found the lease used up.
	Denied uint64
	// Keys are hot now.
	Keys int
}

// Stats returns the book's counts.
func (b *Book) Stats() (sum Stats) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		t := &s.mu.counts
		sum.Granted += t.Granted
		sum.Spent += t.Spent
		sum.Returned += t.Returned
		sum.Expired += t.Expired
		sum.Denied += t.Denied
		sum.Keys += len(s.mu.lines)
		for _, l := range s.mu.lines {
			sum.Live += l.left
		}
		s.mu.Unlock()
	}
	return sum
}
