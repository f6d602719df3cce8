package change

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// secretsLine is a secret of a seed.
func secretsLine(seed byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{seed}, 32))
}

// A secret, and the keyring beside it, are exchanged in three steps while nodes run and checks flow, then nodes restart with what is
// new alone: nothing is admitted above a limit, nothing fails, nobody loses sight of anybody.
func TestChangeSecret(t *testing.T) {
	for _, keyring := range []bool{false, true} {
		t.Run(map[bool]string{false: "secret", true: "secret and keyring"}[keyring], func(t *testing.T) {
			v := process.NewVault(t)
			secrets := func(seeds ...byte) {
				text := "counters " + secretsLine(1) + "\n"
				for _, s := range seeds {
					text += secretsLine(s) + "\n"
				}
				v.Write("secret", text)
				v.Keys(seeds...)
			}
			v.Write("secret", secretsLine(1)) // as a cluster begins
			v.Keys(1)
			args, files := []string{"--secret-file", filepath.Join(v.Dir, "secret")}, 1
			if keyring {
				args, files = append(args, "--gossip-keyring", filepath.Join(v.Dir, "keyring")), 2
			}
			f := newFleet(t, 3, "", args...)
			inForce := func(n *process.Node) int { return strings.Count(n.Log.String(), ": new contents are in force") }
			found := f.watch(func() {
				for i, step := range [][]byte{{1, 2}, {2, 1}, {2}} {
					secrets(step...)
					for _, n := range f.nodes() {
						process.Eventually(t, 20*time.Second, n.Name+" has put them into force", func() error {
							if got, want := inForce(n), files*(i+1); got < want {
								return fmt.Errorf("%d of %d files", got, want)
							}
							return nil
						})
					}
					pass(3 * time.Second)
				}
				for _, n := range f.nodes() {
					if lines := n.Log.String(); strings.Contains(lines, "member is gone") || strings.Contains(lines, "level=ERROR") {
						t.Errorf("%s has lost sight of a member, or found a fault", n.Name)
					}
				}
				for _, n := range f.nodes() {
					f.restart(n)
				}
			})
			f.judge(found, time.Second, 0)
			// Who has the old secret alone is told so.
			v.Write("old", secretsLine(1))
			old := process.Launch(t, process.Config{Name: "old", Join: []string{f.nodes()[0].Gossip}, Args: []string{"--secret-file", filepath.Join(v.Dir, "old")}})
			process.Eventually(t, 20*time.Second, "the old secret is rejected", func() error {
				if status, body, err := old.Get("/readyz"); err != nil || !strings.Contains(body, "secret or keyring differs") {
					return fmt.Errorf("%d %s, %v", status, body, err)
				}
				return nil
			})
		})
	}
}
