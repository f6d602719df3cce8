package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Bounds of what a hostile caller can do to the counters of others.
const (
	wholeWithin   = 10 * time.Second // every partition has its replica again, which a full queue would keep it from for good
	handoffWithin = 5 * time.Second  // a node that is stopped has handed everything over
)

// hostileRules have users whose counters must survive, and a key with as many full logs as one key can have.
const hostileRules = `
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}, on_failure: closed, on_partition: closed, on_lost_state: fresh}
  - key: poison
    limits:
`

// TestHostileLimits: one caller asks 100,000 times, each time with limits that no other check has, and fills sixteen logs of
// one key. Every counter still has its replica, nodes hand over and crash, and no spent counter of others is fresh.
func TestHostileLimits(t *testing.T) {
	t.Parallel()
	const (
		keys, rounds = 4000, 25 // of the caller
		users, quota = 600, 5
		batch        = 1000
		logs         = 16
		entries      = 4096 // of each: a key keeps 65,536 in all
	)
	rules := hostileRules
	for i := range logs {
		rules += fmt.Sprintf("      - {algorithm: sliding_log, count: %d, weight: %d, period: 36000d, log_entries: %d}\n", int64(1)<<62+int64(i), int64(1)<<46, entries)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes := process.Cluster(t, 4, file)
	unprotected := func(left []*process.Node) error {
		for _, n := range left {
			m, err := n.API().Members(t.Context(), &adminv1alpha1.MembersRequest{})
			if err != nil {
				return err
			}
			if v := m.GetPartitionCounts().GetUnprotected(); v > 0 {
				return fmt.Errorf("%s has %v partitions without a replica", n.Name, v)
			}
		}
		return nil
	}
	protected := func(left []*process.Node) {
		t.Helper()
		began := time.Now()
		process.Eventually(t, wholeWithin, "all partitions have a replica", func() error { return unprotected(left) })
		t.Logf("all partitions of %d nodes have a replica after %v", len(left), time.Since(began).Round(time.Millisecond))
	}
	process.Eventually(t, 10*time.Second, "all partitions have a replica at first", func() error { return unprotected(nodes) })

	call := func(n *process.Node, checks []*sluicev1.Check) []*sluicev1.Decision {
		t.Helper()
		r, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: checks})
		if err != nil {
			t.Fatal(err)
		}
		return r.Decisions
	}
	of := func(domain, key, value string) *sluicev1.Check {
		return &sluicev1.Check{Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}}
	}

	// More logs than one check may bring.
	large := of("evil", "key", "poison")
	for range logs {
		large.Limits = append(large.Limits, &sluicev1.Limit{Algorithm: sluicev1.Algorithm_ALGORITHM_SLIDING_LOG, Count: 1, PeriodNs: int64(time.Hour), LogEntries: 65_536})
	}
	if d := call(nodes[0], []*sluicev1.Check{large})[0]; !strings.HasSuffix(d.GetError().GetField(), "limits[1].log_entries") {
		t.Errorf("sixteen logs of 65,536 entries: %v", d)
	}
	began := time.Now()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range entries / 8 { // one by one: charges of one call have one time, which is one entry
				charge := of("shop", "poison", "x")
				charge.Verb = sluicev1.Verb_VERB_CHARGE
				if _, err := nodes[0].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{charge}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	t.Logf("sixteen logs of %d entries in %v", entries, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for round := range rounds {
		for first := 0; first < keys; first += batch {
			list := make([]*sluicev1.Check, batch)
			for i := range list {
				list[i] = of("evil", "key", fmt.Sprint(first+i))
				period := 24*time.Hour + time.Duration(round*keys+first+i)
				list[i].Limits = []*sluicev1.Limit{{Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 1000, PeriodNs: int64(period)}}
			}
			call(nodes[0], list)
		}
	}
	t.Logf("%d checks with limits of their own in %v", keys*rounds, time.Since(began).Round(time.Millisecond))
	protected(nodes)

	spend := func(n *process.Node) (allowed int, err error) {
		list := make([]*sluicev1.Check, users)
		for i := range list {
			list[i] = of("shop", "user", fmt.Sprint(i))
		}
		for _, d := range call(n, list) {
			switch d.Source {
			case sluicev1.Source_SOURCE_OWNED, sluicev1.Source_SOURCE_FORWARDED:
			default:
				err = errors.Join(err, fmt.Errorf("a user was answered by %v", d.Source))
			}
			if d.Allowed {
				allowed++
			}
		}
		return allowed, err
	}
	for range quota {
		if n, err := spend(nodes[0]); n != users || err != nil {
			t.Fatalf("%d of %d users were allowed: %v", n, users, err)
		}
	}
	protected(nodes)

	took, code := nodes[0].Stop(syscall.SIGTERM)
	t.Logf("%s has left after %v", nodes[0].Name, took.Round(time.Millisecond))
	if took > handoffWithin || code != 0 || strings.Contains(nodes[0].Log.String(), "not all was handed over") {
		t.Errorf("%s has left after %v with exit code %d", nodes[0].Name, took, code)
	}
	protected(nodes[1:])
	nodes[1].Kill()
	over := 0
	process.Eventually(t, 20*time.Second, "owners answer for all users", func() error {
		n, err := spend(nodes[2])
		over += n
		return err
	})
	if over > 0 {
		t.Errorf("%d checks of users that had spent all were allowed", over)
	}
	protected(nodes[2:])
}
