package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// audited lists every algorithm, as a rule file spells it and as the audit knows it. It has no model of calendars and
// of refills at once: days in UTC, and hours that are filled up at their beginning, are windows like others.
var audited = []struct {
	name, rule string
	model      bucket.Limit
}{
	{"token_bucket", "algorithm: token_bucket, period: 1h", bucket.Limit{Algorithm: bucket.TokenBucket, Period: time.Hour}},
	{
		"token_bucket_interval", "algorithm: token_bucket, refill: interval, period: 1h",
		bucket.Limit{Algorithm: bucket.FixedWindow, Period: time.Hour},
	},
	{"leaky_bucket", "algorithm: leaky_bucket, period: 1h", bucket.Limit{Algorithm: bucket.LeakyBucket, Period: time.Hour}},
	{"leaky_queue", "algorithm: leaky_queue, period: 1h", bucket.Limit{Algorithm: bucket.LeakyQueue, Period: time.Hour}},
	{"fixed_epoch", "algorithm: fixed_window, period: 1h", bucket.Limit{Algorithm: bucket.FixedWindow, Period: time.Hour}},
	{
		"fixed_first_hit", "algorithm: fixed_window, align: first_hit, period: 1h",
		bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Period: time.Hour},
	},
	{
		"fixed_calendar", "algorithm: fixed_window, align: calendar, unit: day, timezone: UTC",
		bucket.Limit{Algorithm: bucket.FixedWindow, Period: 24 * time.Hour},
	},
	{"sliding_log", "algorithm: sliding_log, period: 1h", bucket.Limit{Algorithm: bucket.SlidingLog, Period: time.Hour}},
	{"sliding_counter", "algorithm: sliding_counter, period: 1h", bucket.Limit{Algorithm: bucket.SlidingCounter, Period: time.Hour}},
	{"sliding_window", "algorithm: sliding_window, period: 1h", bucket.Limit{Algorithm: bucket.SlidingWindow, Period: time.Hour}},
}

// TestAuditEveryAlgorithm asks for keys of every algorithm, through all nodes at once, alone and in batches, until each was denied:
// exactly its quota was admitted. It starts three nodes; with SLUICE_E2E_ADDRS (gRPC addresses, comma separated) it audits a
// cluster that runs elsewhere, whose rules it does not know: then the limits travel with the checks.
func TestAuditEveryAlgorithm(t *testing.T) {
	t.Parallel()
	const quota, keys = 10, 1000
	var rules strings.Builder
	rules.WriteString("domain: audit\ndescriptors:\n")
	c := audit.Config{
		Callers: 64, Batches: []int{1, 50}, Duration: time.Second, Attempt: 30 * time.Second, AnswerWithin: time.Minute,
		Exhaust: audit.Exhaust{Denials: 3, Within: 2 * time.Minute},
	}
	for _, a := range audited {
		fmt.Fprintf(&rules, "  - key: %s\n    rate_limit: {%s, count: %d}\n", a.name, a.rule, quota)
		a.model.Count = quota
		c.Specs = append(c.Specs, audit.Spec{Keys: keys, Limit: a.model, Descriptor: a.name})
	}
	var nodes []*process.Node
	run := func() *audit.Report {
		r, err := audit.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range r.Specs {
			t.Logf("%-22s admitted %d, denied %d, over quota %+v, under %+v", audited[i].name, s.Admitted, s.Denied, s.Over, s.Under)
		}
		return r
	}
	if addrs := os.Getenv("SLUICE_E2E_ADDRS"); addrs != "" {
		c.Targets = func() []string { return strings.Split(addrs, ",") }
		exact(t, run(), nil)
		return
	}
	c.Rules, c.Targets = true, func() []string { return strings.Split(process.Target(nodes), ",") }
	for again := 2; ; again-- {
		nodes = process.Cluster(t, 3, process.RulesOf(t, rules.String()), "--check-timeout", "5s")
		r := run()
		// Nodes that the machine stalls lose quorum, and answer by shares. That is no audit of the owners.
		if (r.Over.Units > 0 || r.FinalErrors > 0) && process.Pauses(nodes) > 0 && again > 0 {
			t.Log("again with other nodes, as the machine had no processor for these")
			for _, n := range nodes {
				n.Kill()
			}
			continue
		}
		exact(t, r, nodes)
		if r.Unexhausted > 0 || r.AtLimit != keys*len(audited) {
			t.Errorf("%d keys were denied, and %d not often enough", r.AtLimit, r.Unexhausted)
		}
		return
	}
}
