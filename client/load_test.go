package sluice

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// loads are the reports that nodes got, and how they are answered.
var loads struct {
	sync.Mutex
	reports []*sluicev1.ReportLoadRequest
	answer  func(*fakeNode, *sluicev1.ReportLoadRequest) error
}

func (n *fakeNode) ReportLoad(_ context.Context, req *sluicev1.ReportLoadRequest) (*sluicev1.ReportLoadResponse, error) {
	loads.Lock()
	defer loads.Unlock()
	loads.reports = append(loads.reports, req)
	if loads.answer != nil {
		if err := loads.answer(n, req); err != nil {
			return nil, err
		}
	}
	return &sluicev1.ReportLoadResponse{Load: req.Load, ExpiresNs: int64(time.Second)}, nil
}

// TestReportLoad: each client is a reporter, another node is asked where one does not answer, and what no node
// can take is an error at once.
func TestReportLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(f func(*fakeNode, *sluicev1.ReportLoadRequest) error) {
			loads.Lock()
			defer loads.Unlock()
			loads.reports, loads.answer = nil, f
		}
		f := newCluster(t, "n1", "n2")
		a, b := f.dial(), f.dial()
		broken := f.nodes[0]
		answer(func(n *fakeNode, _ *sluicev1.ReportLoadRequest) error {
			if n == broken {
				return status.Error(codes.Unavailable, "leaving")
			}
			return nil
		})
		for range 4 {
			do(t, errors.Join(a.ReportLoad(t.Context(), "shop", "spare", 0.5), b.ReportLoad(t.Context(), "shop", "spare", 0.5)))
		}
		reporters := map[string]bool{}
		for _, r := range loads.reports {
			reporters[r.Reporter] = true
			if r.Domain != "shop" || r.Pool != "spare" || r.Load != 0.5 {
				t.Errorf("sent %v", r)
			}
		}
		if len(reporters) != 2 || reporters[""] {
			t.Errorf("reporters %v, want one for each client", reporters)
		}
		for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition} {
			answer(func(*fakeNode, *sluicev1.ReportLoadRequest) error {
				st, _ := status.New(code, "no").WithDetails(&sluicev1.Error{Field: "pool", Message: "no"})
				return st.Err()
			})
			err := a.ReportLoad(t.Context(), "shop", "spare", 2)
			if e, ok := errors.AsType[*Error](err); !ok || e.Field != "pool" || len(loads.reports) != 1 {
				t.Errorf("%v: %v after %d calls", code, err, len(loads.reports))
			}
		}
		answer(func(*fakeNode, *sluicev1.ReportLoadRequest) error { return status.Error(codes.Unavailable, "leaving") })
		c := f.dial(WithTimeout(50 * time.Millisecond))
		if err := c.ReportLoad(t.Context(), "shop", "spare", 1); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "50ms") {
			t.Errorf("no node answers: %v", err)
		}
		answer(nil)
	})
}
