// Package share is what a node admits of keys whose owners it cannot ask: a share of what was left of a limit when
// the owner was last heard, and the deferred charges that bring what was so admitted to the owner later.
//
// It decides when a process may give shares, how large they are, what it remembers of owners' answers, and what is
// still to be charged. It leaves to others which checks are answered so, and to send charges (cluster), and to write them to disk
// (cmd). It reads no clock and has no goroutine: time is a parameter, in ns on one clock that never steps back.
package share

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/rules"
)

// unknown stands for a number of units left of which nothing is known.
const unknown int64 = -1

// Config says how Shares are made.
type Config struct {
	// Counters are those of the node: of what it owns, and replicas. Its shards are the partitions.
	Counters *bucket.Table
	// Shards are those of the tables of shares, and MaxKeys is how many keys these, and the deferred charges, have at most.
	Shards, MaxKeys int
	// LastAnswers is of how many limits of keys it is remembered what their owners said last. 0 means 65,536.
	LastAnswers int
	// Changed, if not nil, is called whenever the deferred charges that are to be on disk have changed. It must not block.
	Changed func()
}

// Shares decides what a node admits without owners: of each limit a part of what was left when the owner was last heard. It is safe
// for concurrent use.
type Shares struct {
	When    Timing
	Answers Answers
	Charges Deferred

	cfg Config
	// given has a counter for each key of which a share was given: under the limits divided by the voters, and spent so far
	// that the share is left. What it admits since comes back as the algorithm says, at the rate divided by the voters.
	given *bucket.Table
	// admitted is what the node has admitted without an owner, and no owner has acknowledged.
	admitted *bucket.Table
	// mu keeps shares from being forgotten while a check is answered by one: what is gone by then would count as untouched.
	mu struct {
		sync.RWMutex
		voters int // when a share was given last
	}
	// locks keep two checks of one key from working out its share at once.
	locks [64]sync.Mutex
	// unheard counts shares that were worked out though no owner's answer was remembered.
	unheard atomic.Uint64
}

// New returns shares of which none is given yet. When must be started.
func New(c Config) (*Shares, error) {
	s := &Shares{cfg: c}
	s.Answers.limits = c.LastAnswers
	s.Charges.init(c.MaxKeys, c.Changed)
	for _, t := range []**bucket.Table{&s.given, &s.admitted} {
		var err error
		if *t, err = bucket.NewTable(bucket.Config{Shards: c.Shards, MaxEntries: c.MaxKeys}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Place is where a node stands when it gives a share.
type Place struct {
	// Voters is the size of the voter set with which it last had quorum.
	Voters int
	// Quorum: it has quorum now. Owns: it owns the key, as far as it knows.
	Quorum, Owns bool
}

// Receipt is what Answer has charged, for TakeBack.
type Receipt struct {
	Key             bucket.Key
	cost            int64
	given, admitted bucket.Receipt
}

// Answer answers r by this node's share of its limits, and remembers what it admits as a deferred charge, which is then to be sent. rc,
// if not nil, is synced in if it has charged.
func (s *Shares) Answer(now int64, at Place, r *bucket.Request, unheard rules.UnknownShare, rc *Receipt) (d bucket.Decision, charged bool) {
	s.holdFor(at.Voters)
	defer s.mu.RUnlock()
	part := *r
	part.Limits = r.Limits.Share(at.Voters)
	l := &s.locks[r.Key.Lo%uint64(len(s.locks))]
	l.Lock()
	defer l.Unlock()
	has := s.given.Has(r.Key)
	if !has || guard.On(guard.LatestAnswer) && (s.Answers.fresh(now, r.Key, r.Limits) || at.Quorum && at.Owns) {
		asOf := s.When.AsOf(now, at.Quorum)
		switch {
		case !guard.On(guard.OncePerWindow):
		case has: // what was given in a window that has begun since counts
			asOf = now
		default: // and so does what the owner has said in one
			asOf = max(asOf, s.Answers.newest(now, r.Key, r.Limits))
		}
		s.workOut(asOf, r, part.Limits, at.Voters, unheard)
	}
	if rc == nil {
		rc = new(Receipt)
	}
	if d, charged = s.given.DoHeld(now, &part, &rc.given); !charged {
		return d, false
	}
	rc.Key, rc.cost = r.Key, max(1, r.Cost)
	part.Verb = bucket.Charge
	s.admitted.DoHeld(now, &part, &rc.admitted)
	s.Charges.put(Charge{Key: r.Key, Limits: r.Limits, Cost: rc.cost, Transient: r.Transient})
	return d, true
}

// TakeBack undoes what rc says.
func (s *Shares) TakeBack(now int64, rc *Receipt) {
	s.given.GiveBack(now, &rc.given)
	s.Charges.withdraw(rc.Key, rc.cost)
	s.admitted.GiveBack(now, &rc.admitted)
}

// shareOf turns left, the units of each limit that were left when the owner was last heard, into those of the share of
// one of so many voters: its part of what was left, rounded down, and at most its part of the limit, less what it has admitted
// itself and no owner has acknowledged. Of a limit that is unknown it is the part of the limit, or nothing.
func shareOf(left []int64, own []bucket.Standing, voters int, unheard rules.UnknownShare) {
	for i := range left {
		part := left[i] / int64(voters)
		if left[i] == unknown {
			part = math.MaxInt64
			if unheard == rules.UnknownNone {
				part = 0
			}
		}
		left[i] = max(0, min(part, own[i].Limit)-own[i].Spent)
	}
}

// workOut sets the counter of r's key to its share as of a time, until which owners could be asked.
func (s *Shares) workOut(asOf int64, r *bucket.Request, part *bucket.Limits, voters int, unknownShare rules.UnknownShare) {
	var array [bucket.MaxLimits]int64
	left := array[:r.Limits.Len()]
	// An owner that has lost quorum, and a replica, have the counter itself. What is dropped after this is among the answers.
	counted, has := s.cfg.Counters.Look(asOf, r.Key, r.Limits)
	least := s.Answers.left(asOf, r.Key, r.Limits, left)
	unheard := true
	for i := range left {
		if has && (left[i] == unknown || counted[i].Remaining < left[i]) {
			left[i] = counted[i].Remaining
			if from, _, _ := r.Limits.Says(i, asOf, counted[i].ResetAfter); asOf < from {
				left[i] = 0
			}
		}
		if left[i] != unknown {
			unheard = false
		} else if unknownShare == rules.UnknownNone {
			left[i] = least // no limit had less
		}
	}
	if unheard {
		s.unheard.Add(1)
	}
	own, _ := s.admitted.Look(asOf, r.Key, part)
	if !guard.On(guard.Unacknowledged) {
		for i := range own {
			own[i].Spent = 0
		}
	}
	shareOf(left, own, voters, unknownShare)
	s.given.Leave(asOf, r.Key, part, left)
}

// holdFor locks mu for reading, while shares are of a limit divided by so many voters.
func (s *Shares) holdFor(voters int) {
	for s.mu.RLock(); s.mu.voters != voters; s.mu.RLock() {
		s.mu.RUnlock()
		s.mu.Lock()
		if s.mu.voters != voters {
			s.mu.voters = voters
			s.forgetLocked() // what is left of a share under other limits is no part of what was left
		}
		s.mu.Unlock()
	}
}

// Forget drops all shares: this node has quorum again, and the next time they are worked out anew.
func (s *Shares) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked()
}

func (s *Shares) forgetLocked() {
	for i := range s.cfg.Shards {
		s.given.DropShard(i)
	}
}

// keptCounters is of how many counters of a partition that is dropped it is remembered what was left.
const keptCounters = 64

// Keep remembers what is left by the counters of a partition that the node owned, or had a replica of, and is about to drop.
func (s *Shares) Keep(now int64, partition int) {
	if !guard.On(guard.Dropped) {
		return
	}
	s.cfg.Counters.Recent(now, partition, keptCounters, func(key bucket.Key, limits *bucket.Limits, list []bucket.Standing) {
		s.Answers.keep(now, &bucket.Request{Key: key, Limits: limits}, list)
	})
}

// Unheard returns how many shares were worked out though no owner's answer was remembered.
func (s *Shares) Unheard() uint64 { return s.unheard.Load() }

// Admitted returns how many keys there are of which the node has admitted something that no owner has acknowledged and that counts.
func (s *Shares) Admitted() int64 { return s.admitted.Stats().Entries }

// Correct does what bucket.Table.Correct does.
func (s *Shares) Correct(ahead int64) {
	s.given.Correct(ahead)
	s.admitted.Correct(ahead)
}

// Sweep drops what has expired, in one of as many shards as there are.
func (s *Shares) Sweep(now int64, i int) {
	s.given.Sweep(now, i%s.cfg.Shards)
	s.admitted.Sweep(now, i%s.cfg.Shards)
}

// pauseAfter is the time between two turns of a process from which on it is taken to have been paused.
const pauseAfter = 300 * time.Millisecond

// settleWithin is how long a process that has quorum waits for its partitions and their replicas, at most, before it counts as settled.
const settleWithin = 30 * time.Second

// Timing says when checks may be answered without their owners. One goroutine, the runner, takes its turns; checks read it at any
// time, also when a process has just woken and the runner has not run yet.
type Timing struct {
	// grace is how long a process that has woken or lost quorum waits for its peers before it answers without them.
	grace int64
	// timeout is how long a check may wait for an owner.
	timeout int64
	// from is when a share may first be given; math.MaxInt64 before that is known. Before the process has quorum nothing is known of
	// what was spent, nor of the voters; until partitions have owners and replicas, checks wait for these and not for a lost node.
	from atomic.Int64
	// began is when the process first had quorum, 0 before; the runner's alone.
	began int64
	// without is since when the process runs without quorum and without a pause; math.MaxInt64 while it has quorum.
	without atomic.Int64
	// lost is when quorum ended.
	lost atomic.Int64
	// woke is the end of the last pause; turned is the runner's last turn.
	woke, turned atomic.Int64
}

// Start is called before all else, at the start of the process.
func (f *Timing) Start(now int64, grace, timeout time.Duration) {
	f.grace, f.timeout = int64(grace), int64(timeout)
	f.from.Store(math.MaxInt64)
	f.without.Store(math.MaxInt64)
	f.woke.Store(math.MinInt64)
	f.turned.Store(now)
}

// Turn notes a turn of the runner at now, in a process that has quorum until the given time. It reports whether the
// process has got quorum since the turn before.
func (f *Timing) Turn(now, until int64) (regained bool) {
	before := f.turned.Swap(now)
	paused := now-before > int64(pauseAfter)
	if paused {
		f.woke.Store(now)
	}
	had := f.without.Load() == math.MaxInt64
	switch {
	case now < until:
		if f.began == 0 {
			f.began = now
		}
		f.without.Store(math.MaxInt64)
		return !had
	case had:
		f.lost.Store(min(max(before, until), now))
		f.without.Store(now)
	case paused:
		f.without.Store(now)
	}
	return false
}

// Settle notes whether the process has settled: it has quorum, holds its partitions and has replicas of them. Checks that
// came before are denied, not answered by a share.
func (f *Timing) Settle(now int64, settled bool) {
	if settled || f.began != 0 && now-f.began >= int64(settleWithin) {
		f.from.Store(now + f.timeout)
	}
}

// Settling reports whether settle waits to be told.
func (f *Timing) Settling() bool { return f.from.Load() == math.MaxInt64 }

// AsOf returns the time of which shares are worked out: now with quorum, and else when it ended, since what was left then has
// come back here at this node's part of the rate.
func (f *Timing) AsOf(now int64, quorum bool) int64 {
	if quorum || f.without.Load() == math.MaxInt64 {
		return now
	}
	return f.lost.Load()
}

// awake reports whether the process has run for long enough since its last pause to have heard its peers.
func (f *Timing) awake(now int64) bool {
	woke := f.woke.Load()
	return now-f.turned.Load() <= int64(pauseAfter) && (woke == math.MinInt64 || now-woke >= f.grace)
}

// MayShare reports whether a share may be given: the process has settled since it started, and was not paused just now.
func (f *Timing) MayShare(now int64) bool { return now >= f.from.Load() && f.awake(now) }

// AtOnce reports whether a process without quorum has been so for long enough that checks need not wait for an owner
// that it does not hear.
func (f *Timing) AtOnce(now int64) bool {
	since := f.without.Load()
	return since != math.MaxInt64 && now-since >= f.grace && f.MayShare(now)
}
