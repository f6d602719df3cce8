package audit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// Nodes that stop in an orderly way and nodes that crash leave no final error and no
// false alarm behind, whether they come back or not.
func TestNodesGoAndCome(t *testing.T) {
	for _, c := range []struct {
		name      string
		stop      func(n *fakeNode)
		ambiguous bool
	}{
		{"goaway", func(n *fakeNode) { n.server.GracefulStop(); n.kill() }, false},
		{"crash", (*fakeNode).crash, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 3)
				for _, n := range cl.nodes() {
					n.serve = slow
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					time.Sleep(500 * time.Millisecond)
					c.stop(cl.node("n1"))
					time.Sleep(1500 * time.Millisecond)
					cl.start("n1").serve = slow
					time.Sleep(1500 * time.Millisecond)
					c.stop(cl.node("n2"))
				}()
				cfg := cl.config("n1", "n2", "n3")
				cfg.Duration = 5 * time.Second
				r, err := audit.Run(t.Context(), cfg)
				<-done
				if err != nil {
					t.Fatal(err)
				}
				if !r.Clean() || len(r.Errors) == 0 {
					t.Errorf("want errors of attempts and no final ones:\n%+v", r)
				}
				if c.ambiguous != (r.AmbiguousRetries > 0) || !c.ambiguous && r.Admitted != 200 {
					t.Errorf("%d ambiguous retries, %d admitted", r.AmbiguousRetries, r.Admitted)
				}
			})
		})
	}
}

// slow takes 5 ms before and after deciding, so that calls are under way at any time.
func slow(_ context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
	time.Sleep(5 * time.Millisecond)
	r := decide()
	time.Sleep(5 * time.Millisecond)
	return r, nil
}

func TestNoNodeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 1)
		began := time.Now()
		r, err := audit.Run(t.Context(), cl.config("n7", "n8"))
		if r != nil || !errors.Is(err, audit.ErrNoNode) || !strings.Contains(err.Error(), "n") {
			t.Errorf("report %v, error %v", r, err)
		}
		if took := time.Since(began); took > audit.DefaultAnswerWithin {
			t.Errorf("it took %v", took)
		}

		// It can be reached, and answers no check.
		cl.node("n1").serve = func(ctx context.Context, _ *sluicev1.CheckRequest, _ func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r, err = audit.Run(t.Context(), cl.config("n1"))
		if !errors.Is(err, audit.ErrNoNode) || r == nil || r.Clean() || r.FinalErrors != 4 || r.LongestGap().Ended {
			t.Errorf("report %+v, error %v", r, err)
		}
		if took := time.Duration(r.Took); took > 2*time.Second+audit.DefaultAnswerWithin {
			t.Errorf("it took %v", took)
		}
	})
}

// The end of the context stops the load; calls under way are answered.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cl.node("n1").serve = func(_ context.Context, _ *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error) {
			cancel()
			time.Sleep(time.Second)
			return decide(), nil
		}
		cfg := cl.config("n1")
		cfg.Exhaust.Denials = 1
		r, err := audit.Run(ctx, cfg)
		if err != nil || r.Verdict() != audit.Inconclusive || r.Checks != 1 || r.Admitted != 1 {
			t.Errorf("report %+v, error %v", r, err)
		}
	})
}

// Without exhaust too few checks are made; with it every key reaches its limit.
func TestExhaust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 3)
		cfg := cl.config("n1", "n2", "n3")
		cfg.Duration = 100 * time.Millisecond
		for i, a := range []bucket.Algorithm{bucket.TokenBucket, bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow, bucket.LeakyQueue} {
			cfg.Specs = append(cfg.Specs, audit.Spec{Keys: i + 3, Limit: bucket.Limit{Algorithm: a, Count: 5, Period: time.Hour}})
		}
		cfg.Exhaust = audit.Exhaust{Denials: 2}
		r, err := audit.Run(t.Context(), cfg)
		if err != nil || r.Verdict() != audit.Pass || r.Unexhausted != 0 || r.AtLimit != 20+3+4+5+6+7 || r.Admitted != 20*10+25*5 {
			t.Errorf("report %+v, error %v", r, err)
		}
		cfg.Exhaust.Within = 100 * time.Millisecond
		if r, err := audit.Run(t.Context(), cfg); err != nil || r.Verdict() != audit.Inconclusive || r.Unexhausted == 0 {
			t.Errorf("report %+v, error %v", r, err)
		}
	})
}

// A run that exhausts all keys of one limit and few of another shows nothing of the second.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		atLimit [2]int
		change  func(r *audit.Report)
		want    audit.Verdict
	}{
		{atLimit: [2]int{100, 10}, want: audit.Pass},
		{atLimit: [2]int{90, 9}, want: audit.Pass},
		{atLimit: [2]int{89, 10}, want: audit.Inconclusive},
		{atLimit: [2]int{100, 8}, want: audit.Inconclusive},
		{atLimit: [2]int{100, 10}, change: func(r *audit.Report) { r.Unexhausted = 1 }, want: audit.Inconclusive},
		{atLimit: [2]int{100, 10}, change: func(r *audit.Report) { r.Specs = nil }, want: audit.Inconclusive},
		{change: func(r *audit.Report) { r.Over.Keys = 1 }, want: audit.Fail},
		{change: func(r *audit.Report) { r.Under.Keys = 1 }, want: audit.Fail},
		{atLimit: [2]int{100, 10}, change: func(r *audit.Report) { r.FinalErrors = 1 }, want: audit.Fail},
	} {
		r := &audit.Report{Specs: []audit.SpecReport{{Keys: 100, AtLimit: c.atLimit[0]}, {Keys: 10, AtLimit: c.atLimit[1]}}}
		if c.change != nil {
			c.change(r)
		}
		if got := r.Verdict(); got != c.want {
			t.Errorf("%+v: %s, want %s", c, got, c.want)
		}
	}
}

func TestWrongConfig(t *testing.T) {
	for want, change := range map[string]func(c *audit.Config){
		"targets":  func(c *audit.Config) { c.Targets = nil },
		"specs":    func(c *audit.Config) { c.Specs = nil },
		"keys":     func(c *audit.Config) { c.Specs[0].Keys = 0 },
		"period":   func(c *audit.Config) { c.Specs[0].Limit.Period = 0 },
		"callers":  func(c *audit.Config) { c.Callers = -1 },
		"batch":    func(c *audit.Config) { c.Batches = []int{0} },
		"rate":     func(c *audit.Config) { c.Rate = -1 },
		"denials":  func(c *audit.Config) { c.Exhaust.Denials = -1 },
		"duration": func(c *audit.Config) { c.Duration = -1 },
		"clocks":   func(c *audit.Config) { c.Clocks.Error = -1 },
	} {
		c := (&cluster{}).config("n1")
		change(&c)
		if _, err := audit.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
}
