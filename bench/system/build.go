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

	echo, sluice, gubernator, ratelimit string
	// scratch is for what servers read and write.
	scratch string
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
	b := &Binaries{
		sluice:     sluice,
		Revision:   revision(info),
		Rules:      filepath.Join(scratch, "rules"),
		echo:       filepath.Join(dir, "echo"),
		gubernator: filepath.Join(dir, "gubernator"),
		ratelimit:  filepath.Join(dir, "ratelimit"),
		scratch:    scratch,
	}
	if err := os.CopyFS(scratch, rules); err != nil {
		return nil, err
	}
	for module, out := range map[string]string{"echo": b.echo, "peers/gubernator": b.gubernator, "peers/ratelimit": b.ratelimit} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", out, ".")
		cmd.Dir = module
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", module, err, text)
		}
	}
	return b, nil
}

// Close removes what servers read and wrote.
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
