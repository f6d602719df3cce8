package main

import (
	"fmt"
	"slices"
	"strings"
)

// Target is a system that a binary is built for.
type Target struct{ OS, Arch string }

// targets are those of a release. On Windows sluice is for who asks: a node there has not been tested.
var targets = []Target{
	{"linux", "amd64"}, {"linux", "arm64"},
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"},
}

func (t Target) String() string { return t.OS + "/" + t.Arch }

// parseTargets reads a list such as "linux/amd64,darwin/arm64"; nothing is all of them.
func parseTargets(list string) ([]Target, error) {
	if list == "" {
		return targets, nil
	}
	var chosen []Target
	for name := range strings.SplitSeq(list, ",") {
		at := slices.IndexFunc(targets, func(t Target) bool { return t.String() == name })
		if at < 0 {
			return nil, fmt.Errorf("-targets: %q is none of %v", name, targets)
		}
		chosen = append(chosen, targets[at])
	}
	return chosen, nil
}

// binary is the name of the program on t.
func (t Target) binary() string {
	if t.OS == "windows" {
		return "sluice.exe"
	}
	return "sluice"
}

// name is what files for t begin with.
func (t Target) name(version string) string {
	return fmt.Sprintf("sluice_%s_%s_%s", version, t.OS, t.Arch)
}
