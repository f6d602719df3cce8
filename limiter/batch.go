package limiter

import (
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// Bounds of what an API may ask. A check outside them is answered with an Error
// and charges nothing.
const (
	// MaxChecks is the most checks of one call.
	MaxChecks = 10_000
	// MaxEntries is the most entries of one descriptor: no rule lies deeper.
	MaxEntries = rules.MaxDepth
	// MaxText is the most bytes of a domain or a key. Values may be longer: see rules.Rule.AppendKey.
	MaxText = rules.MaxEntryBytes
	// MaxResponses is how many bytes the responses of rules may take in one answer, so that they
	// do not make it larger than clients read. Those beyond it are left out.
	MaxResponses = 1 << 20
)

// Check is one question: may this descriptor spend this cost now?
type Check struct {
	Domain     string
	Descriptor []rules.Entry
	// Cost is 0 or more; with verb Check, 0 only reads. Batch.Add sets it to 1.
	Cost int64
	// Verb is any. Reset, which ignores the cost, is for APIs whose callers mix it with
	// checks; Service.Reset is the call for it alone.
	Verb bucket.Verb
	// Drain and NoDelay are those of bucket.Request. An all-or-nothing batch, which gives back
	// what it charged, rejects Reset and Drain.
	Drain, NoDelay bool
	// Limits come with the check. When there are any, no rule is matched, and
	// what is spent is counted apart from what rules count: see Limiter.
	Limits []bucket.Limit
	// Fault is set by an API that could read the call but not this check, for
	// example an enum out of range. It becomes the result's Err.
	Fault *Error
}

// keepEntries is the largest descriptor whose memory a pooled batch keeps.
const keepEntries = 16

// keepLimits is the same for the limits that came with a check.
const keepLimits = 2

// Batch is a set of checks asked together, with the memory to answer them. Get
// one with NewBatch, fill it with Add, and give it back with Release.
type Batch struct {
	Checks []Check
	// API is the one that the call came in by.
	API API
	// Traceparent is what the caller says of its trace, in the form of W3C Trace Context; "" for nothing.
	Traceparent string
	// AllOrNothing: when one check of verb Check is denied or fails, nothing is
	// charged and no check is allowed. Verbs Charge and Refund, which cannot be
	// denied, are rejected in such a batch.
	AllOrNothing bool
	// OneRequest: the checks are the descriptors of one request, so that a rule which
	// one of them matches leaves out of it the rules that it replaces: their checks are
	// answered as unmatched.
	OneRequest bool
	// Account is what counters are accounted to that the call makes, instead of the domains of its checks. "" for these.
	Account string
	// Busy: the node has too much to do. Rules are matched, and nothing is decided: each check that is held to a limit has
	// ErrBusy, all others are answered as unmatched.
	Busy bool
	// Results has one result per check after Service.Check or Reset.
	Results []Result

	// asked holds what is left to decide; asked.Requests[j] is Checks[places[j]].
	asked  check.Batch
	places []int
	key    []byte
	turned []turn
	named  named
	// replaced are the names of rules that are left out of the request.
	replaced []string
}

// Result is what became of the Check at the same index.
type Result struct {
	// Decision is zero when Err is set. Unmatched checks have Limit and Remaining
	// at int64's maximum.
	bucket.Decision
	Source check.Source
	// Owner is the name of the node that decided, if one did.
	Owner string
	// Rule is the rule that matched; nil when none did or the limits came with
	// the check.
	Rule *rules.Rule
	// Limits are what the check was held to; nil when to nothing.
	Limits *bucket.Limits
	// Period is that of the deciding limit. Calendar units count as 30 days a
	// month and 365 days a year.
	Period time.Duration
	// Shadowed: the rule only watches, and would have denied.
	Shadowed bool
	// Elastic: a pool has admitted what the key's own limits denied. All else is about these, Source and
	// Owner too.
	Elastic bool
	// DeniedFor is how long callers may answer this denial from memory, for the same limits and
	// at least this cost: at most 100 ms. 0 if it was no denial, and where only asking
	// tells.
	DeniedFor time.Duration
	// Staleness is how old what the deciding node knew of the whole was, if Source is Eventual.
	Staleness time.Duration
	// age is how long ago the owner was asked.
	age time.Duration
	// Err is set when there is no decision.
	Err *Error

	// unmatched: no rule matches, and the check brings no limits.
	unmatched bool
	// asked: the rule's pool was asked. fleeting: its owner has not denied, so nobody is to answer
	// this denial from memory.
	asked, fleeting bool
	// givenBack: it was admitted, and given back with the rest of an all-or-nothing batch.
	givenBack bool
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

// Response returns what the rule answers over HTTP to the check that it denied; nil if it was not
// denied, or for the API's default.
func (r *Result) Response() *rules.Response {
	if r.Allowed || r.Err != nil || r.Rule == nil {
		return nil
	}
	return r.Rule.Response
}

// Never reports whether the check was denied because its cost can never be admitted.
func (r *Result) Never() bool { return r.RetryAfter == bucket.Never }

var batches = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch returns an empty batch, perhaps one that was released.
func NewBatch() *Batch { return batches.Get().(*Batch) }

// Add appends a check of cost 1 and returns it for the API to fill. The pointer
// is good until the next Add; Descriptor and Limits are empty slices to append to.
func (b *Batch) Add() *Check {
	if n := len(b.Checks); n < cap(b.Checks) {
		b.Checks = b.Checks[:n+1]
	} else {
		b.Checks = append(b.Checks, Check{})
	}
	c := &b.Checks[len(b.Checks)-1]
	c.Cost = 1
	return c
}

// Release gives the batch's memory back. Neither it nor anything reached through
// it may be used afterwards.
func (b *Batch) Release() {
	b.forget()
	batches.Put(b)
}

// forget empties b and lets go of everything that it refers to.
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
	b.AllOrNothing, b.OneRequest, b.Busy, b.API, b.Traceparent, b.Account = false, false, false, OtherAPI, "", ""
	b.start(0)
}

// start empties what answers the batch and makes room for n results.
func (b *Batch) start(n int) {
	clear(b.Results)
	clear(b.asked.Requests)
	clear(b.asked.Answers)
	if cap(b.Results) < n {
		b.Results = make([]Result, n)
	}
	b.Results = b.Results[:n]
	b.asked.Requests = b.asked.Requests[:0]
	b.asked.Answers = b.asked.Answers[:0]
	b.asked.AllOrNothing, b.asked.Trace = false, nil
	b.named = named{}
	b.places = b.places[:0]
	clear(b.replaced)
	b.replaced = b.replaced[:0]
}

// ask queues r as the question of check i.
func (b *Batch) ask(i int, r check.Request) {
	b.asked.Requests = append(b.asked.Requests, r)
	b.places = append(b.places, i)
}

// room sizes the answers to the questions.
func (b *Batch) room() {
	n := len(b.asked.Requests)
	if cap(b.asked.Answers) < n {
		b.asked.Answers = make([]check.Answer, n)
	}
	b.asked.Answers = b.asked.Answers[:n]
}
