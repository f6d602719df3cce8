package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func openDir(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	do(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func save(t testing.TB, d *Dir, c content) Totals {
	t.Helper()
	w, err := d.Create(c.Header)
	do(t, err)
	defer w.Abort()
	do(t, c.write(w))
	do(t, w.Commit())
	return w.Totals()
}

// load reads the snapshot of d and fails the test unless it is c.
func load(t testing.TB, d *Dir, c content) {
	t.Helper()
	r, err := d.Read(c.want())
	do(t, err)
	if r == nil {
		t.Fatal("there is no snapshot")
	}
	defer r.Close()
	got, err := read(r)
	do(t, err)
	same(t, got, c)
}

func names(t testing.TB, path string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	do(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestDir tells the life of a directory: made, written, written over, given up, found again.
func TestDir(t *testing.T) {
	path := filepath.Join(t.TempDir(), "var", "sluice")
	first, second := example(), example()
	second.Header.Begun = noon.Add(time.Hour)
	second.Parts = second.Parts[:1]

	d := openDir(t, path)
	if r, err := d.Read(first.want()); r != nil || err != nil {
		t.Fatalf("nothing was written, and Read says %v, %v", r, err)
	}
	totals := save(t, d, first)
	info, err := os.Stat(filepath.Join(path, fileName))
	do(t, err)
	if want := (Totals{Sections: 3, Images: 3, Counters: 3, Complete: 2, Bytes: info.Size()}); totals != want {
		t.Errorf("written %+v, want %+v", totals, want)
	}
	load(t, d, first)

	// What was read stays readable while the next one takes its place.
	r, err := d.Read(first.want())
	do(t, err)
	defer r.Close()
	save(t, d, second)
	got, err := read(r)
	do(t, err)
	same(t, got, first)
	if r.Totals() != totals {
		t.Errorf("read %+v, want %+v", r.Totals(), totals)
	}
	load(t, d, second)

	w, err := d.Create(first.Header)
	do(t, err)
	do(t, first.write(w))
	if _, err := d.Create(first.Header); !errors.Is(err, ErrWriting) {
		t.Errorf("a second writer: %v", err)
	}
	w.Abort()
	load(t, d, second)
	do(t, d.Close())
	if got := names(t, path); !slices.Equal(got, []string{fileName, lockName}) {
		t.Errorf("left: %v", got)
	}

	load(t, openDir(t, path), second)
}

func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes there")
	}
	path := filepath.Join(t.TempDir(), "a", "b")
	save(t, openDir(t, path), example())
	for name, want := range map[string]fs.FileMode{"../.": 0o700, ".": 0o700, fileName: 0o600, lockName: 0o600} {
		info, err := os.Stat(filepath.Join(path, name))
		do(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %v, want %v", name, got, want)
		}
	}
}

// TestLeftovers: what a crash left is removed at the next start, what a failed Abort left by
// the next writer. Nothing else is touched.
func TestLeftovers(t *testing.T) {
	path := t.TempDir()
	write := func(name string) { do(t, os.WriteFile(filepath.Join(path, name), []byte("half"), 0o600)) }
	write(tempName)
	write("notes.txt")
	d := openDir(t, path)
	if got := names(t, path); !slices.Equal(got, []string{lockName, "notes.txt"}) {
		t.Errorf("after Open: %v", got)
	}
	write(tempName)
	save(t, d, example())
	load(t, d, example())
	if got := names(t, path); !slices.Equal(got, []string{fileName, lockName, "notes.txt"}) {
		t.Errorf("after Commit: %v", got)
	}
}

// TestOpenCannot: errors name the path and what cannot be done.
func TestOpenCannot(t *testing.T) {
	base := t.TempDir()
	do(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	do(t, os.MkdirAll(filepath.Join(base, "taken", lockName), 0o700))
	do(t, os.Mkdir(filepath.Join(base, "sealed"), 0o500))
	for _, c := range []struct {
		path, want string
		notRoot    bool
	}{
		{"file", "make directory", false},
		{"file/below", "make directory", false},
		{"taken", "must be writable", false},
		{"sealed", "must be writable", true},
		{"sealed/below", "make directory", true},
	} {
		if c.notRoot && os.Geteuid() <= 0 {
			continue // root may write everywhere
		}
		path := filepath.Join(base, c.path)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}

func TestNotAFile(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	c := example()
	do(t, os.Mkdir(filepath.Join(path, fileName), 0o700))
	_, err := d.Read(c.want())
	rejected(t, err, Damaged)
	_, err = d.SetAside(noon)
	do(t, err)
	save(t, d, c)
	load(t, d, c)
}

// TestClosed: after Close nothing is published any more, since another process may be at it.
func TestClosed(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	w, err := d.Create(example().Header)
	do(t, err)
	do(t, d.Close())
	if w.Commit() == nil {
		t.Error("committed to a closed directory")
	}
	if slices.Contains(names(t, path), fileName) {
		t.Error("published in a closed directory")
	}
}
