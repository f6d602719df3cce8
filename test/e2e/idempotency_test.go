package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// TestIdempotencyKeys sends one charge again and again with its key: to all nodes at the same time, after its owner has left, and after
// the next owner has crashed. It is made once, and for another caller once more.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	k := process.NewTokens(t)
	shop, digestShop := k.Make("shop")
	web, digestWeb := k.Make("web")
	k.Write("callers.yaml", fmt.Sprintf(`
callers:
  - {name: shop, tokens: [%s], grants: [{domains: [once], verbs: [read, charge]}]}
  - {name: web, tokens: [%s], grants: [{domains: [once], verbs: [read, charge]}]}
`, digestShop, digestWeb))
	nodes := process.ClusterOf(t, 4, process.Config{
		Rules: process.RulesOf(t, "domain: once\ndescriptors:\n  - key: user\n    limits: [100/1h]\n"),
		Args:  []string{"--callers", filepath.Join(k.Dir, "callers.yaml")}, Token: shop,
	})
	// charge sends the charge to n, and returns what is left, and the owner.
	charge := func(n *process.Node, token, key string) (left int, owner string) {
		secret, err := os.ReadFile(token)
		if err != nil {
			t.Fatal(err)
		}
		var status int
		var body string
		for range 10 { // while no owner answers
			status, body, err = request(t.Context(), http.MethodPost, "http://"+n.HTTP+"/v1/charge",
				`{"domain": "once", "descriptor": ["user=ann"], "cost": 3}`,
				"Authorization: Bearer "+strings.TrimSpace(string(secret)), "Idempotency-Key: "+key)
			if status != http.StatusServiceUnavailable {
				break
			}
		}
		var d struct {
			Remaining int
			Owner     string
		}
		if err != nil || status != http.StatusOK || json.Unmarshal([]byte(body), &d) != nil {
			t.Errorf("%s: %d %s %v", n.Name, status, body, err)
		}
		return d.Remaining, d.Owner
	}
	// again sends it to all nodes at the same time, and returns the owner.
	again := func(what, token, key string, want int) (owner string) {
		t.Helper()
		var all sync.WaitGroup
		owners := make([]string, len(nodes))
		for i, n := range nodes {
			all.Go(func() {
				var left int
				if left, owners[i] = charge(n, token, key); left != want {
					t.Errorf("%s, at %s: %d left, want %d", what, n.Name, left, want)
				}
			})
		}
		all.Wait()
		return owners[0]
	}
	without := func(name string) *process.Node {
		i := slices.IndexFunc(nodes, func(n *process.Node) bool { return n.Name == name })
		n := nodes[i]
		nodes = slices.Delete(nodes, i, i+1)
		return n
	}
	owner := again("at once", shop, "order17", 97)
	again("another key", shop, "order18", 94)
	again("another caller", web, "order17", 91)

	waitReplicated(t, nodes)
	without(owner).Stop(syscall.SIGTERM)
	process.WaitAgreed(t, nodes, 10*time.Second)
	owner = again("after a handoff", shop, "order17", 91)

	waitReplicated(t, nodes)
	without(owner).Kill()
	again("after a crash", shop, "order17", 91)
	again("after a crash, of the other caller", web, "order17", 91)
}
