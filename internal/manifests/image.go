package manifests

import (
	"fmt"
	"slices"
	"strings"
)

// JudgeImage returns what is wrong with the Dockerfile of a program with these
// ports: it must hold the binary and nothing else, and run it without rights.
func JudgeImage(dockerfile string, ports Ports) []string {
	got := map[string][]string{}
	for line := range strings.Lines(dockerfile) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if instruction != "" && instruction != "#" {
			got[instruction] = append(got[instruction], rest)
		}
	}
	want := map[string][]string{
		"FROM":        {"scratch"},
		"ARG":         {"BINARY=bin/image/sluice"},
		"COPY":        {"${BINARY} /sluice"},
		"USER":        {fmt.Sprintf("%d:%d", user, user)},
		"ENV":         {"SLUICE_BIND=0.0.0.0"},
		"EXPOSE":      {fmt.Sprintf("%d/tcp %d/tcp %d/tcp %d/tcp %d/udp", ports.GRPC, ports.HTTP, ports.Peer, ports.Gossip, ports.Gossip)},
		"HEALTHCHECK": {`--interval=5s --timeout=3s --start-period=10s CMD ["/sluice", "health", "--timeout", "2s"]`},
		"ENTRYPOINT":  {`["/sluice"]`},
		"CMD":         {`["serve"]`},
	}
	var faults []string
	for instruction, lines := range got {
		if !slices.Equal(lines, want[instruction]) {
			faults = append(faults, fmt.Sprintf("%s %q, want %q", instruction, lines, want[instruction]))
		}
	}
	for instruction := range want {
		if got[instruction] == nil {
			faults = append(faults, "no "+instruction)
		}
	}
	slices.Sort(faults)
	return faults
}
