package grpcapi

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	"github.com/sluicecluster/sluice/test/apitest"
)

func TestTop(t *testing.T) {
	d := open(t, Config{Limiter: apitest.NewLimiter(t, apitest.NewNode(t), apitest.Rules, member.Member{Name: "n1"}, func(c *limiter.Config) {
		c.TopKeys = limiter.TopOn
		c.Cluster.(*apitest.Cluster).Tops = func(context.Context, limiter.TopQuery) ([]limiter.NodeTop, []string) { return nil, []string{"n2"} }
	})})
	for range 5 {
		if _, err := d.client.Check(t.Context(), request(user("ann"))); err != nil {
			t.Fatal(err)
		}
	}
	for by, want := range map[adminv1alpha1.TopBy]uint64{adminv1alpha1.TopBy_TOP_BY_FREQUENT: 5, adminv1alpha1.TopBy_TOP_BY_LIMITED: 2} {
		res, err := d.admin.Top(t.Context(), &adminv1alpha1.TopRequest{By: by})
		if err != nil || len(res.Keys) != 1 || len(res.Nodes) != 1 || len(res.Missing) != 1 || res.CoversNs <= 0 {
			t.Fatalf("%v: %v %v", by, res, err)
		}
		k := res.Keys[0]
		if k.Domain != "shop" || k.Rule != "shop/user" || len(k.Descriptor_) != 1 || k.Descriptor_[0].Value != "ann" || k.Count != want || k.Error != 0 || k.PerSecond <= 0 || k.Cut {
			t.Errorf("%v: %v", by, k)
		}
	}
	for _, req := range []*adminv1alpha1.TopRequest{{N: 101}, {N: -1}, {By: 2}, {By: 256}, {By: -1}} {
		if _, err := d.admin.Top(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
	}
	d.Drain()
	if _, err := d.admin.Top(t.Context(), &adminv1alpha1.TopRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("from a node that leaves: %v", err)
	}
	if _, err := openNode(t).admin.Top(t.Context(), &adminv1alpha1.TopRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("no operator: %v", err)
	}
}
