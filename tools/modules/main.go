// Command modules gives the modules of a tree the version that they are released with:
//
//	modules DIR VERSION PROXY
//
// In the tree DIR, a copy that is to be committed and tagged, each module of go.work then requires the others at VERSION and replaces
// none, has their checksums, and has the license. PROXY becomes a folder that serves these versions as GOPROXY=file://PROXY.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: modules DIR VERSION PROXY")
		os.Exit(2)
	}
	if err := publish(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

// publish writes the versions into the tree root, and the modules into the folder proxy.
func publish(root, version, proxy string) error {
	data, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return err
	}
	p := &publication{root: root, version: version, proxy: proxy, modules: make(map[string]*mod)}
	for _, use := range work.Use {
		m := &mod{dir: filepath.Join(root, use.Path)}
		if data, err = os.ReadFile(m.path("go.mod")); err != nil {
			return err
		}
		if m.file, err = modfile.Parse(m.path("go.mod"), data, nil); err != nil {
			return err
		}
		p.modules[m.file.Module.Mod.Path] = m
	}
	for path, m := range p.modules {
		if err := p.add(m); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

type publication struct {
	root, version, proxy string
	// modules are those of go.work by path.
	modules map[string]*mod
}

type mod struct {
	dir     string
	file    *modfile.File
	started bool
	// sums are the lines for it in go.sum, when it is published.
	sums []string
}

func (m *mod) path(name string) string { return filepath.Join(m.dir, name) }

// add publishes a module, after those that it requires.
func (p *publication) add(m *mod) error {
	if m.started {
		if m.sums == nil {
			return errors.New("requires itself by way of others, so it has no checksum")
		}
		return nil
	}
	m.started = true
	id := module.Version{Path: m.file.Module.Mod.Path, Version: p.version}
	if err := module.Check(id.Path, id.Version); err != nil {
		return err
	}
	var sums []string
	for _, r := range m.file.Require {
		own := p.modules[r.Mod.Path]
		if own == nil {
			continue
		}
		if err := p.add(own); err != nil {
			return fmt.Errorf("%s: %w", r.Mod.Path, err)
		}
		if err := m.file.AddRequire(r.Mod.Path, p.version); err != nil {
			return err
		}
		sums = append(sums, own.sums...)
	}
	for path := range p.modules { // not all that are replaced are required: go mod tidy wants to see some more
		if err := m.file.DropReplace(path, ""); err != nil {
			return err
		}
	}
	m.file.Cleanup()
	if len(m.file.Replace) > 0 {
		return fmt.Errorf("replaces %s: what it requires must be a released version", m.file.Replace[0].Old.Path)
	}
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(p.root, "LICENSE"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(m.path("go.mod"), text, 0o644), os.WriteFile(m.path("LICENSE"), license, 0o644), addSums(m.path("go.sum"), sums)); err != nil {
		return err
	}
	return p.serve(m, id, text)
}

// serve writes a module into the proxy, see https://go.dev/ref/mod#goproxy-protocol.
func (p *publication) serve(m *mod, id module.Version, goMod []byte) error {
	path, err := module.EscapePath(id.Path)
	if err != nil {
		return err
	}
	version, err := module.EscapeVersion(id.Version)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(dir, version)
	f, err := os.Create(name + ".zip")
	if err != nil {
		return err
	}
	err = errors.Join(zip.CreateFromDir(f, id, m.dir), f.Close(),
		os.WriteFile(name+".mod", goMod, 0o644),
		os.WriteFile(name+".info", fmt.Appendf(nil, "{\"Version\": %q}\n", id.Version), 0o644),
		os.WriteFile(filepath.Join(dir, "list"), []byte(id.Version+"\n"), 0o644))
	if err != nil {
		return err
	}
	sum, err := dirhash.HashZip(name+".zip", dirhash.Hash1)
	if err != nil {
		return err
	}
	modSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(name + ".mod") })
	if err != nil {
		return err
	}
	m.sums = []string{
		fmt.Sprintf("%s %s %s\n", id.Path, id.Version, sum),
		fmt.Sprintf("%s %s/go.mod %s\n", id.Path, id.Version, modSum),
	}
	return nil
}

// addSums adds lines to a go.sum, in the order of the go command.
func addSums(file string, sums []string) error {
	if len(sums) == 0 {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines := make(map[module.Version]string)
	for _, line := range slices.Concat(slices.Collect(strings.Lines(string(data))), sums) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return fmt.Errorf("%s: %q is not a module, a version and a checksum", file, line)
		}
		lines[module.Version{Path: f[0], Version: f[1]}] = line
	}
	var ids []module.Version
	for id := range lines {
		ids = append(ids, id)
	}
	module.Sort(ids)
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(lines[id])
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
