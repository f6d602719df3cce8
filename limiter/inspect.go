package limiter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/rules"
)

// Inspection is the rule and the counter of a descriptor.
type Inspection struct {
	Domain string
	// Shown is the descriptor as people may see it: see Hasher.AppendShown.
	Shown []rules.Entry
	// Explanation is how the rules were matched.
	Explanation rules.Explanation
	// Domains are those with rules, sorted, if Domain is none of them. An API shows a caller only its own.
	Domains []string
	// Rule is the one that applies, nil for none. If it is nil or Unlimited there is no counter, and the rest is empty.
	Rule      *rules.Rule
	Partition int
	// Owner is the node that owns the key now, "" if none responded that does, and Gen its generation of the partition.
	Owner string
	Gen   uint64
	// Replicas are the nodes with a complete replica of the partition, InitialSync those with an incomplete one.
	Replicas, InitialSync []string
	// Counted: there is a counter. Limits are the state of the rule's limits at the owner; empty without one.
	Counted bool
	Limits  []facts.Limit
	// Grants and Granted are the number of the owner's unexpired leases of the key, and their units. Leases are the units
	// that nodes have left.
	Grants  int
	Granted int64
	// Held are the first of the grants, at most facts.MaxHeld, by deadline.
	Held   []Holding
	Leases []Lease
	// Denying nodes have the key in their denial cache now. Missing ones did not respond in time.
	Denying, Missing []string
}

// Lease is the part of a key's limit that a node may spend by itself.
type Lease struct {
	Node string `json:"node"`
	Left int64  `json:"left"`
}

// Inspect implements Service.
func (l *Limiter) Inspect(ctx context.Context, q *Check) (Inspection, error) {
	c := Check{Domain: q.Domain, Descriptor: q.Descriptor}
	if e := nameError(&c); e != nil {
		return Inspection{}, e
	}
	set := l.Rules()
	x := Inspection{Domain: c.Domain}
	if set != nil {
		x.Explanation = set.Explain(c.Domain, c.Descriptor)
	} else {
		x.Explanation.Reason = "this node has no rules"
	}
	rule := x.Explanation.Rule
	x.Rule, x.Shown = rule, l.shown(set, rule, c.Domain, c.Descriptor)
	if set != nil && !x.Explanation.Known {
		x.Domains = set.Domains()
	}
	if rule == nil || rule.Unlimited || rule.Limits == nil || rule.Limits.Unlimited() {
		return x, nil
	}
	limits := rule.Limits
	b := NewBatch()
	key := l.counterKey(b, &c, rule)
	b.Release()
	own, err := l.config.Cluster.KeyFacts(ctx, key, limits)
	if err != nil {
		return Inspection{}, &Error{Code: Unavailable, Message: fmt.Sprintf("the node has not answered for itself: %v", err)}
	}
	var all []facts.Key
	all, x.Missing = l.config.Cluster.AskKeyFacts(ctx, key, limits)
	x.Partition = own.Partition
	x.Held = l.holdings(x.join(append(all, own), limits.Len()))
	return x, nil
}

// join takes the facts of all nodes, and returns the owner's grants. Of two that report to own the key, the one with the higher
// generation does.
func (x *Inspection) join(all []facts.Key, limits int) (held []facts.Holding) {
	slices.SortFunc(all, func(a, b facts.Key) int { return cmp.Compare(a.Node, b.Node) })
	for i := range all {
		k := &all[i]
		switch {
		case k.Owner && (x.Owner == "" || k.Gen > x.Gen) && len(k.Limits) == limits:
			x.Owner, x.Gen = k.Node, k.Gen
			x.Counted, x.Limits, x.Grants, x.Granted, held = k.Counted, k.Limits, k.Grants, k.Granted, k.Held
		case k.Complete:
			x.Replicas = append(x.Replicas, k.Node)
		case k.Replica:
			x.InitialSync = append(x.InitialSync, k.Node)
		}
		if k.Leased {
			x.Leases = append(x.Leases, Lease{k.Node, k.LeaseLeft})
		}
		if k.Denies > 0 {
			x.Denying = append(x.Denying, k.Node)
		}
	}
	slices.Sort(x.Missing)
	return held
}

// RulesHash is equal for equal rules, in whatever files; empty for none.
func RulesHash(set *rules.Set) string {
	if set == nil {
		return ""
	}
	list := set.Rules()
	slices.SortStableFunc(list, func(a, b *rules.Rule) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Path, b.Path))
	})
	h := sha256.New()
	for _, domain := range set.Domains() {
		fmt.Fprintf(h, "%q %v\n", domain, set.Unmatched(domain))
	}
	for _, r := range list {
		fmt.Fprintf(h, "%q %q %q %q %v %v %v %v %v %v %v %v %v %v %v %v %v %q\n", r.Domain, r.Name, r.Path, r.Entries(),
			r.Unlimited, r.Shadow, r.Quota, r.Replaces, r.Consistency, r.Replication,
			r.OnFailure, r.StatesOnFailure, r.OnPartition, r.UnknownShare, r.OnLostState, r.NoDenialCache, r.Reservation, r.Home)
		if r.Limits != nil {
			for i := range r.Limits.Len() {
				fmt.Fprintf(h, "%+v\n", r.Limits.At(i))
			}
		}
		if e := r.Elastic; e != nil {
			fmt.Fprintf(h, "pool %q\n", e.Pool.Name)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
