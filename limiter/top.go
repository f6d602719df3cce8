package limiter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-project/sluice/bucket"
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
		return Top{}, &Error{Code: Refused, Message: "this node counts no top keys; start it with --top-keys=local or on"}
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
