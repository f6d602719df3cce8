package limiter

import (
	"context"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
)

// fakeCluster is a Cluster of which a test replaces parts.
type fakeCluster struct {
	overview    func(context.Context) Overview
	forget      func(ctx context.Context, name string) error
	spreadLoad  func(LoadReport)
	askTop      func(context.Context, TopQuery) ([]NodeTop, []string)
	keyFacts    func(context.Context, bucket.Key, *bucket.Limits) (facts.Key, error)
	askKeyFacts func(context.Context, bucket.Key, *bucket.Limits) ([]facts.Key, []string)
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{
		overview:   func(context.Context) Overview { return Overview{} },
		forget:     func(context.Context, string) error { return member.ErrNoSet },
		spreadLoad: func(LoadReport) {},
		askTop:     func(context.Context, TopQuery) ([]NodeTop, []string) { return nil, nil },
		keyFacts: func(context.Context, bucket.Key, *bucket.Limits) (facts.Key, error) {
			return facts.Key{}, nil
		},
		askKeyFacts: func(context.Context, bucket.Key, *bucket.Limits) ([]facts.Key, []string) { return nil, nil },
	}
}

func (f *fakeCluster) Overview(ctx context.Context) Overview             { return f.overview(ctx) }
func (f *fakeCluster) Forget(ctx context.Context, name string) error     { return f.forget(ctx, name) }
func (f *fakeCluster) Bootstrap(context.Context) error                   { return member.ErrHasQuorum }
func (f *fakeCluster) AcceptLoss(context.Context) (int, []string, error) { return 0, nil, nil }
func (f *fakeCluster) PromoteRegion(context.Context, string, string, bool) error {
	return member.ErrNoRegions
}
func (f *fakeCluster) SpreadLoad(r LoadReport) { f.spreadLoad(r) }
func (f *fakeCluster) AskTop(ctx context.Context, q TopQuery) ([]NodeTop, []string) {
	return f.askTop(ctx, q)
}
func (f *fakeCluster) KeyFacts(ctx context.Context, k bucket.Key, l *bucket.Limits) (facts.Key, error) {
	return f.keyFacts(ctx, k, l)
}
func (f *fakeCluster) AskKeyFacts(ctx context.Context, k bucket.Key, l *bucket.Limits) ([]facts.Key, []string) {
	return f.askKeyFacts(ctx, k, l)
}
func (f *fakeCluster) AskTurn(context.Context, string, *facts.Turn) bool      { return true }
func (f *fakeCluster) Owner(bucket.Key) (string, bool)                        { return "self", true }
func (f *fakeCluster) Owned(bucket.Key) time.Duration                         { return time.Hour }
func (f *fakeCluster) Report(*facts.Node)                                     {}
func (f *fakeCluster) AskFacts(context.Context, int) ([]facts.Node, []string) { return nil, nil }
