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

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/topk"
	"github.com/sluicecluster/sluice/rules"
)

// TopKeys decides whether a node counts its heaviest keys by name, and who may see them: values in descriptors may be personal
// data.
type TopKeys uint8

const (
	TopLocal TopKeys = iota // for operators, callers that may read, and the other nodes
	TopOn                   // for all callers
	TopOff                  // not counted
)

// TopBy is the count by which keys are sorted.
type TopBy uint8

const (
	ByLimited  TopBy = iota // denied checks, and those that a rule in shadow mode would have denied
	ByFrequent              // checks
)

func (b TopBy) String() string {
	if b == ByFrequent {
		return "frequent"
	}
	return "limited"
}

// MaxTop is the most keys of one Top.
const MaxTop = 100

// TopQuery is a request for the heaviest keys.
type TopQuery struct {
	By       TopBy
	N        int    // how many, 1 to MaxTop
	Domain   string // the only one; empty for all
	Operator bool   // the caller may see them under TopLocal
}

// NodeTop are the counts of one node.
type NodeTop struct {
	Node   string
	Off    bool          // it counts nothing
	Covers time.Duration // the time up to now that Keys counts
	Keys   []topk.Entry
}

// TopKey is one of the heaviest keys.
type TopKey struct {
	Domain string
	// Descriptor is the counter's: values that share one are shown as their pattern or block of addresses.
	Descriptor []rules.Entry
	Rule       string // empty for limits of checks
	Cut        bool   // the name was too long and is incomplete
	// Count is the number of checks, or denied ones, in the time covered. It is too high by at most Error, and an estimate
	// where checks are sampled. PerSecond is its rate.
	Count, Error uint64
	PerSecond    float64
}

// Top is the heaviest keys of the cluster.
type Top struct {
	By TopBy
	// Covers is the longest time that a node's counts cover.
	Covers time.Duration
	Keys   []TopKey
	// Nodes responded, Missing did not or count nothing. Both are sorted.
	Nodes, Missing []string
}

// Top implements Service.
func (l *Limiter) Top(ctx context.Context, q TopQuery) (Top, error) {
	switch {
	case l.top == nil:
		return Top{}, &Error{Code: Rejected, Message: "this node counts no top keys; start it with --top-keys=local or on"}
	case l.config.TopKeys == TopLocal && !q.Operator:
		return Top{}, ErrNotOperator
	case q.N < 1 || q.N > MaxTop:
		return Top{}, &Error{Code: Invalid, Field: "n", Message: fmt.Sprintf("%d; want 1 to %d", q.N, MaxTop)}
	case q.By > ByFrequent:
		return Top{}, &Error{Code: Invalid, Field: "by", Message: fmt.Sprintf("unknown value %d; want limited or frequent", q.By)}
	}
	if fault := textError(q.Domain, true); fault != "" {
		return Top{}, &Error{Code: Invalid, Field: "domain", Message: fault}
	}
	others, missing := l.config.Cluster.AskTop(ctx, q)
	all := append(others, l.TopHere(q))
	if view := l.config.Cluster.Overview(ctx).View; view != nil {
		all[len(others)].Node = view.Self
	}
	return joinTops(q, all, missing), nil
}

// TopHere returns the counts of this node, up to MaxTop keys. Other nodes may have counted other checks of the same keys.
func (l *Limiter) TopHere(q TopQuery) NodeTop {
	if l.top == nil {
		return NodeTop{Off: true}
	}
	now := l.config.Clock()
	w := l.top.frequent
	if q.By == ByLimited {
		w = l.top.limited
	}
	return NodeTop{Covers: w.Covers(now), Keys: w.Top(now, MaxTop, func(name []byte) bool {
		return q.Domain == "" || isOfDomain(name, q.Domain)
	})}
}

// joinTops adds up the counts of nodes.
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
	// A window has three to four slots of topPlaces keys.
	topSlot   = 20 * time.Second
	topPlaces = 2048
	// Above sampleAbove checks in a second, one in sampleOneIn is counted, with that weight.
	sampleAbove = 1000
	sampleOneIn = 16
)

// topCount counts the heaviest keys of this node's APIs. Under load most checks cost one random number, and no lock or counter
// is shared by all.
type topCount struct {
	frequent, limited *topk.Window
	// random is uniform over uint32.
	random func() uint32

	every   atomic.Uint32 // one in so many is counted: 1 or sampleOneIn
	second  atomic.Int64
	counted atomic.Int64 // in this second
}

func newTopCount() *topCount {
	t := &topCount{
		frequent: topk.NewWindow(topSlot, topPlaces), limited: topk.NewWindow(topSlot, topPlaces),
		random: rand.Uint32,
	}
	t.every.Store(1)
	return t
}

// observe counts the checks of b, which is finished, or a sample of them with the weight of all.
func (l *Limiter) observe(now time.Duration, set *rules.Set, b *Batch) {
	t := l.top
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
		t.adjustSampling(now, every)
		b.named = named{c, r.Rule, set, l.config.Hasher}
		key := l.counterKey(b, c, r.Rule)
		t.frequent.Add(now, key, uint64(every), &b.named)
		if r.Shadowed || !r.Allowed && !r.givenBack {
			t.limited.Add(now, key, uint64(every), &b.named)
		}
	}
}

// adjustSampling begins to sample as soon as a second has more than sampleAbove checks, and ends it after a second with fewer.
func (t *topCount) adjustSampling(now time.Duration, every uint32) {
	second := int64(now / time.Second)
	if last := t.second.Load(); last != second && t.second.CompareAndSwap(last, second) {
		next := uint32(1)
		if n := t.counted.Swap(0) * int64(every); n > sampleAbove && second-last == 1 {
			next = sampleOneIn
		}
		t.every.Store(next)
	}
	if t.counted.Add(1) > sampleAbove && every == 1 {
		t.every.Store(sampleOneIn)
	}
}

// A name is a byte of flags, and then sized texts: the domain, the rule, and keys and values in turn. Nodes exchange names in
// this form.
const (
	nameComplete = 1
	nameCut      = 2
	// maxName bounds a name, and maxText its domain, its rule and each key, in bytes. The rest is cut.
	maxName = 512
	maxText = 128
)

// named makes the name of a check. It is the only place where values of descriptors enter these counts, private ones as their
// hash.
type named struct {
	check  *Check
	rule   *rules.Rule
	set    *rules.Set
	hasher Hasher
}

// AppendName implements topk.Namer.
func (n *named) AppendName(dst []byte) []byte {
	first := len(dst)
	dst = append(dst, nameComplete)
	rule := ""
	if n.rule != nil {
		rule = n.rule.Name
	}
	complete := true
	text := func(s string) {
		complete = complete && len(s) <= maxText
		dst = appendText(dst, s)
	}
	text(n.check.Domain)
	text(rule)
	for i, e := range n.check.Descriptor {
		if len(dst)-first+len(e.Key)+len(e.Value) > maxName {
			complete = false
			break
		}
		text(e.Key)
		// The length is known once the value is written: an address may become its block.
		at := len(dst) + 2
		dst = n.hasher.AppendShown(append(dst, 0, 0), n.set, n.rule, n.check.Domain, i, e)
		if len(dst)-at > maxName {
			dst, complete = dst[:at+maxName], false
		}
		binary.BigEndian.PutUint16(dst[at-2:], uint16(len(dst)-at))
	}
	if !complete {
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
	if len(name) == 0 || name[0] != nameComplete && name[0] != nameCut {
		return k, false
	}
	k.Cut = name[0] == nameCut
	var texts []string
	for rest := name[1:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest)-2 < int(binary.BigEndian.Uint16(rest)) {
			return k, false
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		// A cut text may end within a character.
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
