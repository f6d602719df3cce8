package node

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestLoweredLimit: who has spent 1000 an hour waits for six minutes when the limit becomes 10 an hour, whichever node and API is
// asked, by limits in the check, by a rule file, and for gubernator's clients; and changing back refills nothing.
func TestLoweredLimit(t *testing.T) {
	t.Parallel()
	first := testConfig(t)
	nodes := []*running{startNode(t, first)}
	second := first
	second.Name, second.Join = "n2", []string{nodes[0].gossip.Addr()}
	nodes = append(nodes, startNode(t, second))
	const most = 360 * time.Second

	type decision struct {
		Allowed    bool
		Remaining  int64
		RetryAfter float64 `json:"retry_after"`
	}
	for key := range 6 {
		ask := func(node int, call string, cost, count int64) (d decision) {
			t.Helper()
			body := fmt.Sprintf(`{"domain":"d","descriptor":["key=%d"],"cost":%d,"limits":[{"algorithm":"token_bucket","count":%d,"period":3600}]}`, key, cost, count)
			if status := nodes[node].post(t, call, body, &d); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			return d
		}
		if d := ask(0, "check", 1000, 1000); !d.Allowed {
			t.Fatalf("%+v", d)
		}
		for _, call := range []string{"read", "check", "read", "check"} {
			for node := range nodes {
				if d := ask(node, call, 1, 10); d.Allowed || d.RetryAfter > most.Seconds() || d.RetryAfter <= 0 {
					t.Errorf("%s at node %d: %+v", call, node, d)
				}
			}
		}
		if d := ask(1, "check", 500, 1000); d.Allowed {
			t.Errorf("changed back: %+v", d)
		}
	}

	const rule = "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: %d, period: 1h, algorithm: token_bucket}\n"
	reload := func(count int64) {
		t.Helper()
		writeRule(t, first.Rules, fmt.Sprintf(rule, count))
		for _, r := range nodes {
			await(t, "reloaded", func() bool {
				return r.decide(t, sluicev1.Verb_VERB_READ, "auth", "user", "other").GetLimit() == count
			})
		}
	}
	reload(50)
	for range 50 {
		nodes[0].check(t, "ann")
	}
	reload(10)
	for _, r := range nodes {
		for _, v := range []sluicev1.Verb{sluicev1.Verb_VERB_READ, sluicev1.Verb_VERB_CHECK} {
			d := r.decide(t, v, "auth", "user", "ann")
			if wait := time.Duration(d.GetRetryAfterNs()); d.GetAllowed() || wait > most || wait <= 0 {
				t.Errorf("rule file, %v: %v", v, d)
			}
		}
	}

	for _, algorithm := range []gubernatorv1.Algorithm{gubernatorv1.Algorithm_LEAKY_BUCKET, gubernatorv1.Algorithm_TOKEN_BUCKET} {
		ask := func(node int, hits, limit int64) *gubernatorv1.RateLimitResp {
			return nodes[node].postGubernator(t, fmt.Sprintf(
				`{"requests":[{"name":"g","unique_key":"%d","hits":%d,"limit":%d,"duration":3600000,"algorithm":%d}]}`, algorithm, hits, limit, algorithm)).GetResponses()[0]
		}
		if r := ask(0, 1000, 1000); r.GetStatus() != gubernatorv1.Status_UNDER_LIMIT || r.GetRemaining() != 0 {
			t.Fatal(r)
		}
		longest := most
		if algorithm == gubernatorv1.Algorithm_TOKEN_BUCKET {
			longest = time.Hour
		}
		longest += time.Millisecond // reset_time is the next whole millisecond
		for node := range nodes {
			for hits := range int64(2) {
				r := ask(node, hits, 10)
				if wait := time.Until(time.UnixMilli(r.GetResetTime())); r.GetStatus() != gubernatorv1.Status_OVER_LIMIT || wait > longest || wait <= 0 {
					t.Errorf("%v, %d hits: %v, to wait %v", algorithm, hits, r, wait)
				}
			}
		}
	}
}
