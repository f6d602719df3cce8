package node

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
)

// TestReloadAllFiles: what a node follows is read by itself within seconds, at once when it is told to, and an error is logged with the
// file that it is in.
func TestReloadAllFiles(t *testing.T) {
	t.Parallel()
	s, p := testConfig(t), newPapers(t)
	p.withAPITLS(t, &s, "request")
	p.withPeerTLS(t, &s)
	_, digest := testToken(t, 1)
	s.Secret, s.SecretFile = nil, writeFile(t, secretOne)
	s.GossipKeyring = writeFile(t, base64.StdEncoding.EncodeToString(make([]byte, 32)))
	s.Callers = writeFile(t, "callers:\n  - name: shop\n    tokens: ["+digest+"]\n    grants: [{domains: ['*'], verbs: [charge]}]\n")
	s.Region, s.RegionsFile = "eu", writeFile(t, "eu=127.0.0.1\nus=127.0.0.1:1\n")
	n := startNode(t, s)
	paths := []string{filepath.Join(s.Rules, "rules.yaml"), s.SecretFile, s.GossipKeyring, s.Callers, s.RegionsFile, s.TLS.Cert, s.TLS.PeerCert}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o600)
		}
		do(t, err)
	}
	await(t, "read", func() bool {
		all := n.rules.Status().Generation == 2
		for _, f := range n.secretStatuses() {
			all = all && f.status.Generation == 2
		}
		return all
	})
	if got := len(n.secretStatuses()); got != len(paths)-1 {
		t.Errorf("%d sets of files are followed, want %d", got, len(paths)-1)
	}

	for _, path := range []string{paths[0], s.Callers} {
		do(t, os.WriteFile(path, []byte("["), 0o600))
	}
	n.Reload(t.Context())
	for _, want := range []string{"reloaded, but", `invalid="[callers rules]"`, `unchanged="[secret tls peer_tls gossip_keyring regions]"`, "--callers"} {
		if n.warned.count(want) == 0 {
			t.Errorf("no %s in:\n%s", want, n.warned.text.String())
		}
	}
}
