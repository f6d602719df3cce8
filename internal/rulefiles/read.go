package rulefiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluicecluster/sluice/rules"
)

// ErrNoFiles is returned for a directory without rule files.
var ErrNoFiles = errors.New("no rule files (*.yaml or *.yml, not hidden, not *_test.yaml)")

// Load reads the rules at path, a file or a directory, and returns the files of the directory that it skips. An error in a
// file is a *rules.Error; all of them are joined.
func Load(path string, o rules.Options) (*rules.Set, []Skipped, error) {
	files, skipped, err := read(path, visitNone)
	if err != nil {
		return nil, skipped, err
	}
	set, err := rules.Parse(files, o)
	return set, skipped, err
}

// visitNone is for callers that watch nothing.
func visitNone(_, _ string) {}

// read returns the rule files at path: the file itself, or those of the directory and below it, in the order of their paths,
// and the other files there. It calls visit with every place that the result depends on before it looks there.
func read(path string, visit visitor) ([]rules.File, []Skipped, error) {
	t, err := find(path, visit)
	if err != nil {
		return nil, nil, err
	}
	files, err := readAll(t.rules)
	if err != nil {
		return nil, t.skipped, err
	}
	if len(files) == 0 {
		text := path
		for _, s := range t.skipped {
			text += fmt.Sprintf("\nnot read: %v", s)
		}
		return nil, t.skipped, fmt.Errorf("%w: %s", ErrNoFiles, text)
	}
	return files, t.skipped, nil
}

// ReadTests returns the files of test cases for the rules at path: those of the directory and below it, or the one named after
// the file. There may be none.
func ReadTests(path string) ([]rules.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		t, err := find(path, visitNone)
		if err != nil {
			return nil, err
		}
		return readAll(t.tests)
	}
	ext := filepath.Ext(path)
	tests := strings.TrimSuffix(path, ext) + "_test" + ext
	if _, err := os.Stat(tests); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return readAll([]source{{shown: tests, real: tests}})
}

// readAll reads every source, and returns all errors if there are any.
func readAll(sources []source) ([]rules.File, error) {
	files := make([]rules.File, 0, len(sources))
	var errs []error
	for _, s := range sources {
		data, err := readFile(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := rules.File{Name: s.shown, Data: data}
		if s.outside {
			f.Outside = s.real
		}
		files = append(files, f)
	}
	return files, errors.Join(errs...)
}

// readFile reads one file. It rejects a large file before reading, and a pipe before opening, which would wait for the writer.
func readFile(s source) ([]byte, error) {
	info, err := os.Stat(s.real)
	switch {
	case err != nil:
		return nil, unreadable(s, err)
	case !info.Mode().IsRegular():
		return nil, &rules.Error{File: s.shown, Reason: "is not a regular file"}
	case info.Size() > rules.MaxFileBytes:
		return nil, &rules.Error{File: s.shown, Reason: fmt.Sprintf("the file has %d bytes, more than the %d allowed; split it",
			info.Size(), rules.MaxFileBytes)}
	}
	f, err := os.Open(s.real)
	if err != nil {
		return nil, unreadable(s, err)
	}
	defer f.Close()
	// The file may have grown since; one byte too many lets Parse reject it.
	data, err := io.ReadAll(io.LimitReader(f, rules.MaxFileBytes+1))
	if err != nil {
		return nil, unreadable(s, err)
	}
	return data, nil
}

// unreadable is the error of a file that cannot be read. It names the file once, as shown.
func unreadable(s source, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &rules.Error{File: s.shown, Reason: "cannot be read: " + err.Error()}
}
