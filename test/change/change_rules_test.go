package change

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// unequal are limits that nodes do not agree on: some have more, some less.
var unequal = []struct {
	name       string
	keys       int
	more, less int64
	period     time.Duration
	rule       string
	limit      bucket.Limit
}{
	{"first", 300, 50, 20, time.Hour, "algorithm: fixed_window, align: first_hit", bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit}},
	{"bucket", 300, 50, 20, time.Hour, "algorithm: token_bucket", bucket.Limit{Algorithm: bucket.TokenBucket}},
	{"leaky", 300, 50, 20, time.Hour, "algorithm: leaky_bucket", bucket.Limit{Algorithm: bucket.LeakyBucket}},
	{"sliding", 300, 50, 20, time.Hour, "algorithm: sliding_counter", bucket.Limit{Algorithm: bucket.SlidingCounter}},
	{"log", 300, 50, 20, time.Hour, "algorithm: sliding_log", bucket.Limit{Algorithm: bucket.SlidingLog}},
	// One key that all ask for, of which nodes grant each other under the limits that each of them knows.
	{"hot", 1, 900, 500, time.Second, "algorithm: token_bucket", bucket.Limit{Algorithm: bucket.TokenBucket}},
}

func unequalRules(more bool) string {
	var b strings.Builder
	b.WriteString("domain: change\ndescriptors:\n")
	for _, u := range unequal {
		count := u.less
		if more {
			count = u.more
		}
		fmt.Fprintf(&b, "  - key: %s\n    limits:\n      - {count: %d, period: %s, %s}\n", u.name, count, u.period, u.rule)
	}
	return b.String()
}

// Nodes have different rule files under load, for a minute and until each rule has denied checks, now this one and now that one the larger limits:
// nothing is admitted beyond the larger ones, and in the end all of them.
func TestChangeRulesDiffer(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, more bool) {
		t.Helper()
		file := filepath.Join(dir, name, "rules.yaml")
		if err := errors.Join(
			os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file+".new", []byte(unequalRules(more)), 0o644),
			os.Rename(file+".new", file),
		); err != nil {
			t.Fatal(err)
		}
	}
	more := map[string]bool{"pod-1": true}
	for _, name := range []string{"pod-1", "pod-2", "pod-3"} {
		put(name, more[name])
	}
	f := newFleet(t, 3, "", "--rules", filepath.Join(dir, "{name}"))

	var specs, hot []audit.Spec
	for _, u := range unequal {
		limit := u.limit
		limit.Count, limit.Period = u.more, u.period
		spec := audit.Spec{Keys: u.keys, Limit: limit, Descriptor: u.name}
		if u.keys == 1 {
			hot = append(hot, spec)
		} else {
			specs = append(specs, spec)
		}
	}
	const most = 10 * time.Minute
	ctx, enough := context.WithTimeout(t.Context(), most)
	defer enough()
	// The larger limits admit 75,000 together: that many are asked for while rules differ, or nearly, so that keys
	// are at the smaller limit and at the larger one while both are in force.
	differ := process.Setting(t, "SLUICE_E2E_RULES", time.Minute)
	rate := min(4000, 75_000/differ.Seconds())
	reports := make(chan *audit.Report, 2)
	for _, c := range []audit.Config{
		{Specs: specs, Rate: rate, Callers: 8},
		{Specs: hot, Rate: 3000, Callers: 8},
	} {
		c.Targets, c.Domain, c.Rules, c.Duration, c.AnswerWithin = f.targets, "change", true, most, f.answerWithin
		go func() {
			r, err := audit.Run(ctx, c)
			if err != nil {
				t.Error(err)
				r = &audit.Report{}
			}
			reports <- r
		}()
	}

	nodes := f.nodes()
	swap := func(n *process.Node, to bool) {
		t.Helper()
		before := n.Metric("sluice_rules_generation")
		more[n.Name] = to
		put(n.Name, to)
		process.Eventually(t, 10*time.Second, n.Name+" has other rules", func() error {
			if n.Metric("sluice_rules_generation") == before {
				return errors.New("not yet")
			}
			return nil
		})
	}
	// One node changes at a time, by turns, so that there is never a moment at which all agree.
	// A slow machine takes longer until limits are reached.
	reached := func() bool {
		for _, u := range unequal {
			if process.Total(nodes, fmt.Sprintf(`sluice_rule_checks_total{domain="change",result="denied",rule="change/%s"}`, u.name)) == 0 {
				return false
			}
		}
		return process.Total(nodes, "sluice_lease_granted_units_total") > 0
	}
	for i, until := 0, time.Now().Add(differ); time.Now().Before(until) || !reached() && ctx.Err() == nil; i++ {
		next := nodes[(i+1)%len(nodes)]
		swap(next, true)
		pass(differ / 20)
		swap(nodes[i%len(nodes)], false)
		pass(differ / 20)
	}
	granted := process.Total(nodes, "sluice_lease_granted_units_total")
	for _, n := range nodes {
		if !more[n.Name] {
			swap(n, true)
		}
	}
	pass(5 * time.Second) // what the smaller limits have denied is now admitted
	enough()
	for range 2 {
		r := <-reports
		t.Logf("%d checks, admitted %d, denied %d; %d keys at their limit; over %d keys by %d; errors %d; sources %v, longest gap %v",
			r.Checks, r.Admitted, r.Denied, r.AtLimit, r.Over.Keys, r.Over.Units, r.FinalErrors, r.Sources, r.LongestGap().Length)
		if r.Over.Units > 0 {
			t.Errorf("%d keys were admitted %d above the larger limit: %+v", r.Over.Keys, r.Over.Units, r.Violations)
		}
		if r.FinalErrors > 0 {
			t.Errorf("%d checks had no answer: %+v", r.FinalErrors, r.Errors)
		}
		if r.Denied == 0 {
			t.Error("nothing was denied: this tests nothing")
		}
	}
	if granted == 0 {
		t.Error("nobody has granted of the hot key: this tests less than it says")
	}
}
