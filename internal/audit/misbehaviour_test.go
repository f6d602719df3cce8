package audit_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestMisbehaviour audits three nodes of which n1 does something wrong, or something
// that may happen to a sound node.
func TestMisbehaviour(t *testing.T) {
	var once atomic.Bool
	for _, c := range []struct {
		name   string
		serve  serve
		change func(c *audit.Config)
		want   func(t *testing.T, r *audit.Report)
		clean  bool
	}{
		{name: "sound", clean: true, want: func(t *testing.T, r *audit.Report) {
			if r.Checks != 1001 || r.Admitted != 200 || r.AtLimit != 20 || len(r.Nodes) != 3 || len(r.Errors) != 0 {
				t.Error("want 200 of 1001 checks admitted, and every key at its limit")
			}
		}},
		{name: "in batches", clean: true, change: func(c *audit.Config) { c.Batches = []int{1, 50} }, want: func(t *testing.T, r *audit.Report) {
			if r.Checks < 900 || r.Admitted != 200 {
				t.Error("want 200 checks admitted, of about 1000")
			}
		}},
		{
			name: "admits one too many", serve: func(_ context.Context, q *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				r := decide()
				for i, d := range r.Decisions {
					if strings.HasSuffix(q.Checks[i].Descriptor_[0].Value, "-0-7") && !d.Allowed && !once.Swap(true) {
						d.Allowed = true
					}
				}
				return r, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.Over != (audit.Keys{Keys: 1, Units: 1}) || r.OverByOwners != r.Over || r.Under.Keys != 0 {
					t.Error("want one key over by one unit")
				}
				if len(r.Violations) != 1 || !strings.HasSuffix(r.Violations[0].Key, "-0-7") || r.Violations[0].Admitted != 11 {
					t.Errorf("violations %+v", r.Violations)
				}
			},
		},
		{
			name: "denies at random", serve: func(ctx context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Source: sluicev1.Source_SOURCE_FORWARDED}}}, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.Under.Keys != 20 || r.Over.Keys != 0 || len(r.Violations) != 20 || r.Violations[0].Under < 5 {
					t.Error("want every key under its quota")
				}
			},
		},
		{
			name: "denies by on_failure", clean: true, serve: func(ctx context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Source: sluicev1.Source_SOURCE_CLOSED}}}, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.Sources["closed"].Denied < 100 || r.Admitted != 200 {
					t.Error("want denials by on_failure, which no limit asks for, told apart")
				}
			},
		},
		{
			name: "admits by shares", serve: func(ctx context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Allowed: true, Source: sluicev1.Source_SOURCE_SHARE}}}, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.OverByOwners.Keys != 0 || r.Over.Keys != 20 || r.Under.Keys != 0 || r.Sources["share"].Admitted != r.Over.Units || r.Admitted-r.Over.Units != 200 {
					t.Error("want every key over by what shares admitted, and by nothing else")
				}
			},
		},
		{
			name: "rejects", clean: true, serve: func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return nil, status.Error(codes.Unavailable, "leaving")
			}, want: func(t *testing.T, r *audit.Report) {
				if r.AmbiguousRetries != 0 || r.ReroutedCalls == 0 || r.Admitted != 200 || r.Errors[0].Kind != "unavailable" || r.Errors[0].Final != 0 {
					t.Error("want its calls sent to other nodes")
				}
			},
		},
		{
			name: "hangs after deciding", clean: true, serve: func(ctx context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				decide()
				<-ctx.Done()
				return nil, ctx.Err()
			}, want: func(t *testing.T, r *audit.Report) {
				if r.AmbiguousRetries == 0 || r.Admitted > 200 || r.Errors[0].Kind != "deadline exceeded" || r.LongestGap().Length < audit.Seconds(time.Second) {
					t.Error("want its calls repeated, and a gap of an attempt's time")
				}
			}, change: func(c *audit.Config) { c.Attempt = time.Second; c.Duration = 10 * time.Second },
		},
		{
			name: "finds no owner", clean: true, serve: decisionError(sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE), want: func(t *testing.T, r *audit.Report) {
				if r.AmbiguousRetries == 0 || r.Admitted != 200 || r.Errors[0].Kind != "no owner" {
					t.Error("want its checks asked again elsewhere")
				}
			},
		},
		{
			name: "is overloaded", serve: decisionError(sluicev1.ErrorCode_ERROR_CODE_OVERLOADED), want: func(t *testing.T, r *audit.Report) {
				if r.FinalErrors == 0 || r.AmbiguousRetries != 0 || r.Errors[0].Kind != "overloaded" || r.Errors[0].Final != r.FinalErrors || !strings.Contains(r.Errors[0].Example, "n1: no luck") {
					t.Error("want final errors")
				}
			},
		},
		{
			name: "has no rule", serve: func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Allowed: true, Source: sluicev1.Source_SOURCE_UNMATCHED}}}, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.FinalErrors == 0 || r.Errors[0].Kind != "unmatched" {
					t.Error("want final errors")
				}
			},
		},
		{
			name: "answers too little", serve: func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return &sluicev1.CheckResponse{}, nil
			}, want: func(t *testing.T, r *audit.Report) {
				if r.FinalErrors == 0 || r.Errors[0].Kind != "malformed" {
					t.Error("want final errors")
				}
			},
		},
		{
			name: "is broken", clean: true, serve: func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return nil, status.Error(codes.Internal, "out of order")
			}, want: func(t *testing.T, r *audit.Report) {
				if r.AmbiguousRetries == 0 || r.Errors[0].Kind != "Internal" {
					t.Error("want its calls repeated")
				}
			},
		},
		{
			name: "rejects the call itself", serve: func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
				return nil, status.Error(codes.InvalidArgument, "too many")
			}, want: func(t *testing.T, r *audit.Report) {
				if r.FinalErrors == 0 || r.Errors[0].Kind != "InvalidArgument" || r.ReroutedCalls != 0 {
					t.Error("want final errors")
				}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 3)
				cl.node("n1").serve = c.serve
				cfg := cl.config("n1", "n2", "n3")
				if c.change != nil {
					c.change(&cfg)
				}
				r, err := audit.Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if r.Clean() != c.clean {
					t.Errorf("clean: %t, want %t", r.Clean(), c.clean)
				}
				if want := map[bool]audit.Verdict{true: audit.Pass, false: audit.Fail}[c.clean]; r.Verdict() != want {
					t.Errorf("verdict %s, want %s", r.Verdict(), want)
				}
				if c.want(t, r); t.Failed() {
					r.Timeline = nil
					t.Logf("%+v", *r)
				}
			})
		})
	}
}

// decisionError answers every check with an error of its own.
func decisionError(code sluicev1.ErrorCode) serve {
	return func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
		return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Error: &sluicev1.Error{Code: code, Message: "no luck"}}}}, nil
	}
}
