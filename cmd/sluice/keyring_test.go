package main

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	keyOne = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=\n"
	keyTwo = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=\n"
)

func TestWrongKeyring(t *testing.T) {
	for want, text := range map[string]string{
		"no such file":               "",
		"line 2 is not base64":       keyOne + "secret?\n",
		"line 1 is a key of 3 bytes": "YWJj\n",
	} {
		s := testSettings(t)
		s.gossipKeyring = filepath.Join(t.TempDir(), "keyring")
		if text != "" {
			s.gossipKeyring = writeFile(t, text)
		}
		_, err := openNode(t.Context(), s, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--gossip-keyring: ") {
			t.Errorf("%v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret?") {
			t.Errorf("the error shows the file: %v", err)
		}
	}
}

// A keyring that changes is in force within seconds; one with a fault changes nothing and shows.
func TestKeyringIsFollowed(t *testing.T) {
	s := testSettings(t)
	s.gossipKeyring = writeFile(t, keyOne)
	n := startNode(t, s)
	shows := func(line string) func() bool {
		return func() bool {
			_, body := n.get(t, "/metrics")
			return strings.Contains(body, "\n"+line+"\n")
		}
	}
	await(t, "in force", shows(`sluice_gossip_keys{primary="8a83665f"} 1`))
	if err := os.WriteFile(s.gossipKeyring, []byte(keyTwo+keyOne), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "exchanged", func() bool { return n.gossip.Keyring().Len() == 2 })
	if err := os.WriteFile(s.gossipKeyring, []byte("secret?"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "stale", shows(`sluice_secrets_stale{files="gossip_keyring"} 1`))
	if n.gossip.Keyring().Len() != 2 {
		t.Error("a faulty file has changed the keys")
	}
}

// Two nodes with a key find each other, and one with another key is rejected: it is alive, says why, and is not ready.
func TestKeyringOfACluster(t *testing.T) {
	var nodes [2]*running
	settingsOf := func(i int, key string) settings {
		s := testSettings(t)
		s.name = "n" + string(rune('1'+i))
		s.gossipKeyring = writeFile(t, key)
		s.joinTimeout = 500e6
		if i > 0 {
			s.join = []string{nodes[0].gossip.Addr()}
		}
		return s
	}
	for i := range nodes {
		nodes[i] = startNode(t, settingsOf(i, keyOne))
	}
	await(t, "joined", func() bool { return len(nodes[0].gossip.View().Members) == 2 })
	s := settingsOf(2, keyTwo)
	s.bootstrapExpect = 1 // which it may not do beside a cluster that rejects it
	n := startNodeUnready(t, s)
	await(t, "rejected", func() bool {
		_, reasons := n.ready()
		return strings.Contains(strings.Join(reasons, "; "), "rejected by "+nodes[0].gossip.Addr())
	})
	time.Sleep(2 * s.joinTimeout)
	if v := n.gossip.View(); len(v.Members) != 1 {
		t.Errorf("the node with another key sees %v", v.Members)
	}
	if code, _ := n.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	if code, body := n.get(t, "/readyz"); code == http.StatusOK || !strings.Contains(body, "secret or keyring differs") {
		t.Errorf("/readyz answers %d: %s", code, body)
	}
}
