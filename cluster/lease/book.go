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
	// Ask: the owner is to be asked, as without a lease.
	Ask Verdict = iota
	// Spent: it was admitted, and spent of a lease.
	Spent
	// Denied: the lease is used up, and the owner had no more just before.
	Denied
)

// Who says for whom a Book is asked.
type Who uint8

const (
	// Leaseholder: another node holds the key.
	Leaseholder Who = iota
	// Owner: this node holds the key, and others lease of it, so it must too, however hot the key is here.
	Owner
	// Again: as Owner, for the same check once more.
	Again
)

// Request asks an owner for a lease, or for more of one.
type Request struct {
	Key       bucket.Key
	Limits    *bucket.Limits
	Transient bool
	// DenyLost is as in a bucket.Request.
	DenyLost bool
	// Reserve is how many units must stay free, as in a bucket.LeaseRequest.
	Reserve int64
	// Want is how many units are wanted, Rate the demand in units a second.
	Want, Rate int64
	For        time.Duration
	// Done is a grant that was wholly spent, 0 if there is none: a Return of nothing of it.
	Done uint64
}

// Answer is what the owner has said to a Request.
type Answer struct {
	// ID, Units and For are as in a bucket.Grant.
	ID       uint64
	Units    int64
	For      time.Duration
	Decision bucket.Decision
	// RetryAfter is when there may be units if there were none.
	RetryAfter time.Duration
	// Owner is the name of the node that grants.
	Owner string
}

// Return gives back what is left of a grant.
type Return struct {
	Key     bucket.Key
	ID      uint64
	Unspent int64
}

// Book is the leaseholder's side: what this node may spend of keys that others hold, and which keys are hot enough
// for that. A key becomes hot by what is asked for it, and a line in the book is kept for it until it cools down;
// other keys cost one look. What a line says to do, the caller does: Requests and Returns. Safe for
// concurrent use.
type Book struct {
	cfg    Config
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
		counts counts
		// back is to be returned.
		back []Return
	}
}

// lineKey names a line: a key, and what must stay free of it. Checks of a pool leave more or less, by their priority.
type lineKey struct {
	key     bucket.Key
	reserve int64
}

func (r *Request) line() lineKey { return lineKey{r.Key, r.Reserve} }

// count counts units. What was granted was spent, returned, or expired, or is there still.
type counts struct{ granted, spent, returned, expired, denied uint64 }

// heat counts the checks of a key that has no line.
type heat struct {
	key   lineKey
	since int64
	count int
	units int64
}

// NewBook returns an empty book.
func NewBook(c Config) *Book { return &Book{cfg: c.WithDefaults()} }

func (b *Book) shard(k bucket.Key) *bookShard { return &b.shards[k.Lo%bookShards] }

// life returns the lifetime to ask for under limits, 0 if they are not worth granting.
func (b *Book) life(limits *bucket.Limits) time.Duration {
	d := min(b.cfg.Life, limits.LongestLease())
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

// Take tries to answer r, a check with a cost above 0, at now, with its decision in d, which is zero. asks is
// whether the caller shall send ask, and tell of the answer by Granted or Failed.
func (b *Book) Take(now int64, r *bucket.Request, who Who, d *bucket.Decision) (v Verdict, owner string, ask Request, asks bool) {
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
		if l = b.openLocked(s, now, k, r, who != Leaseholder); l == nil {
			return Ask, "", ask, false
		}
	}
	l.own = who != Leaseholder
	life := b.life(r.Limits)
	if who != Again {
		l.count(now, r.Cost)
	}
	switch v = l.take(now, r.Cost, &s.mu.counts); v {
	case Spent:
		l.admitted(now, d)
	case Denied:
		s.mu.counts.denied++
		l.deniedBy(now, d)
	}
	if asks = l.due(now, &b.cfg, life, v == Ask); asks {
		l.asking, l.want = true, max(l.target(&b.cfg, life)-l.left, r.Cost)
		ask = Request{r.Key, r.Limits, r.Transient, r.DenyLost, k.reserve, l.want, l.rate, life, l.settle()}
	}
	return v, l.owner, ask, asks
}

// openLocked returns a new line for r if its key is hot, or own.
func (b *Book) openLocked(s *bookShard, now int64, k lineKey, r *bucket.Request, own bool) *line {
	rate, hot := b.warmLocked(s, now, k, r.Cost)
	if !hot && !own || len(s.mu.lines) >= maxLines || b.life(r.Limits) == 0 {
		return nil
	}
	if s.mu.lines == nil {
		s.mu.lines = make(map[lineKey]*line)
	}
	l := &line{limits: r.Limits, transient: r.Transient, began: now, rate: rate, next: now}
	s.mu.lines[k] = l
	b.lines.Add(1)
	return l
}

// warmLocked counts a check of k, and reports whether it is hot, and how many units a second are asked
// for. Keys that share a place cool each other down, so that the hottest stays.
func (b *Book) warmLocked(s *bookShard, now int64, k lineKey, cost int64) (rate int64, hot bool) {
	if s.mu.heat == nil {
		s.mu.heat = make([]heat, heats)
	}
	h := &s.mu.heat[k.key.Lo/bookShards%heats]
	switch {
	case now-h.since >= int64(b.cfg.HotWindow):
		*h = heat{k, now, 0, 0}
	case h.key != k && h.count > 1:
		h.count--
		return 0, false
	case h.key != k:
		*h = heat{k, now, 0, 0}
	}
	h.count++
	h.units = min(h.units+cost, 1<<40)
	// What comes all at once shares a record, and may be all that comes: that is no demand yet.
	if hot = h.count >= b.cfg.Hot && now-h.since >= int64(b.cfg.Every); hot {
		rate = int64(min(float64(h.units)/b.cfg.HotWindow.Seconds(), 1<<40))
		*h = heat{}
	}
	return rate, hot
}

// endLocked closes a line. What is left is returned.
func (b *Book) endLocked(s *bookShard, k lineKey, l *line) {
	s.giveBackLocked(k.key, l.grants)
	delete(s.mu.lines, k)
	b.lines.Add(-1)
}

// giveBackLocked notes what is to be returned.
func (s *bookShard) giveBackLocked(k bucket.Key, grants []grant) {
	for _, g := range grants {
		s.mu.counts.returned += uint64(g.units)
		s.mu.back = append(s.mu.back, Return{k, g.id, g.units})
	}
}

// Granted takes the answer to ask, which was sent at sent and came at now. Units may be spent for a.For from the
// sending, so that the lease has ended here when it ends at the owner.
func (b *Book) Granted(sent, now int64, ask *Request, a *Answer) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.lines[ask.line()]
	if l == nil || l.limits != ask.Limits || !l.asking {
		s.mu.counts.granted += uint64(a.Units)
		if a.Units > 0 {
			s.giveBackLocked(ask.Key, []grant{{id: a.ID, units: a.Units}})
		}
		return
	}
	s.giveBackLocked(ask.Key, l.granted(sent, now, &b.cfg, b.life(l.limits), a, &s.mu.counts))
}

// Failed says that at now ask has no answer, and will get none.
func (b *Book) Failed(now int64, ask *Request) {
	s := b.shard(ask.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.lines[ask.line()]; l != nil {
		l.failed(now, &b.cfg)
	}
}

// Hot reports whether any key is hot: then Tick has something to do.
func (b *Book) Hot() bool { return b.lines.Load() > 0 }

// Tick ends the lines of keys that are not hot any more, and returns what is to be given back. It is
// to be called every 20 ms or so while a key is Hot, and after Granted.
func (b *Book) Tick(now int64) (back []Return) {
	if !b.Hot() {
		return b.collect(nil)
	}
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			l.expire(now, &s.mu.counts)
			l.roll(now)
			if cold := l.rate < b.coldRate() && !l.own; cold || now-l.used > int64(idle) {
				b.endLocked(s, k, l)
				continue
			}
			s.giveBackLocked(k.key, l.surplus(now, &b.cfg, b.life(l.limits)))
		}
	})
}

// coldRate is the demand, in units a second, below which a key is not hot any more: a quarter of what makes
// it hot, so that none goes back and forth.
func (b *Book) coldRate() int64 {
	return max(1, int64(float64(b.cfg.Hot)/b.cfg.HotWindow.Seconds()/4))
}

// Close ends all lines, and returns what is to be given back.
func (b *Book) Close() []Return {
	return b.collect(func(s *bookShard) {
		for k, l := range s.mu.lines {
			b.endLocked(s, k, l)
		}
	})
}

// collect calls f, which may be nil, for each shard, and takes what is to be returned then.
func (b *Book) collect(f func(*bookShard)) (back []Return) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		if f != nil {
			f(s)
		}
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
		sum.Granted += t.granted
		sum.Spent += t.spent
		sum.Returned += t.returned
		sum.Expired += t.expired
		sum.Denied += t.denied
		sum.Keys += len(s.mu.lines)
		for _, l := range s.mu.lines {
			sum.Live += l.left
		}
		s.mu.Unlock()
	}
	return sum
}
