// Package rules turns YAML rule files into an immutable Set and says which rule, with which limits, applies to a
// descriptor. It neither decides checks nor reads files: internal/rulefiles reads and watches them. It is pure, starts
// no goroutine, and a Set may be used by any number of them.
//
// The grammar extends that of envoyproxy/ratelimit; docs/use/rules.md is its reference and schema.json its JSON Schema.
package rules

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluicecluster/sluice/bucket"
)

// Entry is one (key, value) of a descriptor.
type Entry struct{ Key, Value string }

// OnFailure is the fallback for a check that no owner can decide.
type OnFailure uint8

const (
	// FailShare admits up to a share of the limit on the receiving node, in a counter of its own.
	FailShare OnFailure = iota
	// FailClosed denies.
	FailClosed
	// FailOpen admits.
	FailOpen
)

// UnknownShare is a node's share of a limit if it remembers no decision of the key's owner.
type UnknownShare uint8

const (
	// UnknownLimit gives a part of the limit: all of it divided by the voters.
	UnknownLimit UnknownShare = iota
	// UnknownNone gives nothing.
	UnknownNone
)

// OnLostState says how a check is decided after its counter was lost: the owner and all replicas are gone, or in a minority.
type OnLostState uint8

const (
	// LostFresh starts with nothing spent.
	LostFresh OnLostState = iota
	// LostDeny counts everything as spent that may have been.
	LostDeny
)

// Unmatched says what becomes of a check that no rule of its domain matches.
type Unmatched uint8

const (
	// UnmatchedAllow allows it.
	UnmatchedAllow Unmatched = iota + 1
	// UnmatchedWarn allows it, and reports it. The default.
	UnmatchedWarn
	// UnmatchedDeny denies and reports it.
	UnmatchedDeny
)

// Consistency says where a rule's checks are decided.
type Consistency uint8

const (
	// Strict decides every check at the key's owner, exactly.
	Strict Consistency = iota
	// Eventual decides on the receiving node, on a share of what was left when the owner last reported it, and sends the
	// charge to the owner afterwards. Only for rules of one fixed window that is aligned to the epoch or the calendar.
	Eventual
)

// Rule is what limits the descriptors that match it. It is immutable.
type Rule struct {
	Domain string
	// Name is the rule's own name, else its path, for example "auth/auth_type=login".
	Name string
	// Path leads to the rule in its domain, always.
	Path string
	// File and Line locate the rule.
	File string
	Line int
	// Limits is nil if and only if the rule is Unlimited.
	Limits    *bucket.Limits
	Unlimited bool
	// Otherwise: the rule is for descriptors that no other rule matches. They begin with its entries.
	Otherwise bool
	// Shadow: the rule counts, and what it denies is admitted.
	Shadow bool
	// Quota: a request is over its limits only if one of its rules without Quota is, or all of those with Quota are.
	Quota bool
	// Replaces names rules that are left out of a request this rule applies to.
	Replaces    []string
	Consistency Consistency
	// Global: all regions share each counter, which the cluster of region Home has. Otherwise Home is "".
	Global      bool
	Home        string
	Replication Replication
	// OnFailure is the fallback when the owner cannot be reached in time, OnPartition when the receiving node has no quorum.
	OnFailure, OnPartition OnFailure
	// StatesOnFailure: OnFailure is stated, and no default. Then it binds clients too.
	StatesOnFailure bool
	UnknownShare    UnknownShare
	OnLostState     OnLostState
	// NoDenialCache: clients refund or reset now and then, so a denial may end at any time and must not be cached.
	NoDenialCache bool
	// Elastic is nil if the rule takes from no pool.
	Elastic *Elastic
	// Reservation says how units of the rule are reserved.
	Reservation Reservation
	// Response is nil for the API's default.
	Response *Response
	// Metadata is the rule's free-form mapping: strings, booleans, float64,
	// nil, []any and map[string]any.
	Metadata map[string]any
	// DetailedMetric: AppendMetric spells out every value.
	DetailedMetric bool

	limitNames []string
	levels     []level
}

// Response is the response of an HTTP API when the rule denies.
type Response struct {
	// Status is 0 for the API's default, else 400 to 599.
	Status  int
	Headers []Header
	Body    string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// LimitName returns the name of limit i of the rule: its own, or the rule's with "#2" for the second limit and so on.
func (r *Rule) LimitName(i int) string { return r.limitNames[i] }

// Entries returns the levels that lead to the rule, as written: a value may be a pattern, or empty for any.
func (r *Rule) Entries() []Entry {
	out := make([]Entry, len(r.levels))
	for i := range r.levels {
		out[i] = r.levels[i].entry
	}
	return out
}

func (f OnFailure) String() string    { return nameOf(onFailures, f) }
func (u UnknownShare) String() string { return nameOf(unknownShares, u) }
func (o OnLostState) String() string  { return nameOf(onLostStates, o) }
func (u Unmatched) String() string    { return nameOf(unmatcheds, u) }
func (c Consistency) String() string  { return nameOf(consistencies, c) }

// Set is an immutable set of rules for any number of domains. The zero Set has none.
type Set struct {
	domains  map[string]*domain
	rules    []*Rule
	warnings []Warning
	slots    bool
}

// domain is what the rule files say about one domain.
type domain struct {
	name      string
	root      node // file and line are those of the first file
	authorize *Authorize
	pools     map[string]*Pool
	unmatched Unmatched // 0 is the default
	// maxKeys is 0 without a bound.
	maxKeys int64
	// private are the keys whose values are not to be shown.
	private map[string]bool
}

// Warning is something in a rule file that loads but may not do what its author expects.
type Warning struct {
	File string
	Line int
	Path string
	Text string
}

func (w Warning) String() string { return place(w.File, w.Line, w.Path) + w.Text }

// Domains returns the names of the domains, sorted.
func (s *Set) Domains() []string { return slices.Sorted(maps.Keys(s.domains)) }

// MaxKeys returns how many counters of each domain a node may hold at once, 0 for domains without a bound of their own.
func (s *Set) MaxKeys() map[string]int64 {
	caps := make(map[string]int64, len(s.domains))
	for name, d := range s.domains {
		caps[name] = d.maxKeys
	}
	return caps
}

// Unmatched returns what becomes of the domain's checks that no rule matches: UnmatchedWarn in a domain without rules. s may
// be nil: no rules.
func (s *Set) Unmatched(domain string) Unmatched {
	if s == nil || s.domains[domain] == nil {
		return UnmatchedWarn
	}
	return cmp.Or(s.domains[domain].unmatched, UnmatchedWarn)
}

// Rules returns every rule in the order of the files given to Parse.
func (s *Set) Rules() []*Rule { return slices.Clone(s.rules) }

// Slots reports whether any rule has a limit with algorithm concurrency. s may be nil: no rules.
func (s *Set) Slots() bool { return s != nil && s.slots }

// Warnings returns the warnings about the files.
func (s *Set) Warnings() []Warning { return slices.Clone(s.warnings) }

// Redacts reports whether the value of entry i, whose key is key, of a descriptor under r is private: a descriptor of the
// domain with that key has redact, and what would be shown does not stand in the rule files, as a value or as the
// pattern of a shared counter does. r is nil if no rule matches. s may be nil: no rules.
func (s *Set) Redacts(r *Rule, domain string, i int, key string) bool {
	if s == nil {
		return false
	}
	if d := s.domains[domain]; d == nil || !d.private[key] {
		return false
	}
	if r == nil || i >= len(r.levels) {
		return true
	}
	return !r.levels[i].shared && r.levels[i].entry.anyValue()
}
