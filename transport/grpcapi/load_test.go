package grpcapi

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/member"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
)

func TestReportLoad(t *testing.T) {
	d := open(t, Config{Limiter: apitest.NewLimiter(t, apitest.NewNode(t), `
domain: shop
pools:
  spare: {limit: {unit: minute, count: 10}, load: {shrink_to: 0%, expires: 3s}}
  steady: {limit: {unit: minute, count: 10}}
descriptors:
  - key: user
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: spare}
`, member.Member{})})
	for _, c := range []struct {
		pool, reporter string
		load, want     float64
		code           codes.Code
	}{
		{"spare", "", 0.5, 0.5, codes.OK},
		{"spare", "a", 0.75, 0.75, codes.OK},
		{"spare", "a", 0, 0.5, codes.OK},
		{"spare", "", 2, 0, codes.InvalidArgument},
		{"none", "", 1, 0, codes.NotFound},
		{"steady", "", 1, 0, codes.FailedPrecondition},
	} {
		res, err := d.client.ReportLoad(t.Context(), &sluicev1.ReportLoadRequest{Domain: "shop", Pool: c.pool, Load: c.load, Reporter: c.reporter})
		if status.Code(err) != c.code {
			t.Fatalf("%+v: %v", c, err)
		}
		if err == nil && (res.Load != c.want || res.ExpiresNs != int64(3*time.Second)) {
			t.Errorf("%+v: %v", c, res)
		}
	}
	res, err := d.client.Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{user("x"), user("x")}})
	if err != nil || res.Decisions[0].Verdict != sluicev1.Verdict_VERDICT_ALLOWED || res.Decisions[1].Verdict != sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC {
		t.Errorf("%v %v", res, err)
	}
	d.Drain()
	if _, err := d.client.ReportLoad(t.Context(), &sluicev1.ReportLoadRequest{Domain: "shop", Pool: "spare"}); status.Code(err) != codes.Unavailable {
		t.Errorf("from a node that leaves: %v", err)
	}
}
