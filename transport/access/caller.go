package access

import (
	"slices"
	"strings"
)

// Caller is somebody whom the file names, or, without a name, everybody else. It is immutable.
type Caller struct {
	// Name is for logs and messages.
	Name string
	// MaxKeys is how many counters that the caller makes a node holds at once; 0 is no bound.
	MaxKeys int64
	exact   map[string]verbs
	// prefixes are sorted by their text. They and exact have the verbs of all that cover them.
	prefixes []prefix
}

// prefix is what domains may begin with.
type prefix struct {
	text  string
	verbs verbs
	// outer is the place of the longest other prefix that text begins with; -1 if there is none.
	outer int
}

// grant is one of the file's: the verbs in domains that are called, or begin with, a text.
type grant struct {
	domain string
	prefix bool
	verbs  verbs
}

// newCaller returns the caller with these grants.
func newCaller(name string, grants []grant) *Caller {
	c := &Caller{Name: name, exact: make(map[string]verbs)}
	begins := make(map[string]verbs)
	for _, g := range grants {
		if g.prefix {
			begins[g.domain] |= g.verbs
		} else {
			c.exact[g.domain] |= g.verbs
		}
	}
	for text, v := range begins {
		c.prefixes = append(c.prefixes, prefix{text: text, verbs: v})
	}
	slices.SortFunc(c.prefixes, func(a, b prefix) int { return strings.Compare(a.text, b.text) })
	for i := range c.prefixes {
		p := &c.prefixes[i]
		if p.outer = c.longest(i-1, p.text); p.outer >= 0 {
			p.verbs |= c.prefixes[p.outer].verbs
		}
	}
	for domain, v := range c.exact {
		c.exact[domain] = v | c.byPrefix(domain)
	}
	return c
}

// longest returns the place of the longest prefix that s begins with, -1 for none. i is the place of the last one that is
// not above s. All that lie between the one looked for and s begin with it, so it is i or one that i is within.
func (c *Caller) longest(i int, s string) int {
	for i >= 0 && !strings.HasPrefix(s, c.prefixes[i].text) {
		i = c.prefixes[i].outer
	}
	return i
}

func (c *Caller) byPrefix(domain string) verbs {
	low, high := 0, len(c.prefixes)
	for low < high {
		if mid := (low + high) / 2; c.prefixes[mid].text <= domain {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if i := c.longest(low-1, domain); i >= 0 {
		return c.prefixes[i].verbs
	}
	return 0
}

// Account is what the caller's counters are accounted to where they have a bound; else "", for their domains.
func (c *Caller) Account() string {
	if c.MaxKeys == 0 {
		return ""
	}
	return "(caller) " + c.Name
}

// May reports whether the caller has verb in domain. The domain "" stands for all: it takes a grant of the
// domain *.
func (c *Caller) May(verb Verb, domain string) bool {
	if v, ok := c.exact[domain]; ok {
		return v.has(verb)
	}
	return c.byPrefix(domain).has(verb)
}
