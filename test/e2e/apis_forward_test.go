package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Two domains that count requests by the client's address: one believes no proxy, the other those on
// this machine, which is where these tests ask from.
const (
	outsiderRules = `domain: outsider
authorize:
  descriptors:
    - - {key: address, from: client_address}
descriptors:
  - key: address
    limits: [{algorithm: fixed_window, align: first_hit, count: 20, period: 24h}]
`
	proxyRules = `domain: proxy
authorize:
  trusted_proxies: [127.0.0.1]
  descriptors:
    - - {key: address, from: client_address}
descriptors:
  - key: address
    limits: [{algorithm: fixed_window, align: first_hit, count: 20, period: 24h}]
`
	// A request is checked by its user, and by its user and path together.
	pathRules = `domain: paths
authorize:
  trusted_proxies: [127.0.0.1]
  descriptors:
    - - {key: user, from: header, name: X-User}
    - - {key: user, from: header, name: X-User}
      - {key: path, from: path}
      - {key: method, from: method}
descriptors:
  - key: user
    limits: [{algorithm: fixed_window, align: first_hit, count: 20, period: 24h}]
    descriptors:
      - key: path
        descriptors:
          - key: method
            limits: [{algorithm: fixed_window, align: first_hit, count: 20, period: 24h}]
`
)

// left reads what a descriptor has left of 20 units.
func left(t *testing.T, n *process.Node, domain string, pairs ...string) int64 {
	t.Helper()
	res, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: domain, Descriptor_: process.Entries(pairs...), Verb: sluicev1.Verb_VERB_READ,
	}}})
	if err != nil || res.Decisions[0].Error != nil || res.Decisions[0].GetLimit() != 20 {
		t.Fatalf("reading %v: %v, %v", pairs, res, err)
	}
	return res.Decisions[0].GetRemaining()
}

// Whoever makes up the addresses that a request came through is counted by the one that is known, and
// costs nobody else.
func TestAPIsForgedAddress(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, outsiderRules, proxyRules))
	for _, c := range []struct {
		domain, counted string
		// chain has what request i sends as X-Forwarded-For.
		chain func(i int) []string
	}{
		{"outsider", "127.0.0.1", func(i int) []string { return []string{fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", i)} }},
		{"proxy", "203.0.113.9", func(i int) []string {
			// The proxy has appended whom it was asked by to what its client made up.
			return []string{fmt.Sprintf("X-Forwarded-For: 198.51.100.%d, 203.0.113.9", i)}
		}},
		{"proxy", "203.0.113.77", func(i int) []string {
			return []string{fmt.Sprintf("X-Forwarded-For: 198.51.100.%d, 127.0.0.1", i), "X-Forwarded-For: 203.0.113.77"}
		}},
		{"proxy", "203.0.113.78", func(i int) []string { return []string{fmt.Sprintf("X-Forwarded-For: %d;<script>, 203.0.113.78", i)} }},
	} {
		for i := range 30 {
			url := fmt.Sprintf("http://%s/v1/authorize/%s", nodes[i%3].HTTP, c.domain)
			status, body, err := request(t.Context(), http.MethodGet, url, "", c.chain(i)...)
			want := http.StatusOK
			if i >= 20 {
				want = http.StatusTooManyRequests
			}
			if err != nil || status != want {
				t.Errorf("%s, request %d: %d %s, %v; want %d", c.counted, i, status, body, err, want)
			}
		}
		if n := left(t, nodes[0], c.domain, "address", c.counted); n != 0 {
			t.Errorf("%s: %s has %d left", c.domain, c.counted, n)
		}
		for i := range 30 {
			if n := left(t, nodes[1], c.domain, "address", fmt.Sprintf("198.51.100.%d", i)); n != 20 {
				t.Errorf("%s: the made-up address %d has %d left of 20", c.domain, i, n)
			}
		}
	}
}

func TestAPIsRejectProxies(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, pathRules))
	userLeft := func(t *testing.T, n *process.Node, key string) int64 {
		t.Helper()
		return left(t, n, "paths", "user", key)
	}
	ask := func(method, path string, headers ...string) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			var mine []string
			for _, h := range headers {
				mine = append(mine, strings.ReplaceAll(h, "KEY", key))
			}
			status, body, err := request(ctx, method, "http://"+n.HTTP+"/v1/authorize/"+path, "", mine...)
			return fmt.Sprintf("%d %s %v", status, body, err)
		}
	}
	const user = "X-User: KEY"
	rejects(t, nodes, userLeft, 20, []wrong{
		{"no such domain", ask("GET", "nowhere/x", user), []string{"404", "authorize"}},
		{"no domain", ask("GET", "", user), []string{"404"}},
		{"a path that is not told", ask("GET", "paths", user), []string{"400", `"field":"X-Forwarded-Uri"`}},
		{"a method that is not told", ask("GET", "paths", user, "X-Forwarded-Uri: /x"), []string{"400", `"field":"X-Forwarded-Method"`}},
		{"a method that is none", ask("GET", "paths", user, "X-Forwarded-Uri: /x", "X-Forwarded-Method: G E T"), []string{"400", `"field":"X-Forwarded-Method"`}},
		{"a path that is none", ask("GET", "paths", user, "X-Forwarded-Uri: %zz", "X-Forwarded-Method: GET"), []string{"400", `"field":"X-Forwarded-Uri"`}},
		{"two paths", ask("GET", "paths", user, "X-Forwarded-Uri: /x", "X-Forwarded-Uri: /y", "X-Forwarded-Method: GET"),
			[]string{"400", `"field":"X-Forwarded-Uri"`}},
		{"told in both ways", ask("GET", "paths/x", user, "X-Forwarded-Uri: /y"), []string{"400", `"field":"X-Forwarded-Uri"`}},
		{"huge headers", ask("GET", "paths/x", user, "X-Much: "+strings.Repeat("m", 1<<20)), []string{"431"}},
	})
}
