package rulefiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// Bounds of a directory of rules, the directories below it included.
const (
	// MaxFiles is the most rule files.
	MaxFiles = 1000
	// MaxDirs is the most directories.
	MaxDirs = 1000
	// maxSkipped is the most skipped files that are listed.
	maxSkipped = 100
)

// Skipped is a file in a directory of rules that is not read.
type Skipped struct{ File, Reason string }

func (s Skipped) String() string { return s.File + ": " + s.Reason }

// Reasons of a Skipped file.
const (
	skippedSuffix = "its name ends neither in .yaml nor in .yml"
	skippedHidden = "its name begins with a dot"
	skippedDir    = "the directory's name begins with a dot"
	skippedLoop   = "the link leads back to a directory that it is in"
	skippedTests  = "a file called *_test.yaml holds test cases, and this one has no `tests`; rename it if it holds rules"
	skippedMore   = "more files here are not read"
)

// visitor is called before a look at a name in a directory, or with the name "" at all names. The directory's path has no links.
type visitor func(dir, name string)

// source is a file: its path as given by the user, and without links. outside: a link leads to it
// out of the directory of the rules.
type source struct {
	shown, real string
	outside     bool
}

// tree has the files below a path.
type tree struct {
	visit        visitor
	root         string // the directory of the rules, without links
	rules, tests []source
	skipped      []Skipped
	dirs         int
	errs         []error
}

// find returns the files at path: the file itself whatever its name, or those of the directory and below it.
func find(path string, visit visitor) (*tree, error) {
	real, err := follow(path, visit)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, err
	}
	t := &tree{visit: visit, root: real}
	if !info.IsDir() {
		t.rules = []source{{shown: path, real: real}}
		return t, nil
	}
	t.walk(source{shown: path, real: real}, nil)
	switch {
	case t.dirs > MaxDirs:
		return nil, fmt.Errorf("%s: holds more than the %d directories allowed; name the directory that holds the rules", path, MaxDirs)
	case len(t.rules) > MaxFiles:
		return nil, fmt.Errorf("%s: holds %d rule files, more than the %d allowed", path, len(t.rules), MaxFiles)
	}
	for _, list := range [][]source{t.rules, t.tests} {
		slices.SortFunc(list, func(a, b source) int { return cmp.Compare(a.shown, b.shown) })
	}
	return t, errors.Join(t.errs...)
}

// walk adds the files of dir and of the directories below it. above are the directories that dir is in.
func (t *tree) walk(dir source, above []string) {
	if t.dirs++; t.dirs > MaxDirs {
		return
	}
	t.visit(dir.real, "")
	above = append(slices.Clip(above), dir.real)
	real := dir.real
	// In a mounted ConfigMap the files are links through ..data, which may be swapped for the next version during reading. The
	// version is resolved once, so that all files are of the same one.
	if version, err := filepath.EvalSymlinks(filepath.Join(real, "..data")); err == nil {
		real = version
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		t.errs = append(t.errs, unreadable(dir, err))
		return
	}
	for _, e := range entries {
		t.add(e, source{shown: filepath.Join(dir.shown, e.Name()), real: filepath.Join(real, e.Name())}, above)
	}
}

// add adds one entry of a directory.
func (t *tree) add(e fs.DirEntry, at source, above []string) {
	name, mode, linked := e.Name(), e.Type(), e.Type()&fs.ModeSymlink != 0
	hidden := strings.HasPrefix(name, ".")
	if linked && !hidden {
		// Reading reports a link that leads nowhere.
		if real, err := follow(at.real, t.visit); err == nil {
			at.real = real
			if info, err := os.Stat(real); err == nil {
				mode = info.Mode()
			}
		}
	}
	at.outside = !strings.HasPrefix(at.real, strings.TrimSuffix(t.root, "/")+"/")
	switch {
	case mode.IsDir() && hidden:
		t.hiddenDir(at)
	case mode.IsDir() && linked && slices.Contains(above, at.real):
		t.skip(at.shown, skippedLoop)
	case mode.IsDir():
		if name != "lost+found" { // of a file system's root; only root may read it
			t.walk(at, above)
		}
	case hidden:
		if isYAML(name) && mode.IsRegular() {
			t.skip(at.shown, skippedHidden)
		}
	case !isYAML(name):
		if mode.IsRegular() && filepath.Ext(name) != ".md" {
			t.skip(at.shown, skippedSuffix)
		}
	case strings.HasSuffix(strings.TrimSuffix(name, filepath.Ext(name)), "_test"):
		t.tests = append(t.tests, at)
		if data, err := readFile(at); err == nil && lacksTests(data) {
			t.skip(at.shown, skippedTests)
		}
	default:
		t.rules = append(t.rules, at)
	}
}

// hiddenDir skips the YAML files of a hidden directory. Kubernetes keeps the versions of linked files in names with two dots.
func (t *tree) hiddenDir(dir source) {
	if strings.HasPrefix(filepath.Base(dir.real), "..") {
		return
	}
	entries, _ := os.ReadDir(dir.real)
	for _, e := range entries {
		if isYAML(e.Name()) && e.Type().IsRegular() {
			t.skip(filepath.Join(dir.shown, e.Name()), skippedDir)
		}
	}
}

func (t *tree) skip(file, reason string) {
	switch {
	case len(t.skipped) < maxSkipped:
		t.skipped = append(t.skipped, Skipped{file, reason})
	case len(t.skipped) == maxSkipped:
		t.skipped = append(t.skipped, Skipped{filepath.Dir(file), skippedMore})
	}
}

func isYAML(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml"
}

// lacksTests reports whether a file is a mapping without the key tests, which every file of test cases has.
func lacksTests(data []byte) bool {
	root, r := yamldoc.Open(data)
	return root != nil && !slices.ContainsFunc(r.Fields(root, ""), func(f yamldoc.Field) bool { return f.Name == "tests" })
}

// maxLinks is the most links that one path may lead through, as in Linux.
const maxLinks = 40

// follow returns path without links, and calls visit with each name on the way before it looks at it: a change of one of these
// may lead path elsewhere.
func follow(path string, visit visitor) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	root := filepath.VolumeName(abs) + string(filepath.Separator)
	at, rest := root, strings.TrimPrefix(abs, root)
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, string(filepath.Separator))
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		visit(at, name)
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: leads through more than %d links", path, maxLinks)
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = target + string(filepath.Separator) + rest
	}
	return at, nil
}
