//go:build linux

package network

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// cutLimit is an hour's quota of the keys that are soon at their limit; in three nodes, a
// third of it is a share. Keys of hugeLimit never are at theirs.
const (
	cutLimit  = 30
	cutShare  = cutLimit / 3
	hugeLimit = 100_000
)

// cutSpecs are keys with the quota, of each of the ways to count: those that fill up when a
// bucket, an own window and two aligned windows do.
func cutSpecs(keysEach int) (specs []audit.Spec) {
	// Aligned windows go on for longer than the test does.
	period, _ := process.AuditPeriod(time.Now())
	for _, limit := range []bucket.Limit{
		{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit},
		{Algorithm: bucket.TokenBucket},
		{Algorithm: bucket.SlidingCounter},
	} {
		limit.Count, limit.Period = cutLimit, period
		specs = append(specs, audit.Spec{Keys: keysEach, Limit: limit})
	}
	return specs
}

// cutGap returns how long a cut may leave a key without an answer: 2 s, or SLUICE_E2E_GAP on
// machines that do other things meanwhile.
func cutGap(t *testing.T) time.Duration {
	t.Helper()
	const gap = 2 * time.Second
	text := os.Getenv("SLUICE_E2E_GAP")
	if text == "" {
		return gap
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SLUICE_E2E_GAP: %v", err)
	}
	return max(gap, d)
}

// hugeSpecs are keys that are never at their limit.
func hugeSpecs() []audit.Spec {
	limit := bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: hugeLimit, Period: time.Hour}
	return []audit.Spec{{Keys: 100, Limit: limit}}
}

// watch is an audit under way.
type watch struct {
	t      *testing.T
	lab    *lab
	name   string
	path   string // of its log
	stop   context.CancelFunc
	done   sync.WaitGroup
	report *audit.Report
	checks atomic.Int64 // that have ended
}

// audit begins to ask what c says of the nodes that targets returns, until it is ended or
// has exhausted its keys.
func (l *lab) audit(name string, c audit.Config, targets func() []*labNode) *watch {
	l.t.Helper()
	a := &watch{t: l.t, lab: l, name: name, path: filepath.Join(l.t.TempDir(), name+".jsonl"), report: &audit.Report{}}
	log, err := os.Create(a.path)
	if err != nil {
		l.t.Fatal(err)
	}
	c.Targets = func() (addrs []string) {
		for _, n := range targets() {
			addrs = append(addrs, n.grpc)
		}
		return addrs
	}
	c.Domain, c.Log, c.DialOptions = "cut", log, l.dialOptions()
	// An attempt may take longer than any answer should: no other node hides what one is late with.
	c.Attempt, c.AnswerWithin = cutGap(l.t)+time.Second/2, 10*time.Second
	if c.Duration == 0 {
		c.Duration = 5 * time.Minute
	}
	c.Progress = func(p audit.Progress) { a.checks.Store(p.Checks) }
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	a.done.Go(func() {
		defer log.Close()
		r, err := audit.Run(ctx, c)
		if err != nil {
			l.t.Errorf("%s: %v", name, err)
		}
		if r != nil {
			a.report = r
		}
	})
	// Nothing may go on when the test has failed.
	l.t.Cleanup(func() {
		a.stop()
		a.done.Wait()
	})
	return a
}

// end ends the audit and returns its account.
func (a *watch) end() *account {
	a.t.Helper()
	a.stop()
	return a.wait()
}

// wait is end for an audit that ends by itself.
func (a *watch) wait() *account {
	a.t.Helper()
	a.done.Wait()
	r := a.report
	a.t.Logf("%s: %d checks, admitted %d, denied %d, errors %d, ambiguous retries %d, sent on %d; over quota %d keys by %d, by owners alone %d keys by %d; under %d keys by %d; sources %v, nodes' errors %+v",
		a.name, r.Checks, r.Admitted, r.Denied, r.FinalErrors, r.AmbiguousRetries, r.ReroutedCalls,
		r.Over.Keys, r.Over.Units, r.OverByOwners.Keys, r.OverByOwners.Units, r.Under.Keys, r.Under.Units, r.Sources, r.Errors)
	if r.FinalErrors > 0 {
		a.t.Errorf("%s: %d checks had no answer", a.name, r.FinalErrors)
	}
	// A check whose answer got lost between two nodes may have been charged twice.
	if twice := a.lab.ambiguous(); r.Under.Units > twice {
		a.t.Errorf("%s: %d keys were denied %d units that were free, with %d ambiguous retries between nodes: %+v",
			a.name, r.Under.Keys, r.Under.Units, twice, r.Violations)
	}
	if r.Unexhausted > 0 {
		a.t.Errorf("%s: %d keys were not at their limit in the end", a.name, r.Unexhausted)
	}
	return readAccount(a.t, a.name, a.path)
}
