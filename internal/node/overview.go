package node

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// limiterCluster is the node as its limiter sees it.
type limiterCluster struct {
	*Node
	*peerQueries
}

// Overview implements limiter.Cluster.
func (n limiterCluster) Overview(ctx context.Context) limiter.Overview {
	view := n.gossip.View()
	o := limiter.Overview{View: &view, Ring: n.cluster.Ring()}
	own, err := n.cluster.Overview(ctx)
	if err != nil {
		o.Reason = fmt.Sprintf("the cluster node does not answer: %v", err)
		return o
	}
	o.Set = limiter.VoterSet{ClusterID: own.Set.ID, Version: own.Set.Version, Members: own.Set.Members}
	o.MayDecide, o.Reason = own.HasQuorum, own.Reason
	if o.Unreached, err = n.cluster.Unreached(ctx, n.peers.Failure); err != nil {
		o.Unreached = nil // the next overview has the reason
	}
	o.Standings, o.Clocks = own.Members, own.Clock
	p := own.Partitions
	o.PartitionCounts = p.PartitionCounts
	if p.Lost > 0 {
		o.LostRules = lostRules(n.table, n.service.Rules(), p.LostSince, p.LostEnds, n.cluster.Now())
	}
	return o
}

// short returns what of a text fits into a report.
func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), facts.MaxText)], "")
}

// Report implements limiter.Cluster.
func (n limiterCluster) Report(r *facts.Node) {
	if err := n.rulesError(); err != nil {
		r.RulesError = short(err.Error())
	}
	for _, s := range n.secretStatuses() {
		f := facts.File{Label: s.label, Left: s.left}
		if err := s.status.LastError; err != nil {
			f.Error = short(err.Error())
		}
		if !s.expires.IsZero() {
			f.Expires = s.expires.Unix()
		}
		r.Files = append(r.Files, f)
	}
	if n.snapshotter != nil {
		r.SnapshotLost = n.snapshotter.lost
	}
	r.Early = n.cluster.Stats().Early
	r.Insecure = n.config.insecurities()
	r.Region, r.Regions = n.config.Region, n.regionStates()
	n.addRoles(r)
	table := n.table.Stats()
	r.Uptime, r.Keys, r.Bytes = time.Since(n.began), table.Entries, table.Bytes
	r.MaxBytes, _ = n.config.counterBytes() // it was valid at the start
}

// Bootstrap implements limiter.Cluster.
func (n limiterCluster) Bootstrap(ctx context.Context) error {
	err := n.cluster.Bootstrap(ctx)
	if err == nil {
		n.log.Warn("voter set founded by hand: counters that no living node has begin anew", "members", n.cluster.Stats().Set.Members)
	}
	return err
}

// Forget implements limiter.Cluster.
func (n limiterCluster) Forget(ctx context.Context, name string) error {
	err := n.cluster.Forget(ctx, name)
	if err == nil {
		n.log.Warn("member forgotten by hand", "member", name)
	}
	return err
}

// useRules puts a new set of rules into force.
func (n *Node) useRules(set *rules.Set) {
	n.capAccounts(set.MaxKeys(), nil)
	n.service.SetRules(set)
	n.table.SetSettleWindow(cmp.Or(n.config.SettleWindow, longestTTL(set)))
	n.table.SetHeld(heldSlots(set))
	n.cluster.SetLostLimits(lostLimits(set)) // after SetHeld, which says when they end
	n.setGlobals(set)
}

// longestTTL returns the longest max_ttl of the rules, and at least that of rules that set none. set may be nil.
func longestTTL(set *rules.Set) time.Duration {
	longest := bucket.DefaultSettleWindow
	if set != nil {
		for _, r := range set.Rules() {
			longest = max(longest, r.Reservation.MaxTTL)
		}
	}
	return longest
}

// heldSlots returns how long slots may be held under the limits of the rules, by their sum. set may
// be nil.
func heldSlots(set *rules.Set) map[uint64]time.Duration {
	longest := map[uint64]time.Duration{}
	if set != nil {
		for _, r := range set.Rules() {
			if r.Limits != nil && r.Limits.Slots() {
				longest[r.Limits.Sum()] = max(longest[r.Limits.Sum()], r.Reservation.MaxTTL)
			}
		}
	}
	return longest
}

// lostLimits returns the limits whose checks are denied after the loss of a counter: those of rules with on_lost_state: deny, and
// of all pools. set may be nil.
func lostLimits(set *rules.Set) (list []*bucket.Limits) {
	if set == nil {
		return nil
	}
	for _, r := range set.Rules() {
		if r.OnLostState == rules.LostDeny && r.Limits != nil {
			list = append(list, r.Limits)
		}
		if r.Elastic != nil {
			list = append(list, r.Elastic.Pool.Limits(0))
		}
	}
	return list
}

const maxLostRules = 20 // in an overview

// lostRules lists rules that deny at now because counters were lost at since, at most until ends.
func lostRules(table *bucket.Table, set *rules.Set, since, ends, now int64) (list []limiter.LostRule) {
	if set == nil || since == 0 {
		return nil
	}
	for _, r := range set.Rules() {
		if r.OnLostState != rules.LostDeny || r.Limits == nil {
			continue
		}
		if left := min(table.LostUntil(r.Limits, since), ends) - now; left > 0 && len(list) < maxLostRules {
			list = append(list, limiter.LostRule{Domain: r.Domain, Rule: r.Name, Left: time.Duration(left)})
		}
	}
	return list
}

// Owner implements limiter.Cluster.
func (n limiterCluster) Owner(key bucket.Key) (string, bool) { return n.cluster.Owner(key) }

// Owned implements limiter.Cluster.
func (n limiterCluster) Owned(key bucket.Key) time.Duration { return n.cluster.Owned(key) }

// AcceptLoss implements limiter.Cluster.
func (n limiterCluster) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	partitions, told, err = n.cluster.AcceptLoss(ctx)
	if err == nil {
		n.log.Warn("lost counters count as unspent from now on, by hand", "partitions", partitions, "told", told)
	}
	return partitions, told, err
}
