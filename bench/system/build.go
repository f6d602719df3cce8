package system

import (
	"context"
	"debug/buildinfo"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Binaries are the programs to start.
type Binaries struct {
	// Revision is the commit it was built from, with a + if files had changed.
	Revision string
	// Rules is the folder with the rule files of this module.
	Rules string

	sluice string
	// peers is the folder of the other programs, scratch that of the files that servers read and write.
	peers, scratch string
}

//go:embed rules
var rules embed.FS

// Build compiles the peers into dir, from the module in the working directory;
// sluice is the path of a binary that exists.
func Build(ctx context.Context, sluice, dir string) (*Binaries, error) {
	info, err := buildinfo.ReadFile(sluice)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make build makes it", sluice, err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	b := &Binaries{sluice: sluice, Revision: revision(info), Rules: filepath.Join(scratch, "rules"), peers: dir, scratch: scratch}
	if err := os.CopyFS(scratch, rules); err != nil {
		return nil, err
	}
	for _, module := range []string{"echo", "peers/gubernator", "peers/ratelimit"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", b.peer(filepath.Base(module)), ".")
		cmd.Dir = module
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", module, err, text)
		}
	}
	return b, nil
}

// peer is the path of a program that is compared with sluice.
func (b *Binaries) peer(name string) string { return filepath.Join(b.peers, name) }

// Close removes the files that servers read and wrote.
func (b *Binaries) Close() error { return os.RemoveAll(b.scratch) }

func revision(info *buildinfo.BuildInfo) (r string) {
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			r = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if r == "" {
		return "unknown"
	}
	return r + changed
}
