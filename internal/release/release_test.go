package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var committed = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// TestSameBytes builds a release twice, the second time of a copy of the source in another folder, with other clocks and
// other settings of the go command, and wants the same files.
func TestSameBytes(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	here := Target{runtime.GOOS, runtime.GOARCH}
	if !slices.Contains(targets, here) {
		t.Skipf("%s is no target of a release", here)
	}
	build := func(root string) string {
		t.Helper()
		out := filepath.Join(t.TempDir(), "out")
		r := Release{Root: root, Out: out, Version: "v0.0.0-test", Time: committed, Targets: []Target{here}}
		if err := r.Build(); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := build(root)

	other := filepath.Join(t.TempDir(), "elsewhere")
	for _, dir := range sourceDirs(t, root) {
		if err := os.CopyFS(filepath.Join(other, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum", "LICENSE", "README.md"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "-ldflags=-X=main.version=wrong")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("TZ", "Asia/Tokyo")
	second := build(other)

	a, b := read(t, filepath.Join(first, sumsFile)), read(t, filepath.Join(second, sumsFile))
	if !bytes.Equal(a, b) {
		t.Errorf("two builds differ:\n%s\n%s", a, b)
	}
	want := 1
	if here.OS == "linux" {
		want = 2 // the image, too
	}
	if lines := bytes.Count(a, []byte("\n")); lines != want {
		t.Errorf("%d checksums, want %d: %s", lines, want, a)
	}

	archive := filepath.Join(first, here.name("v0.0.0-test")+".tar.gz")
	files := untar(t, read(t, archive))
	program := filepath.Join(t.TempDir(), "sluice")
	if err := os.WriteFile(program, files[here.name("v0.0.0-test")+"/sluice"], 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "version").CombinedOutput()
	if err != nil || string(out) != "sluice v0.0.0-test\n" {
		t.Errorf("the binary says %q, %v", out, err)
	}
	if leak := []byte(root); bytes.Contains(files[here.name("v0.0.0-test")+"/sluice"], leak) {
		t.Errorf("the binary holds the path %s", leak)
	}
}

// sourceDirs are the top folders of the module that have its packages; other modules are not part of a release.
func sourceDirs(t *testing.T, root string) (dirs []string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{".git", "bin", "bench", "docs", "deploy", "examples"}, e.Name()) {
			dirs = append(dirs, e.Name())
		}
	}
	return dirs
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// untar reads an archive, and wants nothing of this machine in it.
func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("gzip tells a time or a name: %v", z.Header)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(committed) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s tells of who built it: %+v", h.Name, h)
		}
		want := int64(0o644)
		if strings.HasSuffix(h.Name, "/sluice") {
			want = 0o755
		}
		if h.Mode != want {
			t.Errorf("%s has mode %o, want %o", h.Name, h.Mode, want)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestZip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x")
	var made [2]bytes.Buffer
	for i := range made {
		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
		zone := time.FixedZone("somewhere", i*3600)
		if err := archive(&made[i], "zip", "d", []entry{{"sluice.exe", file, true}, {"LICENSE", file, false}}, committed.In(zone)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0].Bytes(), made[1].Bytes()) {
		t.Error("two archives of the same files differ")
	}
	z, err := zip.NewReader(bytes.NewReader(made[0].Bytes()), int64(made[0].Len()))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != 2 || z.File[0].Name != "d/sluice.exe" || z.File[0].Mode() != 0o755 || !z.File[1].Modified.Equal(committed) {
		t.Errorf("the archive has %+v", z.File)
	}
}

func TestWrongReleases(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "old.tar.gz"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"-time", []string{"-out", empty, "-version", "v1"}},
		{"-time", []string{"-out", empty, "-version", "v1", "-time", "0"}},
		{"-version", []string{"-out", empty, "-time", "1"}},
		{"-version", []string{"-out", empty, "-time", "1", "-version", "v1 -X main.x=y"}},
		{"-version", []string{"-out", empty, "-time", "1", "-version", "../v1"}},
		{"-out", []string{"-time", "1", "-version", "v1"}},
		{"-out", []string{"-out", full, "-time", "1", "-version", "v1"}},
		{`-targets: "plan9/386"`, []string{"-out", empty, "-time", "1", "-version", "v1", "-targets", "linux/amd64,plan9/386"}},
	} {
		if err := run(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one about %s", c.args, err, c.want)
		}
	}
}

// Materials go beside the archives, and into the checksums.
func TestSums(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is the file of the first
		if err := sums(dir); err != nil {
			t.Fatal(err)
		}
	}
	const want = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n" +
		"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b\n"
	if got := string(read(t, filepath.Join(dir, sumsFile))); got != want {
		t.Errorf("checksums\n%swant\n%s", got, want)
	}
}

func TestWithoutToolHashes(t *testing.T) {
	got, err := withoutToolHashes([]byte(`{"version": 1, "metadata": {"tools": [{"name": "x", "hashes": [{"alg": "MD5"}]}]},
		"components": [{"name": "y", "hashes": [{"alg": "SHA-256"}]}]}`))
	if err != nil || bytes.Contains(got, []byte("MD5")) || !bytes.Contains(got, []byte("SHA-256")) || !bytes.Contains(got, []byte(`"version": 1`)) {
		t.Errorf("%s, %v", got, err)
	}
	for _, wrong := range []string{`{"metadata": {}}`, `[]`, `{`} {
		if _, err := withoutToolHashes([]byte(wrong)); err == nil {
			t.Errorf("%s is taken for a bill of materials", wrong)
		}
	}
}
