package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestExampleLogins: where two of three nodes are killed, the survivor admits no login by the rules of the examples.
func TestExampleLogins(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, filepath.Join(repository, "examples/rules"))
	const users = 20
	// logins asks for a login of each user, and returns how many are admitted, by source.
	logins := func() (asked, admitted map[sluicev1.Source]int) {
		asked, admitted = map[sluicev1.Source]int{}, map[sluicev1.Source]int{}
		for i := range users {
			resp, err := nodes[0].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
				Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "auth_type", Value: "login"}, {Key: "user", Value: fmt.Sprint("u", i)}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			d := resp.Decisions[0]
			if asked[d.Source]++; d.Allowed {
				admitted[d.Source]++
			}
		}
		return asked, admitted
	}
	if asked, admitted := logins(); admitted[sluicev1.Source_SOURCE_OWNED]+admitted[sluicev1.Source_SOURCE_FORWARDED] != users {
		t.Fatalf("admitted without a fault: %v of %v", admitted, asked)
	}
	nodes[1].Kill()
	nodes[2].Kill()
	process.Eventually(t, 20*time.Second, "a minority", func() error {
		asked, admitted := logins()
		for source, n := range admitted {
			if source != sluicev1.Source_SOURCE_OWNED && source != sluicev1.Source_SOURCE_FORWARDED {
				t.Errorf("%d of %d logins are admitted without an owner: %v", n, asked[source], source)
			}
		}
		if asked[sluicev1.Source_SOURCE_CLOSED] == users {
			return nil
		}
		return fmt.Errorf("%v", asked)
	})
}
