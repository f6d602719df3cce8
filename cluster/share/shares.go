// Package share decides checks without the key's owner: it admits a share of what was left of a limit when the owner was last
// heard, and keeps deferred charges to be sent to the owner later.
//
// It decides when a process may give shares, how large they are, what it remembers of owners' answers, and what must still be
// charged. It leaves to cluster which checks get a share, and to send charges and write them to disk. It reads no clock and has
// no goroutine: time is a parameter, in ns on one clock that never steps back.
package share

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/rules"
)

// unknown is a number of units left that is not known.
const unknown int64 = -1

// Config configures Shares.
type Config struct {
	// Counters are those of the partitions that the node owns, and of its replicas. A shard is a partition.
	Counters *bucket.Table
	// Shards is the number of shards of the tables of shares, MaxKeys the most keys of these and of the deferred charges.
	Shards, MaxKeys int
	// LastAnswers is the number of limits of keys whose owner's last answer is remembered. 0 means 65,536.
	LastAnswers int
	// Changed, if not nil, is called when the deferred charges must be written to disk again. It must not block.
	Changed func()
}

// Shares decides what a node admits without owners: of each limit a part of what was left when the owner was last heard. Safe for
// concurrent use.
type Shares struct {
	When    Timing
	Answers Answers
	Charges Deferred

	cfg Config
	// given has a counter for each key with a share: under the limits divided by the voters, and spent so far that the share is
	// left. It refills as the algorithm says, at the rate divided by the voters.
	given *bucket.Table
	// admitted is what the node has admitted without an owner, and no owner has acknowledged.
	admitted *bucket.Table
	// mu keeps shares from being forgotten while one answers a check: a forgotten share would count as unspent.
	mu struct {
		sync.RWMutex
		parts Parts // when a share was given last
	}
	locks   [64]sync.Mutex // so that two checks of one key do not compute its share at once
	unheard atomic.Uint64  // shares of keys of which no owner's answer was remembered
}

// New returns Shares that have given none. Call When.Start before use.
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

// Parts is by how much limits are divided for the share of one node.
type Parts struct {
	// Voters is the size of the voter set with which the node last had quorum.
	Voters int
	// Home replaces it for limits with a home, unless it is less: a node has one part of its region's, by weight.
	Home int
}

// of returns by how much limits are divided.
func (p Parts) of(limits *bucket.Limits) int {
	if limits.Home() != "" {
		return max(p.Home, p.Voters)
	}
	return p.Voters
}

// Place is the state of a node that gives a share.
type Place struct {
	// Parts is by how much limits are divided.
	Parts
	// Quorum: it has quorum now. Owns: it owns the key, as far as it knows.
	Quorum, Owns bool
}

// Receipt is what Answer has charged, for TakeBack.
type Receipt struct {
	Key             bucket.Key
	cost            int64
	given, admitted bucket.Receipt
}

// Answer answers r from this node's share of its limits, and records what it admits as a deferred charge, which must be sent
// then. A charge is described in rc, if that is not nil.
func (s *Shares) Answer(now int64, at Place, r *bucket.Request, unheard rules.UnknownShare, rc *Receipt) (d bucket.Decision, charged bool) {
	s.holdFor(at.Parts)
	parts := at.of(r.Limits)
	defer s.mu.RUnlock()
	part := *r
	part.Limits = r.Limits.Share(parts)
	l := &s.locks[r.Key.Lo%uint64(len(s.locks))]
	l.Lock()
	defer l.Unlock()
	has := s.given.Has(r.Key)
	if !has || guard.On(guard.LatestAnswer) && (s.Answers.fresh(now, r.Key, r.Limits) || at.Quorum && at.Owns) {
		asOf := s.When.AsOf(now, at.Quorum)
		switch {
		case !guard.On(guard.OncePerWindow):
		case has: // shares given in a window that has begun since count
			asOf = now
		default: // and so does the owner's answer in one
			asOf = max(asOf, s.Answers.newest(now, r.Key, r.Limits))
		}
		s.workOut(asOf, r, part.Limits, parts, unheard)
	}
	if rc == nil {
		rc = new(Receipt)
	}
	if d, charged = s.given.DoHeld(now, &part, &rc.given); !charged {
		return d, false
	}
	rc.Key, rc.cost = r.Key, max(1, r.Cost)
	part.Verb, part.Limits = bucket.Charge, part.Limits.Meter()
	s.admitted.DoHeld(now, &part, &rc.admitted)
	s.Charges.put(Charge{Key: r.Key, Limits: r.Limits, Cost: rc.cost, Unreplicated: r.Unreplicated})
	return d, true
}

// TakeBack undoes what rc says.
func (s *Shares) TakeBack(now int64, rc *Receipt) {
	s.given.GiveBack(now, &rc.given)
	s.Charges.withdraw(rc.Key, rc.cost)
	s.admitted.GiveBack(now, &rc.admitted)
}

// shareOf turns left, the units of each limit that were left when the owner was last heard, into those of one voter's share: its
// part of them, rounded down, and at most its part of the limit, less what it has admitted and no owner has acknowledged. Of an
// unknown limit it is the part of the limit, or nothing.
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

// workOut sets the counter of r's key to its share as of a time, the last one at which owners could be asked.
func (s *Shares) workOut(asOf int64, r *bucket.Request, part *bucket.Limits, voters int, unknownShare rules.UnknownShare) {
	var array [bucket.MaxLimits]int64
	left := array[:r.Limits.Len()]
	// An owner that has lost quorum, and a replica, have the counter itself. A counter dropped after this is among the answers.
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
	own, _ := s.admitted.Look(asOf, r.Key, part.Meter())
	for i := range own {
		own[i].Limit = cmp.Or(part.At(i).Burst, part.At(i).Count)
	}
	if !guard.On(guard.Unacknowledged) {
		for i := range own {
			own[i].Spent = 0
		}
	}
	shareOf(left, own, voters, unknownShare)
	s.given.Leave(asOf, r.Key, part, left)
}

// holdFor locks mu for reading, while shares are of limits divided so.
func (s *Shares) holdFor(parts Parts) {
	for s.mu.RLock(); s.mu.parts != parts; s.mu.RLock() {
		s.mu.RUnlock()
		s.mu.Lock()
		if s.mu.parts != parts {
			s.mu.parts = parts
			s.forgetLocked() // shares were of limits divided differently
		}
		s.mu.Unlock()
	}
}

// Forget drops all shares, so that they are computed anew. It must be called when this node has quorum again.
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

// keptCounters is how many counters of a dropped partition are remembered.
const keptCounters = 64

// Keep remembers what is left by the counters of a partition that the node is about to drop.
func (s *Shares) Keep(now int64, partition int) {
	if !guard.On(guard.Dropped) {
		return
	}
	s.cfg.Counters.Recent(now, partition, keptCounters, func(key bucket.Key, limits *bucket.Limits, list []bucket.Standing) {
		s.Answers.keep(now, &bucket.Request{Key: key, Limits: limits}, list)
	})
}

// Unheard returns how many shares were computed without an owner's answer.
func (s *Shares) Unheard() uint64 { return s.unheard.Load() }

// Admitted returns of how many keys the node has admitted units that no owner has acknowledged and that still count.
func (s *Shares) Admitted() int64 { return s.admitted.Stats().Entries }

// Correct does what bucket.Table.Correct does.
func (s *Shares) Correct(ahead int64) {
	s.given.Correct(ahead)
	s.admitted.Correct(ahead)
}

// Sweep drops expired counters of one shard, i modulo Config.Shards.
func (s *Shares) Sweep(now int64, i int) {
	s.given.Sweep(now, i%s.cfg.Shards)
	s.admitted.Sweep(now, i%s.cfg.Shards)
}

const (
	// pauseAfter is the time between two turns after which the process counts as paused.
	pauseAfter = 300 * time.Millisecond
	// settledWithin is the longest time that a process with quorum waits for its partitions and replicas before it counts as
	// settled.
	settledWithin = 30 * time.Second
)

// Timing decides when checks may be answered without their owners. One goroutine, the runner, calls Turn; checks read it at any
// time, also when a process has just woken and the runner has not run yet.
type Timing struct {
	grace   int64 // how long a process that has woken or lost quorum waits for its peers before it answers without them
	timeout int64 // how long a check may wait for an owner
	// from is when a share may first be given; math.MaxInt64 before that is known. Before the process has quorum, neither the
	// voters nor what was spent is known; until partitions have owners and replicas, checks wait for these.
	from atomic.Int64
	// began is when the process first had quorum, 0 before. Only the runner uses it.
	began int64
	// without is since when the process runs without quorum and without a pause; math.MaxInt64 while it has quorum.
	without      atomic.Int64
	lost         atomic.Int64 // when quorum ended
	woke, turned atomic.Int64 // the end of the last pause, the runner's last turn
}

// Start must be called first, at the start of the process.
func (f *Timing) Start(now int64, grace, timeout time.Duration) {
	f.grace, f.timeout = int64(grace), int64(timeout)
	f.from.Store(math.MaxInt64)
	f.without.Store(math.MaxInt64)
	f.woke.Store(math.MinInt64)
	f.turned.Store(now)
}

// Turn records a turn of the runner at now, in a process that has quorum until the given time. It reports whether the process
// has got quorum since the turn before.
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

// NoteSettled records whether the process has settled: it has quorum, owns its partitions and has replicas of them. Earlier checks
// are denied, not answered by a share.
func (f *Timing) NoteSettled(now int64, settled bool) {
	if settled || f.began != 0 && now-f.began >= int64(settledWithin) {
		f.from.Store(now + f.timeout)
	}
}

// Settling reports whether the process has not settled yet, so that NoteSettled must be called.
func (f *Timing) Settling() bool { return f.from.Load() == math.MaxInt64 }

// AsOf returns the time as of which shares are computed: now with quorum, else when it ended, since from then on the limit refills
// here at this node's part of the rate.
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

// AtOnce reports whether the process has been without quorum for so long that checks need not wait for an owner that it does not
// hear.
func (f *Timing) AtOnce(now int64) bool {
	since := f.without.Load()
	return since != math.MaxInt64 && now-since >= f.grace && f.MayShare(now)
}
