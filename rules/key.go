package rules

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/sluicecluster/sluice/internal/leaf/descvalue"
)

// level is one entry that leads to a rule.
type level struct {
	entry Entry
	// shared: all values that match the pattern have one counter.
	shared        bool
	valueToMetric bool
	prefix        *IPPrefix
}

// IPPrefix says how many leading bits of an address name its counter.
type IPPrefix struct{ V4, V6 int }

// Kinds of values in a counter's name, so that a value that reads like a pattern or an address block is not mistaken for one.
const (
	plainValue = iota
	patternValue
	blockValue
	kinds
)

// AppendKey appends the bytes that name the counter of descriptor under r: the domain and the entries, each with its
// length, values normalised by the rule (patterns that share one counter, address prefixes) and shortened if they are too
// long or not UTF-8 (descvalue.Of). r may be nil: plain entries. Different names never give equal bytes. If dst has room it
// does not allocate, except for a value that is shortened and for a value under ip_prefix that is no address.
func (r *Rule) AppendKey(dst []byte, domain string, descriptor []Entry) []byte {
	dst = appendSized(dst, domain, plainValue)
	for i, e := range descriptor {
		dst = appendSized(dst, e.Key, plainValue)
		if r == nil || i >= len(r.levels) {
			dst = appendSized(dst, descvalue.Of(e.Value), plainValue)
			continue
		}
		switch l := &r.levels[i]; {
		case l.shared:
			dst = appendSized(dst, l.entry.Value, patternValue)
		case l.prefix != nil:
			dst = l.prefix.append(dst, e.Value)
		default:
			dst = appendSized(dst, descvalue.Of(e.Value), plainValue)
		}
	}
	return dst
}

// AppendValue appends, for people, the value of the descriptor's entry i as the counter under r has it: shortened if it is
// too long or not UTF-8, or the pattern or the block of addresses that it counts in. r may be nil.
func (r *Rule) AppendValue(dst []byte, i int, value string) []byte {
	if r == nil || i >= len(r.levels) {
		return append(dst, descvalue.Of(value)...)
	}
	switch l := &r.levels[i]; {
	case l.shared:
		return append(dst, l.entry.Value...)
	case l.prefix != nil:
		if b, ok := l.prefix.block(value); ok {
			return b.AppendTo(dst)
		}
	}
	return append(dst, descvalue.Of(value)...)
}

func appendSized(dst []byte, s string, kind uint64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s))*kinds+kind)
	return append(dst, s...)
}

// of returns the block of addresses that addr is in. An IPv4 address mapped into IPv6 is the IPv4 address; the zone of
// an IPv6 address is dropped. addr must be valid.
func (p IPPrefix) of(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := p.V6
	if addr.Is4() {
		bits = p.V4
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// Mask returns the first address of the block that addr is in. It is unmapped and has no zone. addr must be valid.
func (p IPPrefix) Mask(addr netip.Addr) netip.Addr { return p.of(addr).Addr() }

// block returns the block of addresses that value is in; ok is false if value is no address. Of a list the last address counts: the
// nearest proxy has added it, and clients may make up those before it.
func (p *IPPrefix) block(value string) (b netip.Prefix, ok bool) {
	addr, ok := Address(value[strings.LastIndexByte(value, ',')+1:])
	if !ok {
		return b, false
	}
	return p.of(addr), true
}

func (p *IPPrefix) append(dst []byte, value string) []byte {
	b, ok := p.block(value)
	if !ok {
		return appendSized(dst, descvalue.Of(value), plainValue)
	}
	a := b.Addr().As16()
	first := a[:]
	if b.Addr().Is4() {
		first = a[12:]
	}
	dst = binary.AppendUvarint(dst, uint64(1+len(first))*kinds+blockValue)
	return append(append(dst, byte(b.Bits())), first...)
}

// node is one level of a domain's tree.
type node struct {
	// exact holds the children with a value, patterns too under their literal text; byKey those without a value. wild
	// holds the patterns of a key in the files' order.
	exact map[Entry]*node
	wild  map[string][]wildcard
	byKey map[string]*node
	// rule is nil when the level only leads to others. otherwise is for descriptors that no rule below matches, nil for none.
	rule, otherwise *Rule

	entry Entry
	file  string
	line  int
}

// wildcard is a value in which * stands for any characters, or none: it begins with first, ends with last, and has the
// middle parts between them in order.
type wildcard struct {
	first, last string
	middle      []string
	least       int // the length that first and last take
	to          *node
}

func newWildcard(pattern string, to *node) wildcard {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	return wildcard{first: first, last: last, middle: parts[1 : len(parts)-1], least: len(first) + len(last), to: to}
}

func (w *wildcard) matches(s string) bool {
	if len(s) < w.least || !strings.HasPrefix(s, w.first) || !strings.HasSuffix(s, w.last) {
		return false
	}
	s = s[len(w.first) : len(s)-len(w.last)]
	for _, part := range w.middle {
		at := strings.Index(s, part)
		if at < 0 {
			return false
		}
		s = s[at+len(part):]
	}
	return true
}

// next returns the child that e leads to: the exact key and value, else the first pattern in the files' order, else the
// key alone.
func (n *node) next(e Entry) *node {
	if e.Value != "" {
		if to := n.exact[e]; to != nil {
			return to
		}
	}
	patterns := n.wild[e.Key]
	for i := range patterns {
		if patterns[i].matches(e.Value) {
			return patterns[i].to
		}
	}
	return n.byKey[e.Key]
}

// Match returns the rule that applies to descriptor, nil if none does, and whether the domain has rules at all. A rule
// only matches descriptors of its own depth. There is no backtracking: a matching value at a level hides the rules of its
// key alone. If no rule matches, the otherwise rule of the deepest level that was reached applies. Match does not allocate.
func (s *Set) Match(domain string, descriptor []Entry) (rule *Rule, known bool) {
	d := s.domains[domain]
	if d == nil {
		return nil, false
	}
	n := &d.root
	for _, e := range descriptor {
		if n.otherwise != nil {
			rule = n.otherwise
		}
		if n = n.next(e); n == nil {
			return rule, true
		}
	}
	return n.ends(rule), true
}

// ends returns the rule for descriptors that end at n, if otherwise is that of the levels before.
func (n *node) ends(otherwise *Rule) *Rule { return cmp.Or(n.rule, n.otherwise, otherwise) }
