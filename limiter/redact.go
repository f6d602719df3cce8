package limiter

import (
	"encoding/hex"

	"github.com/dchest/siphash"

	"github.com/sluice-project/sluice/rules"
)

// redacted is what a private value is shown as, with redactedBytes of its hash, in hex, behind it.
const (
	redacted      = "redacted:"
	redactedBytes = 6
)

// AppendShown appends the value of e, entry i of a descriptor of domain that rule applies to, as people may see it: as
// the counter has it, so the pattern or the block of addresses of values that share one, and as a keyed hash if
// set says that it is private (rules.Set.Redacts). It is the one way by which a descriptor's value may get into a log, a
// trace, or what callers are shown who have not sent it. rule may be nil, none applies, and set too. With room in dst it does not
// allocate.
func (h Hasher) AppendShown(dst []byte, set *rules.Set, rule *rules.Rule, domain string, i int, e rules.Entry) []byte {
	at := len(dst)
	dst = rule.AppendValue(dst, i, e.Value)
	if !set.Redacts(rule, domain, i, e.Key) {
		return dst
	}
	// The key's length keeps ("a", "bc") and ("ab", "c") apart. The domain is left out: one user of two domains is to
	// be known as one.
	named := append(dst, e.Key...)
	named = append(named, byte(len(e.Key)), byte(len(e.Key)>>8))
	sum, _ := siphash.Hash128(h.private[0], h.private[1], named[at:])
	var b [8]byte
	for j := range b {
		b[j] = byte(sum >> (8 * j))
	}
	return hex.AppendEncode(append(dst[:at], redacted...), b[:redactedBytes])
}

// Shown returns descriptor as people may see it under the rules in force: see Hasher.AppendShown.
func (s *Limiter) Shown(domain string, descriptor []rules.Entry) []rules.Entry {
	set := s.Rules()
	var rule *rules.Rule
	if set != nil {
		rule, _ = set.Match(domain, descriptor)
	}
	return s.shown(set, rule, domain, descriptor)
}

func (s *Limiter) shown(set *rules.Set, rule *rules.Rule, domain string, descriptor []rules.Entry) []rules.Entry {
	out := make([]rules.Entry, len(descriptor))
	var buf []byte
	for i, e := range descriptor {
		buf = s.config.Hasher.AppendShown(buf[:0], set, rule, domain, i, e)
		out[i] = rules.Entry{Key: e.Key, Value: string(buf)}
	}
	return out
}
