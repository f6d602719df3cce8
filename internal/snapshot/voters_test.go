package snapshot

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

func TestVoters(t *testing.T) {
	path := t.TempDir()
	d, err := Open(path)
	do(t, err)
	defer d.Close()
	secret := [16]byte{7}
	if r, aside, err := d.Voters("a", secret); !r.Equal(message.Record{}) || aside != "" || err != nil {
		t.Fatalf("an empty directory has %+v, %s, %v", r, aside, err)
	}
	want := message.Record{
		Set:      message.Set{ID: "1-a", Version: 3, Members: []string{"a", "b"}},
		Founding: message.Set{ID: "2-b", Version: 1, Members: []string{"a", "b", "c"}}, Round: 4, Void: []string{"0-z"},
	}
	for range 2 {
		do(t, d.PutVoters("a", secret, want))
	}
	if r, _, err := d.Voters("a", secret); !r.Equal(want) || err != nil {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}

	// No byte may change without being noticed.
	file := filepath.Join(path, votersName)
	text, err := os.ReadFile(file)
	do(t, err)
	for i := range text {
		torn := bytes.Clone(text)
		torn[i] ^= 1
		do(t, os.WriteFile(file, torn, 0o600))
		if r, aside, err := d.Voters("a", secret); err == nil && aside == "" && !r.Equal(want) {
			t.Fatalf("with another byte %d it is %+v", i, r)
		}
		do(t, os.WriteFile(file, text[:i], 0o600))
		if _, _, err := d.Voters("a", secret); i < len(text)-2 && (err == nil || !strings.Contains(err.Error(), "remove it: the node then joins")) {
			t.Fatalf("cut after %d bytes: %v", i, err)
		}
	}
	do(t, os.WriteFile(file, text, 0o600))
	if r, aside, err := d.Voters("b", secret); !r.Equal(message.Record{}) || aside != filepath.Join(path, votersRejected) || err != nil {
		t.Errorf("another node's: %+v, %s, %v", r, aside, err)
	}
	if r, _, err := d.Voters("a", secret); !r.Equal(message.Record{}) || err != nil {
		t.Errorf("after it was set aside: %+v, %v", r, err)
	}
	// It cannot be written where something is in the way.
	do(t, os.Mkdir(filepath.Join(path, votersTemp), 0o700))
	if err := d.PutVoters("a", secret, want); err == nil || !strings.Contains(err.Error(), "write the voter set to "+file) {
		t.Errorf("got %v", err)
	}
}
