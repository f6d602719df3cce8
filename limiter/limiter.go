// Package limiter stands between the APIs and the node: it validates checks, matches rules once, hashes counter keys, calls a
// check.Decider and returns results, so that a check means the same through every API. It keeps the statistics, and decides
// how descriptors may be shown: a value gets into a log, a trace or a response about other callers' keys by
// Hasher.AppendShown only.
//
// It also applies shadow mode, and pools beside a rule's own limits. The Decider decides what remains and which node owns the
// key; status codes and headers are the APIs'. Its only goroutines serve those who wait for slots; RunHistory is its caller's.
package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/timing"
	"github.com/sluicecluster/sluice/internal/tracing"
	"github.com/sluicecluster/sluice/rules"
)

// Features are what this version can do beyond the first one of sluice.v1: see NodesResponse.features.
var Features = []string{"idempotency_key", "leases", "reservations"}

// Service is the interface of Limiter to the APIs. The errors of its methods are an *Error.
type Service interface {
	// Check decides b.Checks and fills b.Results, one each. The error is about the call: no checks or too many, or every
	// one of them met a full queue. Other errors are in the results.
	Check(ctx context.Context, b *Batch) error
	// Reserve sets units aside in the counters of all checks of b, or in none, and fills b.Results. The error is as of Check, or
	// Invalid.
	Reserve(ctx context.Context, b *Batch, r ReserveRequest) (Reservation, error)
	// Spend spends units of a reservation before it is settled.
	Spend(ctx context.Context, id string, units int64) (Spent, error)
	// Extend adds more units, 0 or more, to a reservation, and sets its deadline to ttl from now, up to the rules' max_ttl, if
	// that is later. A ttl of 0 leaves it.
	Extend(ctx context.Context, id string, more int64, ttl time.Duration) (Extended, error)
	// Settle ends a reservation. Of its units that are not spent, actual are charged, and the others are free again; more are charged
	// whatever the limits say. Repeated calls change nothing.
	Settle(ctx context.Context, id string, actual int64) (Settlement, error)
	// Acquire asks for a slot of the only check of b, under a limit with algorithm concurrency. It does not block: done is called once
	// with the answer, unless Waiter.Cancel is called before, and gets b, which it must release.
	Acquire(b *Batch, r SlotRequest, done func(b *Batch, a SlotAnswer)) *Waiter
	// Slot returns the slot with the ID of a reservation. The error is that of ReservationDomains.
	Slot(id string) (Slot, error)
	// RenewSlots moves the deadlines of slots to SlotTTL from now, and reports which ones it has moved.
	RenewSlots(ctx context.Context, slots []Slot) (renewed []bool)
	// ReleaseSlots ends slots. Those of owners that do not respond in time end at their deadline.
	ReleaseSlots(ctx context.Context, slots []Slot)
	// Held returns the open reservations and leases of a descriptor's counter, at most facts.MaxHeld by deadline, and the number and
	// the units of all. Of q only Domain and Descriptor count.
	Held(ctx context.Context, q *Check) (list []Holding, all int, units int64, err error)
	// ReservationDomains returns the domains of a reservation, which the APIs authorize. The errors of the calls with an ID are Invalid
	// for one that no node of this cluster has made, NotFound for one that was settled or expired too long ago, and those of
	// Check.
	ReservationDomains(id string) ([]string, error)
	// Members returns the cluster as this node sees it.
	Members(ctx context.Context) Members
	// Status returns the health of the cluster by the reports of all nodes.
	Status(ctx context.Context) Status
	// ReportLoad takes a service's report of its load for a pool, and sends it to the other nodes. The error is Invalid,
	// NotFound or Rejected.
	ReportLoad(ctx context.Context, r LoadReport) (PoolLoad, error)
	// Top returns the heaviest keys of all nodes. The error is Invalid, Rejected where this node counts none, or
	// ErrNotOperator.
	Top(ctx context.Context, q TopQuery) (Top, error)
	// Inspect returns the rule and the counter of a descriptor, and changes nothing. Of q only Domain and Descriptor count.
	// The error is Invalid, UnknownDomain or Unavailable.
	Inspect(ctx context.Context, q *Check) (Inspection, error)
	// Forget removes a member from the voter set without a majority, and returns the new set. The error is Invalid,
	// NotFound, Rejected, or Unavailable. The APIs authorize it.
	Forget(ctx context.Context, name string) (VoterSet, error)
	// Bootstrap makes the node found a voter set of its own, and returns it.
	Bootstrap(ctx context.Context) (VoterSet, error)
	// AcceptLoss makes all nodes take lost counters for unspent. It returns the number of partitions of this node, and the
	// other nodes that acknowledged. The error is Unavailable.
	AcceptLoss(ctx context.Context) (partitions int, told []string, err error)
	// PromoteRegion lets a region decide the keys of a home. With stopped, the region that decides them is stopped; otherwise it
	// must be this node's. The error is Invalid, Rejected, or Unavailable.
	PromoteRegion(ctx context.Context, region, home string, stopped bool) error
}

// Cluster is what a Limiter needs of its node, beside decisions.
type Cluster interface {
	// Overview returns the cluster as this node sees it now. If ctx ends before the node responds, Reason says so.
	Overview(ctx context.Context) Overview
	// Forget and Bootstrap are as in Service. The error is, or wraps, a member.Rejection; another means that the node cannot do
	// it now.
	Forget(ctx context.Context, name string) error
	Bootstrap(ctx context.Context) error
	// AcceptLoss is as in Service; an error means that the node cannot do it now.
	AcceptLoss(ctx context.Context) (partitions int, told []string, err error)
	// PromoteRegion is as in Service, and its error as that of Forget.
	PromoteRegion(ctx context.Context, region, home string, stopped bool) error
	// SpreadLoad sends a report of a pool's load to the TakeLoad of the other nodes. It does not block.
	SpreadLoad(r LoadReport)
	// AskTop gets the TopHere of the other nodes, and which of them did not respond in time.
	AskTop(ctx context.Context, q TopQuery) (answers []NodeTop, missing []string)
	// KeyFacts returns this node's facts about a key, AskKeyFacts those of the other nodes, and which of them did not
	// respond in time.
	KeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (facts.Key, error)
	AskKeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (answers []facts.Key, missing []string)
	// Report sets the RulesError, Files, Insecure, Uptime, Keys, Bytes and MaxBytes of this node's report.
	Report(r *facts.Node)
	// AskFacts gets the reports of the other nodes, with the newest slots of their histories, and which of them did not
	// respond in time.
	AskFacts(ctx context.Context, slots int) (nodes []facts.Node, missing []string)
	// Owner returns the name of the key's owner, "" for none, and whether it is this node.
	Owner(key bucket.Key) (name string, here bool)
	// Owned returns for how long this node has owned the key, 0 if it does not.
	Owned(key bucket.Key) time.Duration
	// AskTurn is AwaitTurn of the node owner. It reports true without an answer too.
	AskTurn(ctx context.Context, owner string, t *facts.Turn) (moved bool)
}

// Config configures a Limiter. Decider, Cluster and Hasher are required.
type Config struct {
	// Decider decides checks that are matched and hashed.
	Decider check.Decider
	// Cluster is this node's place among others.
	Cluster Cluster
	// TopKeys says whether the heaviest keys are counted, and who may see them.
	TopKeys TopKeys
	// Hasher makes counter keys; all nodes must have the same.
	Hasher Hasher
	// Gate bounds the checks in progress. nil is no bound.
	Gate Gate
	// RejectUnknownDomains makes checks of a domain without rules an UnknownDomain error. Otherwise they are allowed.
	RejectUnknownDomains bool
	// InlineLimits caps the remembered sets of limits that checks brought. 0 means bucket.DefaultMaxSets.
	InlineLimits int
	// InlineEntries caps the entries of logs and sub-windows that the limits of a check may keep, at most
	// bucket.MaxKeyEntries. 0 means DefaultInlineEntries.
	InlineEntries int
	// Account returns the account of a domain, which its inline limits have as their domain. nil is
	// the domain itself.
	Account func(domain string) string
	// SetsFull reports whether checks of an account may bring no new sets of limits; they are
	// Overloaded. nil is never.
	SetsFull func(account string) bool
	// Callers returns the names of all callers that may be authenticated, so that Held can name them. nil means none.
	Callers func() []string
	// MaxWait bounds ReserveRequest.Wait.
	MaxWait time.Duration
	// Log gets a line about checks that no rule matches. nil means none.
	Log *slog.Logger
	// Tracer records some calls. nil records none.
	Tracer *tracing.Tracer
	// Clock measures latency: the time since any fixed moment. nil means the monotonic clock.
	Clock func() time.Duration
}

// Validate returns an error that names the first invalid field.
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
	// Enter admits a call of so many checks, until Leave with as many, or returns false.
	Enter(checks int) bool
	Leave(checks int)
}

// Limiter implements Service on a Decider. It is safe for concurrent use.
//
// The rule that a descriptor matches in the rules of SetRules applies to its check. Limits that a check brings apply instead
// of it, and have their counter under domain and plain entries in a key space of its own: otherwise a client could empty a
// rule's counter by naming another algorithm. Checks of one descriptor with different limits share one counter, as before and
// after a rule's change.
type Limiter struct {
	config       Config
	history      history
	inline       *Interner
	rules        atomic.Pointer[activeRules]
	top          *topCount // nil if nothing is counted
	unmatchedLog unmatchedLog

	calls    atomic.Uint64
	results  counts
	named    namedCounts // those of the rules in Stats
	reserved reservationCounts
	lines    lines
	failures [codes]atomic.Uint64
	latency  [APIs]timing.Histogram
	early    [APIs][check.NotAsked]atomic.Uint64
}

// activeRules are the rules in force, perhaps none, and their counts.
type activeRules struct {
	set         *rules.Set
	hash        string // RulesHash of set
	counts      ruleCounts
	unmatched   map[string]*atomic.Uint64 // by domains of set, and UnknownDomains
	descriptors *descriptorCounts
	pools       map[*rules.Pool]*poolState
}

// New returns a Limiter that knows no rules yet.
func New(c Config) (*Limiter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.InlineLimits = cmp.Or(c.InlineLimits, bucket.DefaultMaxSets)
	c.InlineEntries = cmp.Or(c.InlineEntries, DefaultInlineEntries)
	if c.Clock == nil {
		// Cheaper than time.Now, which reads the wall clock too.
		began := time.Now()
		c.Clock = func() time.Duration { return time.Since(began) }
	}
	s := &Limiter{lines: lines{byKey: map[bucket.Key]*line{}}, config: c, inline: NewInterner(c.InlineLimits), unmatchedLog: newUnmatchedLog(c.Log)}
	if c.TopKeys != TopOff {
		s.top = newTopCount()
	}
	s.SetRules(nil)
	return s, nil
}

// SetRules replaces the rules; nil is none. Calls in progress finish by the old ones. A rule or pool that keeps its domain
// and name keeps its counts in Stats, a pool its reported loads too. One caller at a time.
func (l *Limiter) SetRules(set *rules.Set) {
	var before activeRules
	if active := l.rules.Load(); active != nil {
		before = *active
	}
	counts := newRuleCounts(set, before.counts)
	l.named.keep(counts)
	l.rules.Store(&activeRules{
		set: set, hash: RulesHash(set), counts: counts, unmatched: newUnmatched(set, before.unmatched),
		descriptors: newDescriptorCounts(set), pools: newPools(set, before.pools),
	})
	l.Wake(nil) // a limit may be higher
}

// Rules returns the rules in force, nil before the first SetRules.
func (l *Limiter) Rules() *rules.Set { return l.rules.Load().set }

// Members implements Service.
func (l *Limiter) Members(ctx context.Context) Members {
	m := membersOf(l.config.Cluster.Overview(ctx))
	m.Health = JudgeHealth(m, []facts.Node{l.reportOf(&m.State)}, nil)
	return m
}

// reportOf is what this node reports of itself without its counts.
func (l *Limiter) reportOf(s *State) facts.Node {
	n := facts.Node{Rules: l.rules.Load().hash, MayDecide: s.MayDecide, Reason: s.Reason, PartitionCounts: s.PartitionCounts}
	l.config.Cluster.Report(&n)
	return n
}

// Check implements Service.
func (l *Limiter) Check(ctx context.Context, b *Batch) error {
	l.calls.Add(1)
	if e := CountError(len(b.Checks)); e != nil {
		return l.reject(e)
	}
	if e := keyError(b); e != nil {
		return l.reject(e)
	}
	if b.Busy {
		return l.rejectBusy(b)
	}
	if g := l.config.Gate; g != nil {
		if !g.Enter(len(b.Checks)) {
			return l.rejectBusy(b)
		}
		defer g.Leave(len(b.Checks))
	}
	began := l.config.Clock()
	active := l.rules.Load()
	b.start(len(b.Checks))
	span := l.startSpan(b)
	failed := l.prepare(active.set, b)
	failed = b.reserving != nil && b.reserving.fill(b, active.counts, failed) || failed
	l.decide(ctx, b)
	if b.reserving != nil {
		l.complete(ctx, b)
	}
	l.decideByPools(ctx, active, b)
	if b.finish(failed) && !failed {
		l.reread(ctx, active.set, b)
	}
	now := l.config.Clock()
	l.count(now, active, b)
	l.observe(now, active.set, b)
	l.latency[b.api()].Observe(now - began)
	b.endSpan(span)
	return b.overload()
}

// api returns the API of b, as the statistics know it.
func (b *Batch) api() API {
	if int(b.API) >= APIs {
		return OtherAPI
	}
	return b.API
}

// reject counts a call that failed as a whole.
func (l *Limiter) reject(e *Error) error {
	l.failures[e.Code].Add(1)
	return e
}

// rejectBusy rejects a batch because of overload. Checks of one request are matched all the same: a proxy may apply their rules'
// fallback.
func (l *Limiter) rejectBusy(b *Batch) error {
	set := l.rules.Load().set
	b.start(len(b.Checks))
	if b.OneRequest {
		b.findReplaced(set)
		for i := range b.Checks {
			l.match(set, b, i)
		}
	}
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case r.Err != nil:
			l.failures[r.Err.Code].Add(1)
		case b.OneRequest && r.Limits == nil:
			r.setUnmatched()
		default:
			r.Err = ErrBusy
			l.failures[ErrBusy.Code].Add(1)
		}
	}
	return b.overload()
}

// decide calls the Decider with the queued requests, and takes its answers.
func (l *Limiter) decide(ctx context.Context, b *Batch) {
	if len(b.queued.Requests) == 0 {
		return
	}
	b.queued.Answers = resize(b.queued.Answers, len(b.queued.Requests))
	l.config.Decider.Decide(ctx, &b.queued)
	for j, i := range b.places {
		a := &b.queued.Answers[j]
		b.Results[i].take(&b.queued.Requests[j], a)
		if a.Early != 0 {
			l.early[b.api()][a.Early-1].Add(1)
		}
	}
}
