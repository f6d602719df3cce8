package rulefiles_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
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
	for _, name := range []string{"b.yaml", "a.yml", "Z.yaml", "sub/deep/c.yaml", "sub/d_test.yaml", "elsewhere.d/e.yaml", "f.yaml/g.yaml"} {
		do(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		write(t, filepath.Join(dir, name), "x: 1")
	}
	for _, name := range []string{"a_test.yml", "b_test.yaml"} {
		write(t, filepath.Join(dir, name), "tests: []")
	}
	do(t, os.Symlink("../elsewhere.d", filepath.Join(dir, "sub", "linked")))
	files, _, err := rulefiles.Read(dir)
	if got := names(files); err != nil || got != "Z.yaml a.yml b.yaml e.yaml g.yaml c.yaml e.yaml" {
		t.Errorf("rules %s, %v", got, err)
	}
	if files[5].Name != filepath.Join(dir, "sub", "deep", "c.yaml") || string(files[5].Data) != "x: 1" {
		t.Errorf("file %+v", files[5])
	}
	tests, err := rulefiles.ReadTests(dir)
	if got := names(tests); err != nil || got != "a_test.yml b_test.yaml d_test.yaml" {
		t.Errorf("tests %s, %v", got, err)
	}
	// A file that is named is read whatever its name.
	write(t, filepath.Join(dir, "c.txt"), "x")
	write(t, filepath.Join(dir, ".d.yaml"), "x")
	for _, name := range []string{"c.txt", ".d.yaml", "b_test.yaml"} {
		if files, skipped, err := rulefiles.Read(filepath.Join(dir, name)); err != nil || names(files) != name || skipped != nil {
			t.Errorf("%s: %s, skipped %v, %v", name, names(files), skipped, err)
		}
	}
	for name, want := range map[string]string{"b.yaml": "b_test.yaml", "a.yml": "a_test.yml", "Z.yaml": ""} {
		if tests, err := rulefiles.ReadTests(filepath.Join(dir, name)); err != nil || names(tests) != want {
			t.Errorf("tests of %s: %s, %v", name, names(tests), err)
		}
	}
}

// TestSkipped: a file that may have been meant as rules is reported, and what others keep beside the rules is not.
func TestSkipped(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": limit(1), "a_test.yaml": "tests: []", "README.md": "# Rules", ".gitignore": "x", ".git/config": "x", "lost+found/a.yaml": "x",
		"..2026_01/a.yaml": limit(1), "sub/..2026_01/b.yaml": "x", "half_test.yaml": "[", // being written
		"load_test.yaml": limit(2), "b.yaml.bak": "x", "c": "x", ".d.yaml": "x", ".rules/e.yml": "x", "sub/f.json": "x",
	} {
		do(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		write(t, filepath.Join(dir, name), text)
	}
	do(t, os.Symlink("..", filepath.Join(dir, "sub", "loop")))
	do(t, os.Symlink("me@host.1", filepath.Join(dir, ".#a.yaml"))) // an editor's lock
	files, skipped, err := rulefiles.Read(dir)
	if err != nil || names(files) != "a.yaml" {
		t.Errorf("files %s, %v", names(files), err)
	}
	var got strings.Builder
	for _, s := range skipped {
		fmt.Fprintln(&got, strings.TrimPrefix(s.String(), dir+"/"))
	}
	if want := `.d.yaml: its name begins with a dot
.rules/e.yml: the directory's name begins with a dot
b.yaml.bak: its name ends neither in .yaml nor in .yml
c: its name ends neither in .yaml nor in .yml
load_test.yaml: a file called *_test.yaml holds test cases, and this one has no ` + "`tests`" + `; rename it if it holds rules
sub/f.json: its name ends neither in .yaml nor in .yml
sub/loop: the link leads back to a directory that it is in
`; got.String() != want {
		t.Errorf("skipped\n%swant\n%s", &got, want)
	}
	do(t, os.Remove(filepath.Join(dir, "a.yaml")))
	if _, _, err := rulefiles.Read(dir); !errors.Is(err, rulefiles.ErrNoFiles) || !strings.Contains(err.Error(), "load_test.yaml: a file called") {
		t.Errorf("without rules: %v", err)
	}
}

// TestManySkipped: of a directory that holds something else a hundred files are listed.
func TestManySkipped(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), limit(1))
	for i := range 200 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.log", i)), "")
	}
	_, skipped, err := rulefiles.Read(dir)
	if err != nil || len(skipped) != 101 || skipped[100].String() != dir+": more files here are not read" {
		t.Errorf("%d skipped, the last %v, error %v", len(skipped), skipped[len(skipped)-1], err)
	}
}

func TestReadFails(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := rulefiles.Read(dir); !errors.Is(err, rulefiles.ErrNoFiles) || !strings.Contains(err.Error(), dir) {
		t.Errorf("empty directory: %v", err)
	}
	// 10 MB are rejected by their size, a pipe before it is opened, a dangling link
	// by what it lacks; and all three are told.
	large := filepath.Join(dir, "large.yaml")
	write(t, large, "")
	do(t, os.Truncate(large, 10<<20))
	do(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	do(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	_, _, err := rulefiles.Load(dir, rules.Options{})
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

func TestTooMany(t *testing.T) {
	files, dirs := t.TempDir(), t.TempDir()
	for i := range rulefiles.MaxFiles + 1 {
		write(t, filepath.Join(files, fmt.Sprintf("%d.yaml", i)), "")
	}
	for i := range rulefiles.MaxDirs {
		do(t, os.Mkdir(filepath.Join(dirs, fmt.Sprint(i)), 0o700))
	}
	for dir, want := range map[string]string{
		files: "holds 1001 rule files, more than the 1000 allowed", dirs: "holds more than the 1000 directories allowed",
	} {
		if _, _, err := rulefiles.Read(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestExamplesLoad reads the example rules as a node does.
func TestExamplesLoad(t *testing.T) {
	set, skipped, err := rulefiles.Load("../../examples/rules", rules.Options{})
	if err != nil || len(skipped) > 0 {
		t.Fatalf("skipped %v, error %v", skipped, err)
	}
	if got := strings.Join(set.Domains(), " "); got != "api auth llm messaging payments search social" {
		t.Errorf("domains %s", got)
	}
}

// TestLinksOutOfTheDirectory: a link may lead to rules elsewhere, but no error quotes a file that a
// link leads to out of the directory, such as a file of passwords.
func TestLinksOutOfTheDirectory(t *testing.T) {
	const secret = "root:x9y:0:0:secret-7f3a:/root\n"
	root := t.TempDir()
	dir, passwords := filepath.Join(root, "rules"), filepath.Join(root, "passwords")
	do(t, os.MkdirAll(filepath.Join(dir, "mount", "..data"), 0o700))
	do(t, os.Mkdir(filepath.Join(root, "rules.d"), 0o700))
	write(t, passwords, secret)
	write(t, filepath.Join(root, "good.yaml"), limit(1))
	write(t, filepath.Join(root, "rules.d", "y.yaml"), secret)
	write(t, filepath.Join(dir, "mount", "..data", "mounted.yaml"), "domain: a\ndescriptorz: []\n")
	for link, target := range map[string]string{
		"good.yaml": "../good.yaml", "x.yaml": passwords, "x_test.yaml": passwords, "dir": "../rules.d",
		"mount/mounted.yaml": "..data/mounted.yaml",
	} {
		do(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	_, _, err := rulefiles.Load(dir, rules.Options{})
	var got []string
	for _, e := range rules.Errors(err) {
		got = append(got, strings.TrimPrefix(e.Error(), dir+"/"))
	}
	tests, testErr := rulefiles.ReadTests(dir)
	if testErr != nil || len(tests) != 1 {
		t.Fatalf("%v, %v", tests, testErr)
	}
	set, err := rules.Parse(nil, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ruletest.Run(set, tests); err != nil {
		got = append(got, strings.TrimPrefix(err.Error(), dir+"/"))
	}
	says := func(file, target string) string {
		return file + ": the link leads out of the directory, to " + target +
			", which is invalid; its text is not quoted here: to see the errors, check that file"
	}
	want := []string{
		says("dir/y.yaml", filepath.Join(root, "rules.d", "y.yaml")),
		`mount/mounted.yaml:2: unknown key "descriptorz"`, says("x.yaml", passwords), says("x_test.yaml", passwords),
	}
	for i, w := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], w) {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if text := strings.Join(got, "\n"); strings.Contains(text, "secret-7f3a") || strings.Contains(text, "x9y") {
		t.Errorf("an error quotes the file: %s", text)
	}
}
