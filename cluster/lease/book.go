package lease

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
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
}

// Return gives back the unspent units of a grant.
type Return struct {
	Key     bucket.Key
	ID      uint64
	Unspent int64
}

// Book is the leaseholder's side: what this node may spend of keys that others own, and which keys are hot enough for
// that. A key becomes hot by its checks, and has a line in the book until it cools down; other keys cost one lookup. The
// caller sends the Requests and Returns. Safe for concurrent use.
type Book struct {
	hot    int
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
func NewBook(hot int) *Book { return &Book{hot: hot} }

func (b *Book) shard(k bucket.Key) *bookShard { return &b.shards[k.Lo%bookShards] }

// life returns the lifetime to ask for under limits, 0 if a lease is not worth it.
func life(limits *bucket.Limits) time.Duration {
	d := min(MaxLife, limits.LongestLease())
	if d < 2*bucket.LeastLease {
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
	s := b.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := lineKey{r.Key, max(0, r.Reserve)}
	l := s.mu.lines[k]
	if l != nil && l.limits != r.Limits {
		b.endLocked(s, k, l) // the rule has changed
		l = nil
	}
	if l == nil {
		if l = b.openLocked(s, now, k, r, by != Leaseholder); l == nil {
			return Ask, "", ask, false
		}
	}
	l.own = by != Leaseholder
	life := life(r.Limits)
	if by != Again {
		l.count(now, r.Cost)
	}
	v = l.take(now, r.Cost, &s.mu.counts)
	if v == Denied {
		s.mu.counts.Denied++
	}
	if v != Ask {
		l.describe(now, v == Spent, d)
	}
	if asks = l.due(now, life, v == Ask); asks {
		l.asking, l.want = true, max(l.target(life)-l.left, r.Cost)
		ask.LeaseRequest = bucket.LeaseRequest{
			Key: r.Key, Limits: r.Limits, Want: l.want, Reserve: k.reserve, For: life, Unreplicated: r.Unreplicated, DenyLost: r.DenyLost,
		}
		ask.Rate, ask.Done = l.rate, l.takeDone()
	}
	return v, l.owner, ask, asks
}

// openLocked returns a new line for r if its key is hot, or own.
func (b *Book) openLocked(s *bookShard, now int64, k lineKey, r *bucket.Request, own bool) *line {
	rate, hot := b.warmLocked(s, now, k, r.Cost)
	if !hot && !own || len(s.mu.lines) >= maxLines || life(r.Limits) == 0 {
		return nil
	}
	if s.mu.lines == nil {
		s.mu.lines = make(map[lineKey]*line)
	}
	l := &line{limits: r.Limits, began: now, rate: rate, next: now}
	s.mu.lines[k] = l
	b.lines.Add(1)
	return l
}

// warmLocked counts a check of k, and reports whether k is hot, and its demand in units a second. Keys that share a slot
// cool each other down, so that the hottest stays.
func (b *Book) warmLocked(s *bookShard, now int64, k lineKey, cost int64) (rate int64, hot bool) {
	if s.mu.heat == nil {
		s.mu.heat = make([]heat, heats)
	}
	h := &s.mu.heat[k.key.Lo/bookShards%heats]
	switch expired := now-h.since >= int64(hotWindow); {
	case !expired && h.key != k && h.count > 1:
		h.count--
		return 0, false
	case expired || h.key != k:
		*h = heat{key: k, since: now}
	}
	h.count++
	h.units = min(h.units+cost, maxUnits)
	// Checks that come all at once share a record, and may be the only ones: that is no demand yet.
	if hot = h.count >= b.hot && now-h.since >= askEvery; hot {
		rate = int64(min(float64(h.units)/hotWindow.Seconds(), maxUnits))
		*h = heat{}
	}
	return rate, hot
}

// endLocked closes a line. Its unspent units are returned.
func (b *Book) endLocked(s *bookShard, k lineKey, l *line) {
	s.giveBackLocked(k.key, l.grants)
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
// g.For since the sending, so that the lease ends here no later than at the owner.
func (b *Book) Granted(sent, now int64, ask *Request, owner string, g *bucket.Grant) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.lines[lineKey{ask.Key, ask.Reserve}]
	if l == nil || l.limits != ask.Limits || !l.asking {
		s.mu.counts.Granted += uint64(g.Units)
		if g.Units > 0 {
			s.giveBackLocked(ask.Key, []grant{{id: g.ID, units: g.Units}})
		}
		return
	}
	s.giveBackLocked(ask.Key, l.granted(sent, now, life(l.limits), owner, g, &s.mu.counts))
}

// Failed reports that at now ask has no answer, and will get none.
func (b *Book) Failed(now int64, ask *Request) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.lines[lineKey{ask.Key, ask.Reserve}]; l != nil {
		l.asking, l.short, l.next = false, false, now+askEvery
	}
}

// Hot reports whether any key is hot: then Tick has something to do.
func (b *Book) Hot() bool { return b.lines.Load() > 0 }

// Tick ends the lines of keys that are not hot any more, and returns what must be given back. It must be called about
// every 20 ms while a key is Hot, and after Granted. A key stays hot down to a quarter of the demand that makes it hot.
func (b *Book) Tick(now int64) (back []Return) {
	cold := max(1, int64(float64(b.hot)/hotWindow.Seconds()/4))
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			l.expire(now, &s.mu.counts)
			l.roll(now)
			if l.rate < cold && !l.own || now-l.used > idle {
				b.endLocked(s, k, l)
				continue
			}
			s.giveBackLocked(k.key, l.surplus(now, life(l.limits)))
		}
	})
}

// Close ends all lines, and returns what must be given back.
func (b *Book) Close() []Return {
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			b.endLocked(s, k, l)
		}
	})
}

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
