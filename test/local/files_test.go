package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/limiter/local"
	"github.com/sluicecluster/sluice/rules"
)

// TestFilesOfNodes: of a directory, the same files are rule files.
func TestFilesOfNodes(t *testing.T) {
	dir := t.TempDir()
	names := []string{
		"a.yaml", "b.yml", "sub/c.yaml", "sub/deep/d.yml", ".hidden.yaml", ".git/e.yaml", "sub/.f/g.yaml", "h_test.yaml", "i_test.yml", "j.yaml.orig", "k.txt",
		"_test.yaml", "l_test.yaml/m.yaml", "test.yaml", "n.YAML", "lost+found/o.txt",
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("domain: "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, _, err := rulefiles.Load(dir, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := local.New(os.DirFS(dir), local.WithKnownDomainsOnly())
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, name := range names {
		_, err := l.Key(name, "key", "value").Check(t.Context(), 1)
		switch {
		case err == nil:
			known = append(known, name)
		case !errors.Is(err, limit.ErrUnknownDomain):
			t.Fatal(err)
		}
	}
	slices.Sort(known)
	if !slices.Equal(known, set.Domains()) || len(known) < 6 {
		t.Errorf("read %q, a node reads %q", known, set.Domains())
	}
}
