package rulefiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-project/sluice/rules"
)

// ErrNoFiles is returned for a directory without rule files.
var ErrNoFiles = errors.New("no rule files (*.yaml or *.yml, not hidden, not *_test.yaml)")

// MaxFiles is the most rule files that a directory may hold.
const MaxFiles = 1000

// Load reads the rules at path, a file or a directory. A fault in a file is a
// *rules.Error; all of them are joined.
func Load(path string, o rules.Options) (*rules.Set, error) {
	files, err := Read(path)
	if err != nil {
		return nil, err
	}
	return rules.Parse(files, o)
}

// Read returns the rule files at path: the file itself, or those of the
// directory in the order of their names. Directories below it are not read.
func Read(path string) ([]rules.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readAll([]source{{shown: path, real: path}})
	}
	sources, err := list(path, isRules)
	if err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrNoFiles)
	}
	return readAll(sources)
}

// ReadTests returns the files of test cases that belong to the rules at path:
// those of the directory, or the one named after the file. There may be none.
func ReadTests(path string) ([]rules.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		sources, err := list(path, isTests)
		if err != nil {
			return nil, err
		}
		return readAll(sources)
	}
	ext := filepath.Ext(path)
	tests := strings.TrimSuffix(path, ext) + "_test" + ext
	if _, err := os.Stat(tests); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return readAll([]source{{shown: tests, real: tests}})
}

func isYAML(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".")
}

func isTests(name string) bool {
	return isYAML(name) && strings.HasSuffix(strings.TrimSuffix(name, filepath.Ext(name)), "_test")
}

func isRules(name string) bool { return isYAML(name) && !isTests(name) }

// source is a file: what to call it, and where it is.
type source struct{ shown, real string }

// list returns the wanted files of a directory. In a mounted ConfigMap the files
// are links through ..data, which is swapped for the next version while we
// read: the version is resolved once, so that all files are of the same one.
func list(dir string, wanted func(name string) bool) ([]source, error) {
	real := dir
	if version, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		real = version
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return nil, err
	}
	var out []source
	for _, e := range entries {
		if !wanted(e.Name()) {
			continue
		}
		s := source{shown: filepath.Join(dir, e.Name()), real: filepath.Join(real, e.Name())}
		if info, err := os.Stat(s.real); err == nil && info.IsDir() {
			continue
		}
		out = append(out, s)
	}
	if len(out) > MaxFiles {
		return nil, fmt.Errorf("%s: holds %d rule files, more than the %d allowed", dir, len(out), MaxFiles)
	}
	return out, nil
}

// readAll reads every source, and returns all errors if there are any.
func readAll(sources []source) ([]rules.File, error) {
	files := make([]rules.File, 0, len(sources))
	var errs []error
	for _, s := range sources {
		data, err := read(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, rules.File{Name: s.shown, Data: data})
	}
	return files, errors.Join(errs...)
}

// read reads one file. What is too large is refused before it is read, and what
// is not a file before it is opened: opening a pipe would wait for its writer.
func read(s source) ([]byte, error) {
	info, err := os.Stat(s.real)
	switch {
	case err != nil:
		return nil, &rules.Error{File: s.shown, Reason: reason(err)}
	case !info.Mode().IsRegular():
		return nil, &rules.Error{File: s.shown, Reason: "is not a regular file"}
	case info.Size() > rules.MaxFileBytes:
		return nil, &rules.Error{File: s.shown, Reason: fmt.Sprintf("the file has %d bytes, more than the %d allowed; split it",
			info.Size(), rules.MaxFileBytes)}
	}
	f, err := os.Open(s.real)
	if err != nil {
		return nil, &rules.Error{File: s.shown, Reason: reason(err)}
	}
	defer f.Close()
	// The file may have grown since; one byte too many lets Parse refuse it.
	data, err := io.ReadAll(io.LimitReader(f, rules.MaxFileBytes+1))
	if err != nil {
		return nil, &rules.Error{File: s.shown, Reason: reason(err)}
	}
	return data, nil
}

// reason is what went wrong with a file, without its name.
func reason(err error) string {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return "cannot be read: " + pe.Err.Error()
	}
	return "cannot be read: " + err.Error()
}
