package manifests

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Program is the binary that the manifests run.
type Program struct {
	// Path is where the executable is.
	Path string
	// Settings are the environment variables that `sluice serve` reads, with the
	// default that its help shows, "" where it shows none.
	Settings map[string]string
}

// flagLine matches a flag in a command's help: its name, then what it says.
var flagLine = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z][a-z0-9-]*)(.*)$`)

// defaultValue matches the default at the end of a flag's line.
var defaultValue = regexp.MustCompile(`\(default "?([^")]*)"?\)$`)

// BuildProgram builds the binary of the module at root into dir and asks it for its flags.
func BuildProgram(root, dir string) (*Program, error) {
	p := &Program{Path: filepath.Join(dir, "sluice")}
	build := exec.Command("go", "build", "-o", p.Path, "./cmd/sluice")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	help, err := p.Run("serve", "--help")
	if err != nil {
		return nil, err
	}
	p.Settings = settingsOf(help)
	if len(p.Settings) == 0 {
		return nil, fmt.Errorf("sluice serve --help lists no flags:\n%s", help)
	}
	return p, nil
}

// settingsOf reads the flags from a help text.
func settingsOf(help string) map[string]string {
	settings := map[string]string{}
	for _, m := range flagLine.FindAllStringSubmatch(help, -1) {
		name, rest := m[1], strings.TrimSpace(m[2])
		if name == "help" {
			continue
		}
		value := ""
		if d := defaultValue.FindStringSubmatch(rest); d != nil {
			value = d[1]
		}
		settings["SLUICE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = value
	}
	return settings
}

// Run executes a command of the program and returns what it printed.
func (p *Program) Run(args ...string) (string, error) {
	out, err := exec.Command(p.Path, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("sluice %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Port returns the port that a setting has when nobody sets it.
func (p *Program) Port(setting string) (int32, error) {
	n, err := strconv.ParseUint(p.Settings[setting], 10, 16)
	if err != nil {
		return 0, fmt.Errorf("sluice serve --help shows no default for %s; it has %v", setting, slices.Sorted(maps.Keys(p.Settings)))
	}
	return int32(n), nil
}

// Ports are a node's ports.
type Ports struct{ GRPC, HTTP, Peer, Gossip int32 }

// Ports returns the ports of a node that is told none.
func (p *Program) Ports() (ports Ports, err error) {
	for _, one := range []struct {
		setting string
		into    *int32
	}{
		{"SLUICE_GRPC_PORT", &ports.GRPC},
		{"SLUICE_HTTP_PORT", &ports.HTTP},
		{"SLUICE_PEER_PORT", &ports.Peer},
		{"SLUICE_GOSSIP_PORT", &ports.Gossip},
	} {
		if *one.into, err = p.Port(one.setting); err != nil {
			return Ports{}, err
		}
	}
	return ports, nil
}
