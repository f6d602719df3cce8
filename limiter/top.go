package limiter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/rules"
)

// TopKeys says whether a node counts its heaviest keys by name, and who may see them: values in
// descriptors may be personal data.
type TopKeys uint8

const (
	// TopLocal shows them to operators, to callers that may read, and to the other nodes.
	TopLocal TopKeys = iota
	// TopOn shows them to everybody.
	TopOn
	// TopOff counts nothing.
	TopOff
)

// TopBy says what makes a key heavy.
type TopBy uint8

const (
	// ByLimited counts denied checks, those too that a rule in shadow mode would have denied.
	ByLimited TopBy = iota
	// ByFrequent counts checks.
	ByFrequent
)

func (b TopBy) String() string {
	if b == ByFrequent {
		return "frequent"
	}
	return "limited"
}

// MaxTop is the most keys of one answer.
const MaxTop = 100

// TopQuery asks for the heaviest keys.
type TopQuery struct {
	By TopBy
	// N is how many, 1 to MaxTop.
	N int
	// Domain is the only one that is asked about; empty for all.
	Domain string
	// Operator: the caller may see what TopLocal shows.
	Operator bool
}

// NodeTop is what one node has counted.
type NodeTop struct {
	Node string
	// Off: it counts nothing.
	Off bool
	// Covers is how much time up to now Keys is about.
	Covers time.Duration
	Keys   []heavy.Entry
}

// TopKey is one of the heaviest keys.
type TopKey struct {
	Domain string
	// Descriptor is as the counter has it: of values that share one, the pattern or the block of addresses.
	Descriptor []rules.Entry
	// Rule is the rule's name, empty where checks bring their limits.
	Rule string
	// Cut: the name was too long and is not complete.
	Cut bool
	// Count is the checks, or the denied ones, of the time that is covered. It is too high by at most Error, and where
	// checks are sampled it is an estimate.
	Count, Error uint64
	// PerSecond is Count for each second covered.
	PerSecond float64
}

// Top is the heaviest keys of the cluster.
type Top struct {
	By TopBy
	// Covers is the longest time that a node's counts are about.
	Covers time.Duration
	Keys   []TopKey
	// Nodes have answered, Missing have not, or count nothing. Both are sorted.
	Nodes, Missing []string
}

// Top implements Service.
func (s *Limiter) Top(ctx context.Context, q TopQuery) (Top, error) {
	switch {
	case s.top == nil:
		return Top{}, &Error{Code: Rejected, Message: "this node counts no top keys; start it with --top-keys=local or on"}
	case s.config.TopKeys == TopLocal && !q.Operator:
		return Top{}, ErrNotOperator
	case q.N < 1 || q.N > MaxTop:
		return Top{}, &Error{Code: Invalid, Field: "n", Message: fmt.Sprintf("%d; want 1 to %d", q.N, MaxTop)}
	case q.By > ByFrequent:
		return Top{}, &Error{Code: Invalid, Field: "by", Message: fmt.Sprintf("unknown value %d; want limited or frequent", q.By)}
	}
	if fault := textFault(q.Domain, true); fault != "" {
		return Top{}, &Error{Code: Invalid, Field: "domain", Message: fault}
	}
	all := []NodeTop{s.TopHere(q)}
	if view := s.config.Cluster(ctx).View; view != nil {
		all[0].Node = view.Self
	}
	var missing []string
	if s.config.AskTop != nil {
		var others []NodeTop
		others, missing = s.config.AskTop(ctx, q)
		all = append(all, others...)
	}
	return joinTops(q, all, missing), nil
}

// TopHere returns what this node alone has counted, up to MaxTop keys: of what other nodes have counted too, each
// may have a part.
func (s *Limiter) TopHere(q TopQuery) NodeTop {
	if s.top == nil {
		return NodeTop{Off: true}
	}
	now := s.config.Clock()
	w := s.top.frequent
	if q.By == ByLimited {
		w = s.top.limited
	}
	return NodeTop{Covers: w.Covers(now), Keys: w.Top(now, MaxTop, func(name []byte) bool { return q.Domain == "" || isOfDomain(name, q.Domain) })}
}

// joinTops adds up what nodes have counted.
func joinTops(q TopQuery, all []NodeTop, missing []string) Top {
	t := Top{By: q.By, Missing: slices.Clone(missing)}
	sums := make(map[bucket.Key]*TopKey)
	for i := range all {
		n := &all[i]
		if n.Off {
			t.Missing = append(t.Missing, n.Node)
			continue
		}
		t.Nodes = append(t.Nodes, n.Node)
		t.Covers = max(t.Covers, n.Covers)
		for _, e := range n.Keys {
			k := sums[e.Key]
			if k == nil {
				named, ok := readName(e.Name)
				if !ok || q.Domain != "" && named.Domain != q.Domain {
					continue // of a newer version
				}
				k = &named
				sums[e.Key] = k
			}
			k.Count += e.Count
			k.Error += e.Error
			k.PerSecond += float64(e.Count) / max(n.Covers.Seconds(), 1)
		}
	}
	slices.Sort(t.Nodes)
	slices.Sort(t.Missing)
	t.Keys = make([]TopKey, 0, len(sums))
	for _, k := range sums {
		t.Keys = append(t.Keys, *k)
	}
	slices.SortFunc(t.Keys, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Domain, b.Domain),
			slices.CompareFunc(a.Descriptor, b.Descriptor, func(x, y rules.Entry) int {
				return cmp.Or(cmp.Compare(x.Key, y.Key), cmp.Compare(x.Value, y.Value))
			}))
	})
	t.Keys = t.Keys[:min(q.N, len(t.Keys))]
	return t
}

const (
	// topSlot and topPlaces make the windows: three to four slots of so many keys.
	topSlot   = 20 * time.Second
	topPlaces = 2048
	// Of more than busy checks in a second, one in sparse is counted, with that weight.
	busy   = 1000
	sparse = 16
)

// topCount counts the heaviest keys that are asked of this node's APIs. Where checks are many most of them
// cost it one random number; there is no lock or counter that all of them share.
type topCount struct {
	frequent, limited *heavy.Window
	// random is uniform over uint32.
	random func() uint32

	every   atomic.Uint32 // one in so many is counted: 1 or sparse
	second  atomic.Int64
	counted atomic.Int64 // in this second
}

func newTopCount() *topCount {
	t := &topCount{
		frequent: heavy.NewWindow(topSlot, topPlaces), limited: heavy.NewWindow(topSlot, topPlaces),
		random: rand.Uint32,
	}
	t.every.Store(1)
	return t
}

// observe counts what was asked in b, which is settled.
func (s *Limiter) observe(now time.Duration, set *rules.Set, b *Batch) {
	t := s.top
	if t == nil {
		return
	}
	every := t.every.Load()
	for i := range b.Results {
		if every > 1 && t.random()%every != 0 {
			continue
		}
		r, c := &b.Results[i], &b.Checks[i]
		if r.Err != nil || r.Limits == nil || c.Verb != bucket.Check || r.Source == check.Unmatched {
			continue
		}
		s.countTop(now, set, b, i, every)
	}
}

// countTop counts check i with the weight of all those that it stands for.
func (s *Limiter) countTop(now time.Duration, set *rules.Set, b *Batch, i int, every uint32) {
	t, r, c := s.top, &b.Results[i], &b.Checks[i]
	t.pace(now, every)
	b.named = named{c, r.Rule, set, s.config.Hasher}
	key := s.counterKey(b, c, r.Rule)
	t.frequent.Add(now, key, uint64(every), &b.named)
	if r.Shadowed || !r.Allowed && !r.givenBack {
		t.limited.Add(now, key, uint64(every), &b.named)
	}
}

// pace sets how many are counted: all while they are few, which is known a second late, and soon enough when there
// are many.
func (t *topCount) pace(now time.Duration, every uint32) {
	second := int64(now / time.Second)
	if last := t.second.Load(); last != second && t.second.CompareAndSwap(last, second) {
		n := t.counted.Swap(0) * int64(every)
		if n > busy && second-last == 1 {
			t.every.Store(sparse)
		} else {
			t.every.Store(1)
		}
	}
	if t.counted.Add(1) > busy && every == 1 {
		t.every.Store(sparse)
	}
}

// A name is a byte of flags, and then sized texts: the domain, the rule, and keys and values in turn. Nodes
// tell each other names in this form.
const (
	nameWhole = 1
	nameCut   = 2
	// maxName and maxText bound what is kept of a name, and of its domain, its rule and each key, in bytes. What
	// is longer is cut.
	maxName = 512
	maxText = 128
)

// named makes the name of a check. It is the one place where values of descriptors enter what is counted, private
// ones as their hash.
type named struct {
	check  *Check
	rule   *rules.Rule
	set    *rules.Set
	hasher Hasher
}

// AppendName implements heavy.Namer.
func (n *named) AppendName(dst []byte) []byte {
	first := len(dst)
	dst = append(dst, nameWhole)
	rule := ""
	if n.rule != nil {
		rule = n.rule.Name
	}
	whole := true
	text := func(s string) {
		whole = whole && len(s) <= maxText
		dst = appendText(dst, s)
	}
	text(n.check.Domain)
	text(rule)
	for i, e := range n.check.Descriptor {
		if len(dst)-first+len(e.Key)+len(e.Value) > maxName {
			whole = false
			break
		}
		text(e.Key)
		// The value's length is not known before it is written: an address may become its block.
		at := len(dst) + 2
		dst = n.hasher.AppendShown(append(dst, 0, 0), n.set, n.rule, n.check.Domain, i, e)
		if len(dst)-at > maxName {
			dst, whole = dst[:at+maxName], false
		}
		binary.BigEndian.PutUint16(dst[at-2:], uint16(len(dst)-at))
	}
	if !whole {
		dst[first] = nameCut
	}
	return dst
}

// appendText appends s, cut to maxText, with its length before it.
func appendText(dst []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// isOfDomain reports whether name begins with domain.
func isOfDomain(name []byte, domain string) bool {
	return bytes.HasPrefix(name[min(1, len(name)):], appendText(nil, domain))
}

// readName reads a name, perhaps one of another node.
func readName(name []byte) (k TopKey, ok bool) {
	if len(name) == 0 || name[0] != nameWhole && name[0] != nameCut {
		return k, false
	}
	k.Cut = name[0] == nameCut
	var texts []string
	for rest := name[1:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest)-2 < int(binary.BigEndian.Uint16(rest)) {
			return k, false
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		// What was cut may end within a character.
		texts, rest = append(texts, strings.ToValidUTF8(string(rest[2:n]), "…")), rest[n:]
	}
	if len(texts) < 2 || len(texts)%2 != 0 {
		return k, false
	}
	k.Domain, k.Rule = texts[0], texts[1]
	for i := 2; i < len(texts); i += 2 {
		k.Descriptor = append(k.Descriptor, rules.Entry{Key: texts[i], Value: texts[i+1]})
	}
	return k, true
}
