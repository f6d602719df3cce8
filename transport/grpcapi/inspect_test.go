package grpcapi

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
)

// inspected is a limiter.Service that knows one key.
type inspected struct{ limiter.Service }

func (i inspected) Inspect(ctx context.Context, q *limiter.Check) (limiter.Inspection, error) {
	x, err := i.Service.Inspect(ctx, q)
	x.Owner, x.Gen, x.Counted, x.Partition = "n2", 3, true, 9
	if x.Rule != nil {
		x.Limits = []facts.Limit{{Limit: 3, Spent: 4, ResetAfter: time.Second}}
	}
	x.Leases = []limiter.Lease{{Node: "n1", Left: 5}}
	return x, err
}

func TestInspect(t *testing.T) {
	operator := access.AsOperator(t.Context())
	d := open(t, Config{Limiter: inspected{newLimiter(t, apitest.NewNode(t))}})
	got, err := (admin{Server: d.Server}).Inspect(operator, &adminv1alpha1.InspectRequest{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "ann"}}})
	if err != nil {
		t.Fatal(err)
	}
	l := got.GetLimits()
	if got.Rule != "shop/user" || got.Owner != "n2" || got.Generation != 3 || got.Partition != 9 || !got.Counted || len(l) != 1 ||
		l[0].Spent != 4 || l[0].ResetAfterNs != 1e9 || l[0].Limit.Count != 3 || l[0].Name != "shop/user" || got.Leases[0].Left != 5 || got.Shown[0].Value != "ann" {
		t.Errorf("%v", got)
	}
	if _, err := (admin{Server: d.Server}).Inspect(operator, &adminv1alpha1.InspectRequest{Domain: "shop"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a descriptor: %v", err)
	}
	// As over HTTP: see console.
	if _, err := d.admin.Inspect(t.Context(), &adminv1alpha1.InspectRequest{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "ann"}}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("no operator: %v", err)
	}
}
