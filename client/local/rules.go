package local

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/sluice-project/sluice/rules"
)

// Rules are rule files: Text or Files makes them.
type Rules struct {
	files []rules.File
	err   error
}

// Text is rule files as texts, each for one domain. Errors call the first one rules, the second one rules#2, and so on.
func Text(files ...string) Rules {
	var r Rules
	for i, text := range files {
		name := "rules"
		if i > 0 {
			name += "#" + strconv.Itoa(i+1)
		}
		r.files = append(r.files, rules.File{Name: name, Data: []byte(text)})
	}
	return r
}

// Files are the rule files of a directory, for example os.DirFS("rules") or an embed.FS: those that nodes read there, which
// are *.yaml and *.yml in all its directories, but not hidden ones and *_test.yaml. Links to directories are not followed.
func Files(fsys fs.FS) Rules {
	var r Rules
	r.err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		base, ext := path.Base(name), path.Ext(name)
		switch {
		case err != nil:
			return unreadable(name, err)
		case d.IsDir() && name != "." && strings.HasPrefix(base, "."):
			return fs.SkipDir
		case d.IsDir(), ext != ".yaml" && ext != ".yml", strings.HasPrefix(base, "."), strings.HasSuffix(strings.TrimSuffix(base, ext), "_test"):
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return unreadable(name, err)
		}
		r.files = append(r.files, rules.File{Name: name, Data: data})
		return nil
	})
	return r
}

func unreadable(name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &rules.Error{File: name, Reason: "cannot be read: " + err.Error()}
}

// parse returns the rules of r. The error has a line for each error, with its file and line.
func (r Rules) parse(o rules.Options) (*rules.Set, error) {
	switch {
	case r.err != nil:
		return nil, r.err
	case len(r.files) == 0:
		return nil, errors.New("no rule files (*.yaml or *.yml, not hidden, not *_test.yaml)")
	}
	return rules.Parse(r.files, o)
}
