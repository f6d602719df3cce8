package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSetAside keeps the newest three, in the order in which they were set aside within a second,
// and leaves the directory free for the next snapshot.
func TestSetAside(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	other := fileName + ".rejected-by-hand"
	do(t, os.WriteFile(filepath.Join(path, other), nil, 0o600))
	for _, c := range []struct {
		second int64
		want   []string // after counters.snapshot.rejected-
	}{
		{100, []string{"100"}},
		{100, []string{"100", "100-1"}},
		{99, []string{"100", "100-1", "99"}},
		{100, []string{"100", "100-1", "100-2"}},
		{100, []string{"100-1", "100-2", "100-3"}},
		{1_000, []string{"100-2", "100-3", "1000"}},
		// A clock that was set back: the newest by its name is not the latest, but that one stays.
		{7, []string{"100-3", "1000", "7"}},
		{-5, []string{"0", "100-3", "1000"}},
		{-5, []string{"0-1", "100-3", "1000"}},
	} {
		content := time.Unix(c.second, int64(len(names(t, path)))).String()
		do(t, os.WriteFile(filepath.Join(path, fileName), []byte(content), 0o600))
		name, err := d.SetAside(time.Unix(c.second, 999))
		do(t, err)
		if data, err := os.ReadFile(name); err != nil || string(data) != content {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		var got []string
		for _, n := range names(t, path) {
			if rest, ok := strings.CutPrefix(n, asidePrefix); ok && n != other {
				got = append(got, rest)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("second %d: %v, want %v", c.second, got, c.want)
		}
	}
	if _, err := d.SetAside(noon); err == nil || !strings.Contains(err.Error(), filepath.Join(path, fileName)) {
		t.Errorf("there is nothing to set aside: %v", err)
	}
	if !slices.Contains(names(t, path), other) {
		t.Error("a file that is not ours was removed")
	}
	if r, err := d.Read(Want{}); r != nil || err != nil {
		t.Errorf("read %v, %v", r, err)
	}
}
