package rulefiles_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-project/sluice/internal/rulefiles"
	"github.com/sluice-project/sluice/rules"
)

func names(files []rules.File) string {
	var out []string
	for _, f := range files {
		out = append(out, filepath.Base(f.Name))
	}
	return strings.Join(out, " ")
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", "c.txt", ".d.yaml", "a_test.yml", "b_test.yaml", "Z.yaml", "e.yaml.bak", "yaml"} {
		write(t, filepath.Join(dir, name), "x")
	}
	do(t, os.Mkdir(filepath.Join(dir, "f.yaml"), 0o700))
	files, err := rulefiles.Read(dir)
	if got := names(files); err != nil || got != "Z.yaml a.yml b.yaml" {
		t.Errorf("rules %s, %v", got, err)
	}
	if files[0].Name != filepath.Join(dir, "Z.yaml") || string(files[0].Data) != "x" {
		t.Errorf("file %+v", files[0])
	}
	tests, err := rulefiles.ReadTests(dir)
	if got := names(tests); err != nil || got != "a_test.yml b_test.yaml" {
		t.Errorf("tests %s, %v", got, err)
	}
	// A file that is named is read whatever its name.
	for _, name := range []string{"c.txt", ".d.yaml", "b_test.yaml"} {
		if files, err := rulefiles.Read(filepath.Join(dir, name)); err != nil || names(files) != name {
			t.Errorf("%s: %s, %v", name, names(files), err)
		}
	}
	for name, want := range map[string]string{"b.yaml": "b_test.yaml", "a.yml": "a_test.yml", "Z.yaml": ""} {
		if tests, err := rulefiles.ReadTests(filepath.Join(dir, name)); err != nil || names(tests) != want {
			t.Errorf("tests of %s: %s, %v", name, names(tests), err)
		}
	}
}

func TestReadFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := rulefiles.Read(dir); !errors.Is(err, rulefiles.ErrNoFiles) || !strings.Contains(err.Error(), dir) {
		t.Errorf("empty directory: %v", err)
	}
	// 10 MB are refused by their size, a pipe before it is opened, a dangling link
	// by what it lacks; and all three are told.
	large := filepath.Join(dir, "large.yaml")
	write(t, large, "")
	do(t, os.Truncate(large, 10<<20))
	do(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	do(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	_, err := rulefiles.Load(dir, rules.Options{})
	var got []string
	for _, e := range rules.Errors(err) {
		got = append(got, filepath.Base(e.File)+": "+e.Reason)
	}
	want := "dangling.yaml: cannot be read: no such file or directory\n" +
		"large.yaml: the file has 10485760 bytes, more than the 1048576 allowed; split it\n" +
		"pipe.yaml: is not a regular file"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

func TestTooManyFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range rulefiles.MaxFiles + 1 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), "")
	}
	if _, err := rulefiles.Read(dir); err == nil || !strings.Contains(err.Error(), "holds 1001 rule files, more than the 1000 allowed") {
		t.Errorf("got %v", err)
	}
}

// TestExamplesLoad reads the example rules as a node does.
func TestExamplesLoad(t *testing.T) {
	set, err := rulefiles.Load("../../examples/rules", rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(set.Domains(), " "); got != "api auth messaging payments search social" {
		t.Errorf("domains %s", got)
	}
}
