// Package rules turns YAML rule files into an immutable Set and says which rule,
// with which limits, applies to a descriptor. It decides nothing about counters and reads no
// file: internal/rulefiles brings the bytes and watches them. It is pure, starts
// no goroutine, and a Set may be used by any number of them.
//
// The grammar is that of envoyproxy/ratelimit and more; docs/rules.md is its
// reference and schema.json its JSON Schema.
package rules

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/bucket"
)

// Schema is the JSON Schema (draft 2020-12) of rule files.
//
//go:embed schema.json
var Schema string

// Entry is one (key, value) of a descriptor.
type Entry struct{ Key, Value string }

// OnFailure says what answers a check when nobody can decide it at full limit.
type OnFailure uint8

const (
	// FailShare admits a share of the limit on the node asked, counted apart.
	FailShare OnFailure = iota
	// FailClosed denies.
	FailClosed
	// FailOpen admits.
	FailOpen
)

// UnknownShare says what a node's share of a limit is if it remembers no answer of the key's owner.
type UnknownShare uint8

const (
	// UnknownLimit gives a part of the limit: all of it divided by the voters.
	UnknownLimit UnknownShare = iota
	// UnknownNone gives nothing.
	UnknownNone
)

// OnLostState says how a check is decided whose counter was lost: its owner and all replicas are gone, or in a minority.
type OnLostState uint8

const (
	// LostFresh begins anew with nothing spent.
	LostFresh OnLostState = iota
	// LostDeny takes all for spent that may have been.
	LostDeny
)

// Consistency says where a rule's checks are decided.
type Consistency uint8

const (
	// Strict decides every check at the key's owner, exactly.
	Strict Consistency = iota
	// Eventual decides on the node asked, on a share of what was left when it last heard, and tells the owner
	// afterwards. Only for rules of one fixed window that is aligned to the epoch or the calendar.
	Eventual
)

// Rule is what one descriptor is held to. It is immutable.
type Rule struct {
	Domain string
	// Name is the rule's own name, else its path, for example "auth/auth_type=login".
	Name string
	// Path leads to the rule in its domain, always.
	Path string
	// File and Line say where the rule is written.
	File string
	Line int
	// Limits is nil if and only if the rule is Unlimited.
	Limits    *bucket.Limits
	Unlimited bool
	// Shadow: the rule counts, and what it denies is admitted.
	Shadow bool
	// Quota: a request is over only if one of its rules without Quota is, or
	// all of those with Quota are.
	Quota bool
	// Replaces names rules that are left out of a request this rule applies to.
	Replaces    []string
	Consistency Consistency
	Replication Replication
	// OnFailure answers when the owner cannot be reached in time, OnPartition
	// when the node asked is on the smaller side of a cut and has lost quorum to
	// decide.
	OnFailure, OnPartition OnFailure
	// UnknownShare says what is shared of a key that the node asked knows nothing of.
	UnknownShare UnknownShare
	// OnLostState says what a takeover without state means for the rule's keys.
	OnLostState OnLostState
	// Refunds: what was spent is given back or reset now and then, so a denial may end at any
	// time and nobody is to answer it from memory.
	Refunds bool
	// Elastic is nil where what the limits deny is denied.
	Elastic *Elastic
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

// Response is what an HTTP API answers when the rule denies.
type Response struct {
	// Status is 0 for the API's default, else 400 to 599.
	Status  int
	Headers []Header
	Body    string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// LimitName returns the name of limit i of the rule: its own, or the rule's
// with "#2" for the second limit and so on.
func (r *Rule) LimitName(i int) string { return r.limitNames[i] }

// Entries returns the levels that lead to the rule, as written: a value may be a
// pattern, or empty for any.
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
func (c Consistency) String() string  { return nameOf(consistencies, c) }

// Set is an immutable set of rules for any number of domains. The zero Set has none.
type Set struct {
	domains   map[string]*node
	authorize map[string]*Authorize
	rules     []*Rule
	warnings  []Warning
	// pools are by domain and name. elastic is empty once all files are read.
	pools   map[string]map[string]*Pool
	elastic []elasticRef
	// maxKeys are the caps of domains that have one.
	maxKeys map[string]int64
	// private are the keys, by domain, whose values are not to be shown.
	private map[string]map[string]bool
}

// Warning is something in a rule file that loads but may not do what its writer
// expects.
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
	for domain := range s.domains {
		caps[domain] = s.maxKeys[domain]
	}
	return caps
}

// Rules returns every rule in the order of the files given to Parse.
func (s *Set) Rules() []*Rule { return slices.Clone(s.rules) }

// Warnings returns what in the files may not do what is expected of it, such as
// keys that are not yet in force.
func (s *Set) Warnings() []Warning { return slices.Clone(s.warnings) }

// readRedact reads whether the values of the descriptor's key are private.
func (p *parser) readRedact(d *descriptor, domain string) {
	if !p.flag(d, "redact") {
		return
	}
	f := d.fields["redact"]
	switch pattern := strings.Contains(d.entry.Value, "*"); {
	case d.entry.Value != "" && !pattern:
		p.FaultAt(f.Line, d.path+".redact", "needs a descriptor that many values match: value %s stands in this file for everybody to read", shorten(d.entry.Value))
	case d.level.shared:
		p.FaultAt(f.Line, d.path+".redact", "excludes share_threshold, which shows the pattern and no value")
	}
	keys := p.set.private[domain]
	if keys == nil {
		keys = make(map[string]bool)
		p.set.private[domain] = keys
	}
	keys[d.entry.Key] = true
}

// Redacts reports whether the value of entry i of a descriptor under r, of which the key is key, is private: some
// descriptor of the domain with that key says redact, and what there is to show is not what the rule files
// say themselves, a value or the pattern of a shared counter. r is nil where no rule applies. s may be nil: no rules.
func (s *Set) Redacts(r *Rule, domain string, i int, key string) bool {
	if s == nil || !s.private[domain][key] {
		return false
	}
	if r == nil || i >= len(r.levels) {
		return true
	}
	l := &r.levels[i]
	return !l.shared && (l.entry.Value == "" || strings.Contains(l.entry.Value, "*"))
}
