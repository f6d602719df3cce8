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

// decides answers with one decision.
func decides(d *sluicev1.Decision) serve {
	return func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
		return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{d}}, nil
	}
}

// rejects fails every call.
func rejects(code codes.Code, text string) serve {
	return func(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
		return nil, status.Error(code, text)
	}
}

// cannot answers every check with an error of its own.
func cannot(code sluicev1.ErrorCode) serve {
	return decides(&sluicev1.Decision{Error: &sluicev1.Error{Code: code, Message: "no luck"}})
}

// admitsOneMore admits one check that the limit denies.
func admitsOneMore() serve {
	var once atomic.Bool
	return func(_ context.Context, q *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
		r := decide()
		for i, d := range r.Decisions {
			if strings.HasSuffix(q.Checks[i].Descriptor_[0].Value, "-0-7") && !d.Allowed && !once.Swap(true) {
				d.Allowed = true
			}
		}
		return r, nil
	}
}

func hangs(ctx context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
	decide()
	<-ctx.Done()
	return nil, ctx.Err()
}

func empty(context.Context, *sluicev1.CheckRequest, func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
	return &sluicev1.CheckResponse{}, nil
}

// TestMisbehaviour audits three nodes of which n1 does something wrong, or something
// that may happen to a sound node.
func TestMisbehaviour(t *testing.T) {
	// first reports whether the first kind of error is this one.
	first := func(r *audit.Report, kind string) bool { return len(r.Errors) > 0 && r.Errors[0].Kind == kind }
	for _, c := range []struct {
		name  string
		serve serve
		clean bool
		want  func(r *audit.Report) bool
	}{
		{"sound", nil, true, func(r *audit.Report) bool {
			return r.Checks == 1001 && r.Admitted == 200 && r.AtLimit == 20 && len(r.Nodes) == 3 && len(r.Errors) == 0
		}},
		{"in batches", nil, true, func(r *audit.Report) bool { return r.Checks >= 900 && r.Admitted == 200 }},
		{"admits one too many", admitsOneMore(), false, func(r *audit.Report) bool {
			return r.Over == audit.Keys{Keys: 1, Units: 1} && r.OverByOwners == r.Over && r.Under.Keys == 0 &&
				len(r.Violations) == 1 && strings.HasSuffix(r.Violations[0].Key, "-0-7") && r.Violations[0].Admitted == 11
		}},
		{"denies at random", decides(&sluicev1.Decision{Source: sluicev1.Source_SOURCE_FORWARDED}), false, func(r *audit.Report) bool {
			return r.Under.Keys == 20 && r.Over.Keys == 0 && len(r.Violations) == 20 && r.Violations[0].Under >= 5
		}},
		// No limit asks for what on_failure denies.
		{"denies by on_failure", decides(&sluicev1.Decision{Source: sluicev1.Source_SOURCE_CLOSED}), true, func(r *audit.Report) bool {
			return r.Sources["closed"].Denied >= 100 && r.Admitted == 200
		}},
		// Every key is over by what shares admitted, and by nothing else.
		{"admits by shares", decides(&sluicev1.Decision{Allowed: true, Source: sluicev1.Source_SOURCE_SHARE}), false, func(r *audit.Report) bool {
			return r.OverByOwners.Keys == 0 && r.Over.Keys == 20 && r.Under.Keys == 0 &&
				r.Sources["share"].Admitted == r.Over.Units && r.Admitted-r.Over.Units == 200
		}},
		// Calls are sent to other nodes, or repeated.
		{"rejects", rejects(codes.Unavailable, "leaving"), true, func(r *audit.Report) bool {
			return r.AmbiguousRetries == 0 && r.ReroutedCalls > 0 && r.Admitted == 200 && first(r, "unavailable") && r.Errors[0].Final == 0
		}},
		{"hangs after deciding", hangs, true, func(r *audit.Report) bool {
			return r.AmbiguousRetries > 0 && r.Admitted <= 200 && first(r, "deadline exceeded") && r.LongestGap().Length >= audit.Seconds(time.Second)
		}},
		{"finds no owner", cannot(sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE), true, func(r *audit.Report) bool {
			return r.AmbiguousRetries > 0 && r.Admitted == 200 && first(r, "no owner")
		}},
		{"is broken", rejects(codes.Internal, "out of order"), true, func(r *audit.Report) bool { return r.AmbiguousRetries > 0 && first(r, "Internal") }},
		// Final errors.
		{"is overloaded", cannot(sluicev1.ErrorCode_ERROR_CODE_OVERLOADED), false, func(r *audit.Report) bool {
			return r.FinalErrors > 0 && r.AmbiguousRetries == 0 && first(r, "overloaded") && r.Errors[0].Final == r.FinalErrors &&
				strings.Contains(r.Errors[0].Example, "n1: no luck")
		}},
		{"has no rule", decides(&sluicev1.Decision{Allowed: true, Source: sluicev1.Source_SOURCE_UNMATCHED}), false, func(r *audit.Report) bool {
			return r.FinalErrors > 0 && first(r, "unmatched")
		}},
		{"answers too little", empty, false, func(r *audit.Report) bool { return r.FinalErrors > 0 && first(r, "malformed") }},
		{"rejects the call itself", rejects(codes.InvalidArgument, "too many"), false, func(r *audit.Report) bool {
			return r.FinalErrors > 0 && first(r, "InvalidArgument") && r.ReroutedCalls == 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 3)
				cl.node("n1").serve = c.serve
				cfg := cl.config("n1", "n2", "n3")
				switch c.name {
				case "in batches":
					cfg.Batches = []int{1, 50}
				case "hangs after deciding":
					cfg.Attempt, cfg.Duration = time.Second, 10*time.Second
				}
				r, err := audit.Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				verdict := map[bool]audit.Verdict{true: audit.Pass, false: audit.Fail}[c.clean]
				if r.Clean() != c.clean || r.Verdict() != verdict || !c.want(r) {
					r.Timeline = nil
					t.Errorf("verdict %s, want %s: %+v", r.Verdict(), verdict, *r)
				}
			})
		})
	}
}
