package rules

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/sluice-project/sluice/internal/shortvalue"
)

// level is what a rule knows of one entry that leads to it.
type level struct {
	entry Entry
	// shared: all values that match the pattern have one counter.
	shared        bool
	valueToMetric bool
	prefix        *IPPrefix
}

// IPPrefix says how many leading bits of an address name its counter.
type IPPrefix struct{ V4, V6 int }

// Kinds of values in a counter's name. They keep a value that happens to read
// like a pattern or an address block apart from the real one.
const (
	plainValue = iota
	patternValue
	blockValue
	kinds
)

// AppendKey appends the bytes that name the counter of descriptor under r: the
// domain and the entries, each with its length, values normalised by the rule
// (patterns that share one counter, address prefixes) and shortened if they are too long or not UTF-8 (shortvalue.Of). r may be
// nil: plain entries. Different names never give equal bytes. If dst has room it does not allocate, except for
// a value that is shortened and for the parser's error about a value under ip_prefix that is no address.
func (r *Rule) AppendKey(dst []byte, domain string, descriptor []Entry) []byte {
	dst = appendSized(dst, domain, plainValue)
	for i, e := range descriptor {
		dst = appendSized(dst, e.Key, plainValue)
		if r == nil || i >= len(r.levels) {
			dst = appendSized(dst, shortvalue.Of(e.Value), plainValue)
			continue
		}
		switch l := &r.levels[i]; {
		case l.shared:
			dst = appendSized(dst, l.entry.Value, patternValue)
		case l.prefix != nil:
			dst = l.prefix.append(dst, e.Value)
		default:
			dst = appendSized(dst, shortvalue.Of(e.Value), plainValue)
		}
	}
	return dst
}

// AppendValue appends, for people, the value of the descriptor's entry i as the counter under r has it: that
// which came, shortened if it is too long or not UTF-8, or the pattern or the block of addresses that it counts in. r may be
// nil: what came.
func (r *Rule) AppendValue(dst []byte, i int, value string) []byte {
	if r == nil || i >= len(r.levels) {
		return append(dst, shortvalue.Of(value)...)
	}
	switch l := &r.levels[i]; {
	case l.shared:
		return append(dst, l.entry.Value...)
	case l.prefix != nil:
		if b, ok := l.prefix.block(value); ok {
			return b.AppendTo(dst)
		}
	}
	return append(dst, shortvalue.Of(value)...)
}

func appendSized(dst []byte, s string, kind uint64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s))*kinds+kind)
	return append(dst, s...)
}

// block returns the block of addresses that value is in. An IPv4 address mapped
// into IPv6 is the IPv4 address; the zone of an IPv6 address is dropped. ok is
// false if value is no address.
func (p *IPPrefix) block(value string) (b netip.Prefix, ok bool) {
	// The zone is cut here because ParseAddr would keep a copy of it.
	if i := strings.IndexByte(value, '%'); i > 0 && strings.IndexByte(value[:i], ':') >= 0 {
		value = value[:i]
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return b, false
	}
	addr = addr.Unmap()
	bits := p.V6
	if addr.Is4() {
		bits = p.V4
	}
	b, err = addr.Prefix(bits)
	return b, err == nil
}

func (p *IPPrefix) append(dst []byte, value string) []byte {
	b, ok := p.block(value)
	if !ok {
		return appendSized(dst, shortvalue.Of(value), plainValue)
	}
	if b.Addr().Is4() {
		a := b.Addr().As4()
		dst = binary.AppendUvarint(dst, uint64(1+len(a))*kinds+blockValue)
		return append(append(dst, byte(b.Bits())), a[:]...)
	}
	a := b.Addr().As16()
	dst = binary.AppendUvarint(dst, uint64(1+len(a))*kinds+blockValue)
	return append(append(dst, byte(b.Bits())), a[:]...)
}
