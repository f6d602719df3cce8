package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Release says what to build.
type Release struct {
	// Root is the folder of the source, Out where the files go: it must be empty, or not there.
	Root, Out string
	// Version is what `sluice version` says, and part of the files' names.
	Version string
	// Time is that of the commit. All files in archives have it.
	Time time.Time
	// Targets are the systems to build for.
	Targets []Target
	// Materials writes the bill of materials of a binary to a file; nil leaves it out.
	Materials func(binary, file string) error
}

var soundVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`)

// Build makes the release. What it has written when it fails is no release.
func (r *Release) Build() error {
	switch {
	case !soundVersion.MatchString(r.Version):
		return fmt.Errorf("-version: %q is not made of letters, digits, dots, + and -", r.Version)
	case r.Time.IsZero():
		return errors.New("-time: give that of the commit")
	case len(r.Targets) == 0:
		return errors.New("-targets: there are none")
	}
	if left, err := os.ReadDir(r.Out); err == nil && len(left) > 0 {
		return fmt.Errorf("-out: %s is not empty; its files would look like part of the release", r.Out)
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	work, err := os.MkdirTemp("", "sluice-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, t := range r.Targets {
		if err := r.build(t, work); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	return sums(r.Out)
}

func (r *Release) build(t Target, work string) error {
	binary, err := filepath.Abs(filepath.Join(work, t.OS+"_"+t.Arch, t.binary()))
	if err != nil {
		return err
	}
	if err := r.compile(t, binary); err != nil {
		return err
	}
	if r.Materials != nil {
		if err := r.Materials(binary, filepath.Join(r.Out, t.name(r.Version)+".cdx.json")); err != nil {
			return fmt.Errorf("bill of materials: %w", err)
		}
	}
	if t.OS == "linux" {
		if err := image(filepath.Join(r.Out, t.name(r.Version)+".image.tar"), binary, t, r.Version, r.Time); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	format := "tar.gz"
	if t.OS == "windows" {
		format = "zip"
	}
	f, err := os.Create(filepath.Join(r.Out, t.name(r.Version)+"."+format))
	if err != nil {
		return err
	}
	err = archive(f, format, t.name(r.Version), []entry{
		{name: "LICENSE", source: filepath.Join(r.Root, "LICENSE")},
		{name: "README.md", source: filepath.Join(r.Root, "README.md")},
		{name: t.binary(), source: binary, executable: true},
	}, r.Time)
	return errors.Join(err, f.Close())
}

// settled are the settings of the go command that change what it writes.
var settled = []string{"GOFLAGS=", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off"}

// compile builds the binary for t: no paths of this machine, no state of git, no symbols that only debuggers need.
func (r *Release) compile(t Target, binary string) error {
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", "-s -w -X main.version="+r.Version, "-o", binary, "./cmd/sluice")
	build.Dir = r.Root
	build.Env = append(os.Environ(), settled...)
	build.Env = append(build.Env, "GOOS="+t.OS, "GOARCH="+t.Arch)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// sumsFile is checked by sha256sum -c and by shasum -a 256 -c.
const sumsFile = "SHA256SUMS"

// sums writes the checksums of all files in dir, by name.
func sums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range files { // sorted
		if f.Name() == sumsFile {
			continue
		}
		sum, err := digest(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, f.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(text.String()), 0o644)
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
