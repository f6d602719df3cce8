// Package limiter stands between the APIs and the node: it validates what came in, matches rules once, hashes the counter
// key, asks a check.Decider and maps the answers back, so that every API means the same by a check. It counts what was
// decided, and says how descriptors may be shown: a value gets into a log, a trace or an answer about others' keys by
// Hasher.AppendShown or Limiter.Shown only.
//
// It decides whether a check is well formed, which rule it is held to, what shadow mode makes of the answer, and what a pool
// adds to a rule's own limits. How much is left, and which node says so, is the Decider's; status codes and headers are the
// APIs'. It starts no goroutine; RunHistory is its caller's.
package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/timing"
	"github.com/sluice-project/sluice/internal/tracing"
	"github.com/sluice-project/sluice/rules"
)

// Service is what every API calls. Limiter implements it.
type Service interface {
	// Check decides b.Checks and fills b.Results, one each. The error, an *Error,
	// is about the call as a whole: no checks or too many of them, or every one
	// met a full queue. All else stands in the results.
	Check(ctx context.Context, b *Batch) error
	// Reset forgets the counters that b.Checks name. Only Err, Rule, Source and
	// Owner of the results count. Errors are as in Check.
	Reset(ctx context.Context, b *Batch) error
	// Members returns the cluster as this node sees it.
	Members(ctx context.Context) Members
	// ReportLoad takes the load that a service reports for a pool, and tells the other nodes. The error, an
	// *Error, is Invalid, NotFound or Rejected.
	ReportLoad(ctx context.Context, r LoadReport) (PoolLoad, error)
	// Top returns the heaviest keys of all nodes. The error, an *Error, is Invalid, Rejected where this node counts
	// none, or q.Outsider.
	Top(ctx context.Context, q TopQuery) (Top, error)
	// Inspect tells everything about what a descriptor is held to and how it stands, and changes nothing. Of q only Domain
	// and Descriptor count. The error, an *Error, is Invalid, UnknownDomain or Unavailable.
	Inspect(ctx context.Context, q *Check) (Inspection, error)
	// Forget takes a member out of the voter set without asking a majority, and
	// returns the set without it. The error, an *Error, is Invalid, NotFound, Rejected, or
	// Unavailable. Who may ask is for the APIs to say.
	Forget(ctx context.Context, name string) (VoterSet, error)
	// Bootstrap makes the node found a voter set of its own, and returns it. Its errors are *Error.
	Bootstrap(ctx context.Context) (VoterSet, error)
	// AcceptLoss has all nodes take lost counters for unspent. It returns for how many partitions of this node, and which other nodes were
	// told. The error, an *Error, is Unavailable.
	AcceptLoss(ctx context.Context) (partitions int, told []string, err error)
}

// Config is what a Limiter is made of.
type Config struct {
	// Decider decides what has been matched and hashed. Required.
	Decider check.Decider
	// Cluster returns the cluster as this node sees it now. Where ctx ends before the
	// node has answered for itself, it says so in Reason. Required.
	Cluster func(ctx context.Context) Overview
	// Forget takes a member out of the voter set by hand. Its errors are, or wrap,
	// ErrNotCounted and those beside it; another means that the node cannot do it now.
	// nil is a node without a voter set.
	Forget func(ctx context.Context, name string) error
	// Bootstrap makes the node found a voter set of its own by hand. Its error is ErrHasQuorum; another means that the node
	// cannot do it now. nil is a node that never has to.
	Bootstrap func(ctx context.Context) error
	// AcceptLoss is what Service.AcceptLoss does; an error means that the node cannot do it now. nil is a node without partitions.
	AcceptLoss func(ctx context.Context) (partitions int, told []string, err error)
	// SpreadLoad tells the other nodes of a report of a pool's load; they give it to their TakeLoad. It does
	// not block. nil is a node without others.
	SpreadLoad func(LoadReport)
	// TopKeys says whether the heaviest keys are counted, and who may see them.
	TopKeys TopKeys
	// AskTop asks the other nodes for their TopHere, and says who did not answer in time. nil is a node
	// without others.
	AskTop func(ctx context.Context, q TopQuery) (answers []NodeTop, missing []string)
	// KeyFacts tells what this node knows of a key, and AskKeyFacts asks the other nodes, and says who did not answer in
	// time. nil is a node without them.
	KeyFacts    func(ctx context.Context, key bucket.Key, limits *bucket.Limits) (facts.Key, error)
	AskKeyFacts func(ctx context.Context, key bucket.Key, limits *bucket.Limits) (answers []facts.Key, missing []string)
	// Hasher makes counter keys; all nodes must have the same. Required.
	Hasher Hasher
	// Gate bounds the checks in progress. nil is no bound.
	Gate Gate
	// RejectUnknownDomains answers checks of a domain without rules with an
	// UnknownDomain error. Otherwise they are allowed.
	RejectUnknownDomains bool
	// InlineLimits caps the sets of limits remembered from checks that brought
	// their own. 0 means bucket.DefaultMaxSets.
	InlineLimits int
	// InlineEntries is how many entries of logs and sub-windows the limits that come with a check may keep in all, at most
	// bucket.MaxKeyEntries. 0 means DefaultInlineEntries.
	InlineEntries int
	// SetsFull reports whether checks of the domain should bring no new sets of limits; they are answered as Overloaded. nil is never.
	SetsFull func(domain string) bool
	// Tracer records some calls. nil records none.
	Tracer *tracing.Tracer
	// Clock is what latency is measured by: the time since any fixed moment. nil
	// means the monotonic clock.
	Clock func() time.Duration
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Decider == nil:
		return errors.New("limiter: Decider is required")
	case c.Cluster == nil:
		return errors.New("limiter: Cluster is required")
	case c.Hasher == Hasher{}:
		return errors.New("limiter: Hasher is required, make it with NewHasher")
	case c.TopKeys > TopOff:
		return errors.New("limiter: TopKeys is unknown")
	case c.InlineLimits < 0:
		return errors.New("limiter: InlineLimits is negative")
	case c.InlineEntries < 0 || c.InlineEntries > bucket.MaxKeyEntries:
		return fmt.Errorf("limiter: InlineEntries: %d; want 1 to %d, or 0 for the default", c.InlineEntries, bucket.MaxKeyEntries)
	}
	return nil
}

// DefaultInlineEntries is the default of Config.InlineEntries.
const DefaultInlineEntries = 4096

// Gate bounds the calls, and their checks, that are in progress at once.
type Gate interface {
	// Enter lets a call of so many checks in, until Leave with as many, or reports that there is no place for it.
	Enter(checks int) bool
	Leave(checks int)
}

// Limiter implements Service on a Decider. It is safe for concurrent use.
//
// A check is held to the rule that its descriptor matches in the rules of
// SetRules. One that brings its own limits is held to those instead, and counted
// under its domain and plain entries in a key space of its own: were it the
// rule's counter, whoever may send limits could empty it by naming another
// algorithm. Checks of one descriptor that bring different limits do share one
// counter, as before and after a rule's change.
type Limiter struct {
	config  Config
	history history
	inline  *interner
	rules   atomic.Pointer[ruleBook]
	top     *topCount // nil if nothing is counted

	calls    atomic.Uint64
	results  counts
	failures [codes]atomic.Uint64
	latency  [APIs]timing.Histogram
}

// ruleBook is a set of rules and what has been counted by them.
type ruleBook struct {
	set    *rules.Set
	counts ruleCounts
	// unmatched has the domains of set and unknownDomains.
	unmatched map[string]*atomic.Uint64
	// descriptors is nil where no rule counts by values.
	descriptors *descriptorCounts
	pools       map[*rules.Pool]*poolState
	// hash is RulesHash of set.
	hash string
}

// New returns a Limiter that knows no rules yet.
func New(c Config) (*Limiter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.InlineLimits == 0 {
		c.InlineLimits = bucket.DefaultMaxSets
	}
	if c.Clock == nil {
		// Cheaper than time.Now, which reads the wall clock too.
		began := time.Now()
		c.Clock = func() time.Duration { return time.Since(began) }
	}
	if c.InlineEntries == 0 {
		c.InlineEntries = DefaultInlineEntries
	}
	inline, err := newInterner(c.InlineLimits, c.InlineEntries, c.SetsFull)
	if err != nil {
		return nil, err
	}
	s := &Limiter{config: c, inline: inline}
	if c.TopKeys != TopOff {
		s.top = newTopCount()
	}
	s.SetRules(nil)
	return s, nil
}

// SetRules replaces the rules. Calls under way finish by the old ones; a rule
// or pool that keeps its domain and name keeps its counts in Stats, a pool its reported loads too. nil is no rules. One
// caller at a time.
func (s *Limiter) SetRules(set *rules.Set) {
	var before ruleBook
	if book := s.rules.Load(); book != nil {
		before = *book
	}
	s.rules.Store(&ruleBook{
		set: set, counts: newRuleCounts(set, before.counts), descriptors: newDescriptorCounts(set), unmatched: newUnmatched(set, before.unmatched),
		pools: newPools(set, before.pools), hash: RulesHash(set),
	})
}

// Rules returns the rules in force, nil before the first SetRules.
func (s *Limiter) Rules() *rules.Set { return s.rules.Load().set }

// Members implements Service.
func (s *Limiter) Members(ctx context.Context) Members { return membersOf(s.config.Cluster(ctx)) }

// Check implements Service.
func (s *Limiter) Check(ctx context.Context, b *Batch) error {
	s.calls.Add(1)
	if e := CountFault(len(b.Checks)); e != nil {
		return s.reject(e)
	}
	if b.Busy {
		return s.turnAway(b)
	}
	if g := s.config.Gate; g != nil {
		if !g.Enter(len(b.Checks)) {
			return s.turnAway(b)
		}
		defer g.Leave(len(b.Checks))
	}
	began := s.config.Clock()
	book := s.rules.Load()
	b.start(len(b.Checks))
	span := s.begin(b, spanCheck)
	invalid := s.prepare(book.set, b)
	s.decide(ctx, b)
	s.askPools(ctx, book, b)
	b.settle(invalid)
	s.count(book, b)
	now := s.config.Clock()
	s.observe(now, book.set, b)
	s.apiOf(b).Observe(now - began)
	b.end(span)
	return b.overload()
}

// Reset implements Service.
func (s *Limiter) Reset(ctx context.Context, b *Batch) error {
	s.calls.Add(1)
	if e := CountFault(len(b.Checks)); e != nil {
		return s.reject(e)
	}
	book := s.rules.Load()
	b.start(len(b.Checks))
	span := s.begin(b, spanReset)
	for i := range b.Checks {
		c := &b.Checks[i]
		c.Cost, c.Verb = 0, bucket.Reset
		s.queue(book.set, b, i)
	}
	s.decide(ctx, b)
	b.end(span)
	return b.overload()
}

// reject counts a call that failed as a whole.
func (s *Limiter) reject(e *Error) error {
	s.failures[e.Code].Add(1)
	return e
}

// turnAway answers a batch that there is no place for. Of the checks of one request it says which rules hold them, since a
// proxy may pass what has no answer.
func (s *Limiter) turnAway(b *Batch) error {
	set := s.rules.Load().set
	b.start(len(b.Checks))
	if b.OneRequest {
		b.findReplaced(set)
		for i := range b.Checks {
			s.match(set, b, i)
		}
	}
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case r.Err != nil:
			s.failures[r.Err.Code].Add(1)
		case b.OneRequest && r.Limits == nil:
			r.setUnmatched()
		default:
			r.Err = ErrBusy
			s.failures[ErrBusy.Code].Add(1)
		}
	}
	return b.overload()
}

// decide asks the Decider what is queued and takes the answers over.
func (s *Limiter) decide(ctx context.Context, b *Batch) {
	if len(b.asked.Requests) == 0 {
		return
	}
	b.room()
	s.config.Decider.Decide(ctx, &b.asked)
	for j, i := range b.places {
		b.Results[i].take(&b.asked.Answers[j])
	}
}
