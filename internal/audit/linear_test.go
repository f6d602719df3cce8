package audit_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/linear"
)

// logged runs an audit in which calls take their time and n2 crashes, and returns
// the log by key.
func logged(t *testing.T, spoil serve) map[string][]audit.Check {
	byKey := map[string][]audit.Check{}
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 3)
		for _, n := range cl.nodes() {
			n.serve = slow
		}
		cl.node("n1").serve = spoil
		crashed := make(chan struct{})
		go func() {
			defer close(crashed)
			time.Sleep(time.Second)
			cl.node("n2").crash()
		}()
		cfg := cl.config("n1", "n2", "n3")
		var log bytes.Buffer
		cfg.Log, cfg.Callers = &log, 16
		r, err := audit.Run(t.Context(), cfg)
		<-crashed
		if err != nil || r.AmbiguousRetries == 0 {
			t.Fatalf("report %+v, error %v; want ambiguous retries", r, err)
		}
		checks := int64(0)
		err = audit.ReadLog(&log, func(c audit.Check) error {
			checks++
			byKey[c.Key] = append(byKey[c.Key], c)
			return nil
		})
		if err != nil || checks != r.Checks || len(byKey) != 20 {
			t.Errorf("log of %d checks and %d keys, error %v; want %d", checks, len(byKey), err, r.Checks)
		}
	})
	return byKey
}

func TestLogsOfASoundClusterAreLinearizable(t *testing.T) {
	for key, checks := range logged(t, slow) {
		if ok, err := linear.Check(checks, 10, time.Minute); !ok || err != nil {
			t.Errorf("%s: linearizable: %t, %v", key, ok, err)
		}
	}
}

// A denial that comes before the limit is reached is no fault of the count of
// admissions, but of their order.
func TestLogOfAWrongDenialIsNotLinearizable(t *testing.T) {
	var once atomic.Bool
	wrong := func(ctx context.Context, q *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
		if strings.HasSuffix(q.Checks[0].Descriptor_[0].Value, "-0-7") && !once.Swap(true) {
			return &sluicev1.CheckResponse{Decisions: []*sluicev1.Decision{{Source: sluicev1.Source_SOURCE_OWNED}}}, nil
		}
		return slow(ctx, q, decide)
	}
	for key, checks := range logged(t, wrong) {
		if ok, err := linear.Check(checks, 10, time.Minute); ok == strings.HasSuffix(key, "-0-7") || err != nil {
			t.Errorf("%s: linearizable: %t, %v", key, ok, err)
		}
	}
}
