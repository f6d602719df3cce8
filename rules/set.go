package rules

import (
	"maps"
	"slices"
)

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
