package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// A caller in one domain floods three nodes with more keys than they have room for, each with limits of its own. The keys that
// another domain has spent stay denied, by a rule and by limits that came with the check.
func TestFloodInOneDomainResetsNoOther(t *testing.T) {
	t.Parallel()
	const (
		victims = 200
		quota   = 5
		room    = 2000 // of each node
		flood   = 12_000
	)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	text := "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 5}\n"
	if err := os.WriteFile(rules, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	nodes := process.Cluster(t, 3, rules,
		"--max-entries", fmt.Sprint(room), "--memory-limit", "128MiB", "--max-wait", "0")
	ask := func(n *process.Node, count int, check func(i int) *sluicev1.Check) []*sluicev1.Decision {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		q := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, count)}
		for i := range q.Checks {
			q.Checks[i] = check(i)
		}
		r, err := n.API().Check(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		return r.Decisions
	}
	victim := func(i int) *sluicev1.Check {
		c := &sluicev1.Check{Domain: "shop", Descriptor_: process.Entries("user", fmt.Sprint(i))}
		if i%2 == 1 {
			c.Domain, c.Limits = "post", []*sluicev1.Limit{{Count: quota, PeriodNs: int64(24 * time.Hour)}}
		}
		return c
	}
	for range quota {
		for i, d := range ask(nodes[0], victims, victim) {
			if !d.Allowed {
				t.Fatalf("victim %d: %v", i, d)
			}
		}
	}
	for from := 0; from < flood; from += 1000 {
		for i, d := range ask(nodes[from/1000%3], 1000, func(i int) *sluicev1.Check {
			limit := &sluicev1.Limit{Count: int64(1 + (from+i)%5000), PeriodNs: int64(time.Hour)}
			return &sluicev1.Check{Domain: "zzz", Descriptor_: process.Entries("key", fmt.Sprint(from+i)), Limits: []*sluicev1.Limit{limit}}
		}) {
			if !d.Allowed {
				t.Fatalf("check %d of the flood: %v", from+i, d)
			}
		}
	}
	for i, d := range ask(nodes[1], victims, victim) {
		if d.Allowed || d.Error != nil {
			t.Errorf("victim %d after the flood: %v", i, d)
		}
	}
	evicted := 0.0
	for _, n := range nodes {
		_, body, err := n.Get("/metrics")
		if err != nil {
			t.Fatal(err)
		}
		value := func(series string) (v float64) {
			_, after, _ := strings.Cut(body, "\n"+series+" ")
			fmt.Sscan(after, &v)
			return v
		}
		evicted += value(`sluice_evicted_live_total{domain="zzz"}`)
		if shop, control := value(`sluice_evicted_live_total{domain="shop"}`), value(`sluice_evicted_live_total{domain="post"}`); shop != 0 || control != 0 {
			t.Errorf("%s evicted %.0f and %.0f counters of those domains", n.Name, shop, control)
		}
		if held := value("sluice_counters"); held < room/2 || held > room*1.02 {
			t.Errorf("%s has %.0f counters", n.Name, held)
		}
	}
	if evicted < flood/2 {
		t.Errorf("%.0f counters of the flood were evicted", evicted)
	}
}
