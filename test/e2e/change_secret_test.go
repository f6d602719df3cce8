//go:build change

package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
			v := newVault(t)
			secrets := func(seeds ...byte) {
				text := "counters " + secretsLine(1) + "\n"
				for _, s := range seeds {
					text += secretsLine(s) + "\n"
				}
				v.write("secret", text)
				v.keys(seeds...)
			}
			v.write("secret", secretsLine(1)) // as a cluster begins
			v.keys(1)
			args, files := []string{"--secret-file", filepath.Join(v.dir, "secret")}, 1
			if keyring {
				args, files = append(args, "--gossip-keyring", filepath.Join(v.dir, "keyring")), 2
			}
			f := newFleet(t, 3, "", args...)
			inForce := func(n *node) int { return strings.Count(n.log.String(), ": new contents are in force") }
			found := f.watch(func() {
				for i, step := range [][]byte{{1, 2}, {2, 1}, {2}} {
					secrets(step...)
					for _, n := range f.nodes() {
						eventually(t, 20*time.Second, n.name+" has put them into force", func() error {
							if got, want := inForce(n), files*(i+1); got < want {
								return fmt.Errorf("%d of %d files", got, want)
							}
							return nil
						})
					}
					pass(3 * time.Second)
				}
				for _, n := range f.nodes() {
					if lines := n.log.String(); strings.Contains(lines, "member is gone") || strings.Contains(lines, "level=ERROR") {
						t.Errorf("%s has lost sight of a member, or found a fault", n.name)
					}
				}
				for _, n := range f.nodes() {
					f.restart(n)
				}
			})
			f.judge(found, time.Second, 0)
			// Who has the old secret alone is told so.
			v.write("old", secretsLine(1))
			old := launch(t, nodeConfig{name: "old", join: []string{f.nodes()[0].gossip}, args: []string{"--secret-file", filepath.Join(v.dir, "old")}})
			eventually(t, 20*time.Second, "the old secret is rejected", func() error {
				if status, body, err := old.get("/readyz"); err != nil || !strings.Contains(body, "secret or keyring differs") {
					return fmt.Errorf("%d %s, %v", status, body, err)
				}
				return nil
			})
		})
	}
}

// TLS between nodes is turned on and off again by rolling restarts, under load.
func TestChangePeerTLS(t *testing.T) {
	v := newVault(t)
	v.write("ca", string(v.before.PEM))
	v.write("secret", secretsLine(1))
	in := func(name string) string { return filepath.Join(v.dir, name) }
	f := newFleet(t, 3, "", "--secret-file", in("secret"))
	plain := f.args
	var names []string
	for _, n := range f.nodes() {
		names = append(names, n.name)
	}
	v.equip(v.before, 24*time.Hour, names...)
	certified := append(append([]string(nil), plain...), "--peer-tls-cert", in("{name}.crt"), "--peer-tls-key", in("{name}.key"), "--peer-tls-ca", in("ca"))
	found := f.watch(func() {
		for _, args := range [][]string{append(certified, "--peer-tls=accept"), certified, append(certified, "--peer-tls=accept"), plain} {
			f.args = args
			for _, n := range f.nodes() {
				f.restart(n)
				pass(3 * time.Second) // a node that has just started has no vote
			}
		}
	})
	f.judge(found, time.Second, 0)
}
