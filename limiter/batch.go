package limiter

import (
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// Bounds of a call. A check outside them is an error and charges nothing.
const (
	// MaxChecks is the most checks of one call.
	MaxChecks = 10_000
	// MaxEntries is the most entries of one descriptor: no rule lies deeper.
	MaxEntries = rules.MaxDepth
	// MaxText is the most bytes of a domain or a key. Values may be longer: see rules.Rule.AppendKey.
	MaxText = rules.MaxEntryBytes
	// MaxIdempotencyKey is the most bytes of an idempotency key.
	MaxIdempotencyKey = 128
	// MaxResponses is the most bytes of the responses of rules in the response to one call, which clients must be able to
	// read. Those beyond it are left out.
	MaxResponses = 1 << 20
)

// Bytes that the parts of a call take until it is answered: an empty batch, a check with its result
// and its place in the response, an entry of its descriptor, and a limit of its own.
var (
	BatchBytes = sizeOf[Batch]()
	CheckBytes = sizeOf[Check]() + sizeOf[Result]() + sizeOf[check.Request]() + sizeOf[check.Answer]() + 128
	EntryBytes = sizeOf[rules.Entry]()
	LimitBytes = sizeOf[bucket.Limit]()
)

func sizeOf[T any]() int64 { return int64(reflect.TypeFor[T]().Size()) }

// Check is a request to spend a cost of the limits of one descriptor.
type Check struct {
	Domain     string
	Descriptor []rules.Entry
	// Cost is 0 or more; with verb Check, 0 only reads. Batch.Add sets it to 1.
	Cost int64
	// Verb is any. Reset ignores the cost.
	Verb bucket.Verb
	// Drain and NoDelay are those of bucket.Request. An all-or-nothing batch, which gives its charges back, rejects Reset
	// and Drain.
	Drain, NoDelay bool
	// Limits of the check itself apply instead of a rule, with a counter of their own: see Limiter.
	Limits []bucket.Limit
	// Err is set by an API that could read the call but not this check. It becomes the result's Err.
	Err *Error
}

// keepEntries and keepLimits are the largest slices of a Check whose memory a pooled batch keeps.
const keepEntries, keepLimits = 16, 2

// Batch is a set of checks and their results. Get one with NewBatch, fill it with Add, and give it back with Release.
type Batch struct {
	Checks []Check
	// API is the one that received the call.
	API API
	// Traceparent is the caller's, in the form of W3C Trace Context; "" for none.
	Traceparent string
	// AllOrNothing: when one check of verb Check is denied or fails, nothing is charged and no check is allowed. Verbs
	// Charge and Refund, which cannot be denied, are rejected in such a batch.
	AllOrNothing bool
	// OneRequest: the checks are the descriptors of one request. A rule that one of them matches can replace other rules: the
	// checks of replaced rules are unmatched.
	OneRequest bool
	// Account is the account of new counters; "" means the domains of their checks.
	Account string
	// IdempotencyKey, if not "", names the checks, which are charges and refunds: of the batches of one Caller with it, each is made
	// once within bucket.OnceFor. It has at most MaxIdempotencyKey bytes of visible ASCII.
	IdempotencyKey string
	// Caller is the name of the authenticated caller, "" for none.
	Caller string
	// Busy: the node is overloaded. Rules are matched, but nothing is decided: a check with a limit gets ErrBusy, others are
	// unmatched.
	Busy bool
	// Results has one result per check after Service.Check.
	Results []Result

	// queued has the requests for the Decider; queued.Requests[j] is that of Checks[places[j]].
	queued     check.Batch
	places     []int
	key        []byte
	poolChecks []poolCheck
	named      named
	// reserving is what Reserve asks for, nil for checks.
	reserving *reserving
	// replaced are the names of rules that others of the request replace.
	replaced []string
}

// Result is the result of the Check at the same index.
type Result struct {
	// Decision is zero when Err is set. Unmatched checks have Limit and Remaining at int64's maximum.
	bucket.Decision
	Source check.Source
	// Owner is the name of the node that decided, if one did.
	Owner string
	// Rule is the rule that matched; nil for none and for limits of the check.
	Rule *rules.Rule
	// Limits are those that applied; nil for none.
	Limits *bucket.Limits
	// Period is that of the deciding limit. Calendar units count as 30 days a month and 365 days a year.
	Period time.Duration
	// Shadowed: the rule is in shadow mode, and would have denied.
	Shadowed bool
	// Elastic: a pool admitted it after the key's own limits denied it. All other fields are about these limits.
	Elastic bool
	// DeniedFor is how long a denial cache may keep this denial, for the same limits and at least this cost: at most 100 ms.
	// 0 if it may not.
	DeniedFor time.Duration
	// Staleness is the age of other nodes' counts at the deciding node, if Source is Eventual.
	Staleness time.Duration
	// age is the time since the owner decided.
	age time.Duration
	// Err is set when there is no decision.
	Err *Error

	// unmatched is what the domain says if no rule matches and the check brings no limits, else 0.
	unmatched rules.Unmatched
	// poolAsked: the rule's pool was asked. uncacheable: no owner of the pool has denied, so the denial must not be cached.
	poolAsked, uncacheable bool
	// givenBack: it was admitted, and undone because its all-or-nothing batch failed.
	givenBack bool
}

// Verdict says why a check was allowed or denied. The values are those of sluice.v1.Verdict.
type Verdict uint8

const (
	Undecided Verdict = iota // Err is set
	Allowed
	AllowedSoft
	AllowedShadow
	AllowedElastic
	Denied
	// DeniedNever: the cost can never be admitted.
	DeniedNever
	// DeniedByOthers: it would have been admitted, and another check of an all-or-nothing batch was denied or failed.
	DeniedByOthers
)

var verdicts = [...]string{"", "allowed", "allowed_soft", "allowed_shadow", "allowed_elastic", "denied", "denied_never", "denied_by_others"}

// String returns the name that the APIs use, or "" where there is no decision.
func (v Verdict) String() string { return verdicts[v] }

// Verdict returns why the check was allowed or denied.
func (r *Result) Verdict() Verdict {
	switch {
	case r.Err != nil:
		return Undecided
	case r.Allowed && r.Shadowed:
		return AllowedShadow
	case r.Allowed && r.Elastic:
		return AllowedElastic
	case r.Allowed && r.Soft:
		return AllowedSoft
	case r.Allowed:
		return Allowed
	case r.givenBack:
		return DeniedByOthers
	case r.Never():
		return DeniedNever
	}
	return Denied
}

// RuleName returns the name of the rule that matched, or "".
func (r *Result) RuleName() string {
	if r.Rule == nil {
		return ""
	}
	return r.Rule.Name
}

// LimitPlace returns the place of the deciding limit among those of the rule, or among those that came with the check.
func (r *Result) LimitPlace() int {
	if i := int(r.Index); r.Limits != nil && i < r.Limits.Len() {
		return r.Limits.Place(i)
	}
	return int(r.Index)
}

// Counted reports whether r has what remains of a limit: an unlimited check and a fallback decision do not.
func (r *Result) Counted() bool {
	return r.Limits != nil && r.Source != check.Open && r.Source != check.Closed
}

// LimitName returns the name of limit i.
func (r *Result) LimitName(i int) string {
	switch {
	case r.Rule != nil:
		return r.Rule.LimitName(i)
	case r.Limits != nil && i < r.Limits.Len():
		i = r.Limits.Place(i)
	}
	if i > 0 {
		return "limit#" + strconv.Itoa(i+1)
	}
	return "limit"
}

// Response returns the rule's HTTP response to the denied check; nil if it was not denied, or for the API's default.
func (r *Result) Response() *rules.Response {
	if r.Allowed || r.Err != nil || r.Rule == nil {
		return nil
	}
	return r.Rule.Response
}

// DeniedUnmatched reports whether the check was denied because no rule matches it: see rules.UnmatchedDeny.
func (r *Result) DeniedUnmatched() bool { return r.unmatched == rules.UnmatchedDeny }

// Why is the reason of the denial, or a remedy, for people.
func (r *Result) Why() string {
	switch {
	case r.DeniedUnmatched():
		return "no rule matches, and the rules of the domain deny such checks"
	case r.Never():
		return "the cost is more than the limit can ever admit"
	}
	return "try again later"
}

// Never reports whether the check was denied because it can never be admitted.
func (r *Result) Never() bool { return r.RetryAfter == bucket.Never }

// RetryIn returns the time until the denied check would be admitted, and whether there is one that is known.
func (r *Result) RetryIn() (time.Duration, bool) { return r.RetryAfter, r.RetryAfter > 0 && !r.Never() }

// Overall returns whether all of list are allowed and, if one is denied, the time until all may be, and whether that is known.
func Overall(list []Result) (allowed bool, wait time.Duration, known bool) {
	allowed, known = true, true
	for i := range list {
		r := &list[i]
		if r.Allowed {
			continue
		}
		d, ok := r.RetryIn()
		others := r.givenBack && d == 0 // nothing but the others keeps it from being allowed
		allowed, known, wait = false, known && (ok || others), max(wait, d)
	}
	return allowed, wait, known && !allowed
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch returns an empty batch, perhaps one that was released.
func NewBatch() *Batch { return batches.Get().(*Batch) }

// Add appends a check of cost 1 and returns it for the API to fill. The pointer is valid until the next Add; Descriptor and
// Limits are empty slices to append to.
func (b *Batch) Add() *Check {
	b.Checks = resize(b.Checks, len(b.Checks)+1)
	c := &b.Checks[len(b.Checks)-1]
	c.Cost = 1
	return c
}

// Release gives the batch's memory back. Neither it nor anything reached through it may be used afterwards.
func (b *Batch) Release() {
	b.forget()
	batches.Put(b)
}

// forget empties b and drops all references.
func (b *Batch) forget() {
	for i := range b.Checks {
		c := &b.Checks[i]
		if cap(c.Descriptor) > keepEntries {
			c.Descriptor = nil
		}
		clear(c.Descriptor)
		if cap(c.Limits) > keepLimits {
			c.Limits = nil
		}
		clear(c.Limits)
		*c = Check{Descriptor: c.Descriptor[:0], Limits: c.Limits[:0]}
	}
	b.Checks = b.Checks[:0]
	b.AllOrNothing, b.OneRequest, b.Busy, b.API = false, false, false, OtherAPI
	b.Traceparent, b.Account, b.IdempotencyKey, b.Caller = "", "", "", ""
	b.reserving = nil
	b.start(0)
}

// resize returns list with length n. It keeps all elements within the capacity.
func resize[T any](list []T, n int) []T { return slices.Grow(list, max(0, n-len(list)))[:n] }

// start empties the results and makes room for n.
func (b *Batch) start(n int) {
	clear(b.Results)
	b.requeue()
	b.Results = resize(b.Results, n)
	b.queued.Trace = nil
	b.named = named{}
	clear(b.replaced)
	b.replaced = b.replaced[:0]
}

// requeue empties the queue for other requests of the same batch.
func (b *Batch) requeue() {
	clear(b.queued.Requests)
	clear(b.queued.Answers)
	b.queued = check.Batch{Requests: b.queued.Requests[:0], Answers: b.queued.Answers[:0], Trace: b.queued.Trace}
	b.places = b.places[:0]
}

// enqueue queues r as the request of check i.
func (b *Batch) enqueue(i int, r check.Request) {
	b.queued.Requests = append(b.queued.Requests, r)
	b.places = append(b.places, i)
}
