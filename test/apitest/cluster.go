package apitest

import (
	"context"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
)

// Cluster is a limiter.Cluster of which a test replaces parts.
type Cluster struct {
	Seen    func(context.Context) limiter.Overview
	Forgets func(ctx context.Context, name string) error
	Tops    func(context.Context, limiter.TopQuery) ([]limiter.NodeTop, []string)
	Facts   func(context.Context, bucket.Key, *bucket.Limits) (facts.Key, error)
}

// Alone is a cluster of one node that knows no voter set yet.
var Alone = limiter.Overview{
	View: &member.View{Self: "n1", Members: []member.Member{{
		Name: "n1", Boot: "b1", State: member.Serving, Gossip: "g", Peer: "p", GRPC: "r", HTTP: "127.0.0.1:7461", Version: "v1",
	}}},
	State: limiter.State{Reason: "no voter set is known yet"},
}

// TwoOfThree is a cluster of which one node has left and another was never heard.
var TwoOfThree = limiter.Overview{
	View: &member.View{Self: "n1", Members: []member.Member{
		{Name: "n1", Boot: "b1", State: member.Serving, Zone: "a"}, {Name: "n2", Boot: "b2", State: member.Leaving},
	}},
	Standings: []limiter.Standing{
		{Name: "n1", Boot: "b1", Alive: true, Owned: 500}, {Name: "n2", Boot: "b2", Silent: 90 * time.Second, Owned: 521}, {Name: "n3", Silent: -1},
	},
	State: limiter.State{
		Set: limiter.VoterSet{ClusterID: "b1", Version: 4, Members: []string{"n1", "n2", "n3"}}, MayDecide: true,
		PartitionCounts: limiter.PartitionCounts{Owned: 500, Unprotected: 1, HandingOver: 2, Replicas: 3, TakingOver: 4, Divergent: 5, BelowReplicas: 7},
	},
}

func newCluster(self member.Member) *Cluster {
	return &Cluster{
		Seen: func(context.Context) limiter.Overview {
			return limiter.Overview{View: &member.View{Self: self.Name, Members: []member.Member{self}}}
		},
		Forgets: func(context.Context, string) error { return member.ErrNoSet },
		Tops:    func(context.Context, limiter.TopQuery) ([]limiter.NodeTop, []string) { return nil, nil },
		Facts: func(context.Context, bucket.Key, *bucket.Limits) (facts.Key, error) {
			return facts.Key{}, nil
		},
	}
}

func (f *Cluster) Overview(ctx context.Context) limiter.Overview     { return f.Seen(ctx) }
func (f *Cluster) Forget(ctx context.Context, name string) error     { return f.Forgets(ctx, name) }
func (f *Cluster) Bootstrap(context.Context) error                   { return member.ErrHasQuorum }
func (f *Cluster) AcceptLoss(context.Context) (int, []string, error) { return 0, nil, nil }

// PromoteRegion implements limiter.Cluster.
func (f *Cluster) PromoteRegion(context.Context, string, string, bool) error { return nil }
func (f *Cluster) SpreadLoad(limiter.LoadReport)                             {}
func (f *Cluster) AskTop(ctx context.Context, q limiter.TopQuery) ([]limiter.NodeTop, []string) {
	return f.Tops(ctx, q)
}
func (f *Cluster) KeyFacts(ctx context.Context, k bucket.Key, l *bucket.Limits) (facts.Key, error) {
	return f.Facts(ctx, k, l)
}
func (f *Cluster) AskKeyFacts(context.Context, bucket.Key, *bucket.Limits) ([]facts.Key, []string) {
	return nil, nil
}
func (f *Cluster) Owner(bucket.Key) (string, bool) { return "self", true }

// Owned implements limiter.Cluster.
func (f *Cluster) Owned(bucket.Key) time.Duration { return time.Hour }
func (f *Cluster) AskTurn(context.Context, string, *facts.Turn) bool {
	return true
}
func (f *Cluster) Report(*facts.Node) {}
func (f *Cluster) AskFacts(context.Context, int) ([]facts.Node, []string) {
	return nil, nil
}
