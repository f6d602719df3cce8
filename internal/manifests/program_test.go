package manifests

import (
	"maps"
	"testing"
)

func TestSettingsOf(t *testing.T) {
	got := settingsOf(`Run a node, not with --this.

Flags:
      --join addresses       other nodes (or --none of them)
  -h, --help                 help for serve
  -p, --peer-port port       port; 0 picks a free one (default 7462)
      --log-format string    text or json (default "text")
`)
	want := map[string]string{"SLUICE_JOIN": "", "SLUICE_PEER_PORT": "7462", "SLUICE_LOG_FORMAT": "text"}
	if !maps.Equal(got, want) {
		t.Errorf("settings %v, want %v", got, want)
	}
}
