package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestTopKeys: whichever node is asked, it tells what all have counted, and who is gone is told as missing.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {count: 5, period: 24h, align: first_hit}\n"))
	counts := map[string]uint64{"ann": 30, "bob": 12, "cid": 6}
	for name, n := range counts {
		for i := range n {
			req := &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: name}}}}}
			if _, err := nodes[i%3].API().Check(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	top := func(n *process.Node, by adminv1alpha1.TopBy) (keys []string, missing []string) {
		t.Helper()
		res, err := n.Operator().Top(t.Context(), &adminv1alpha1.TopRequest{By: by})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range res.Keys {
			keys = append(keys, fmt.Sprint(k.Descriptor_[0].Value, " ", k.Count))
		}
		return keys, res.Missing
	}
	for _, n := range nodes {
		// Names of the others come with their control messages, and the first control messages may get lost while connections are made.
		process.Eventually(t, 10*time.Second, n.Name+" knows what all have counted", func() error {
			frequent, missing := top(n, adminv1alpha1.TopBy_TOP_BY_FREQUENT)
			limited, also := top(n, adminv1alpha1.TopBy_TOP_BY_LIMITED)
			if got := strings.Join(slices.Concat(frequent, limited, missing, also), ", "); got != "ann 30, bob 12, cid 6, ann 25, bob 7, cid 1" {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	nodes[2].Kill()
	frequent, missing := top(nodes[0], adminv1alpha1.TopBy_TOP_BY_FREQUENT)
	if strings.Join(frequent, ", ") != "ann 20, bob 8, cid 4" || len(missing) > 1 || len(missing) == 1 && missing[0] != nodes[2].Name {
		t.Errorf("without %s: %v, missing %v", nodes[2].Name, frequent, missing)
	}
}
