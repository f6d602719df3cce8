package grpcapi

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/test/apitest"
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
	d.play(t, `
		ReportLoad domain: "shop" pool: "spare" load: 0.5 => load:0.5 expires_ns:3000000000
		ReportLoad domain: "shop" pool: "spare" load: 0.75 reporter: "a" => load:0.75 expires_ns:3000000000
		ReportLoad domain: "shop" pool: "spare" load: 0 reporter: "a" => load:0.5 expires_ns:3000000000
		ReportLoad domain: "shop" pool: "spare" load: 2 => InvalidArgument load: 2; want 0 to 1
		ReportLoad domain: "shop" pool: "none" load: 1 => NotFound pool: the domain "shop" has no pool "none"
		ReportLoad domain: "shop" pool: "steady" load: 1 => FailedPrecondition pool: pool "steady" follows no load; give it one in the rules
		Check (x) (x) => ALLOWED 0/1 | ALLOWED_ELASTIC 0/1 allowed:true
	`)
	d.Drain()
	d.play(t, `ReportLoad domain: "shop" pool: "spare" => Unavailable this node is leaving; ask another`)
}
