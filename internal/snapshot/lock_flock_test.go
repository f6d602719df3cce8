//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package snapshot

import (
	"errors"
	"strings"
	"testing"
)

// TestLock: a directory has one user, and whoever is rejected has touched nothing.
func TestLock(t *testing.T) {
	path := t.TempDir()
	d, c := openDir(t, path), example()
	w, err := d.Create(c.Header)
	do(t, err)
	do(t, c.write(w))
	if _, err := Open(path); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("opened twice: %v", err)
	}
	do(t, w.Commit())
	do(t, d.Close())
	load(t, openDir(t, path), c)
}
