package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// cyclonedx returns what writes bills of materials with the pinned tool of the source at root. They have neither a serial
// number nor a time, which would be others at each build.
func cyclonedx(root, version string) func(binary, file string) error {
	return func(binary, file string) error {
		file, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		tool := exec.Command("go", "tool", "-modfile=internal/tools/go.mod", "cyclonedx-gomod",
			"bin", "-json", "-std", "-noserial", "-notimestamp", "-version", version, "-output", file, binary)
		tool.Dir = root
		tool.Env = slices.Concat(os.Environ(), []string{"GOFLAGS=", "GOWORK=off"})
		if out, err := tool.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if text, err = withoutToolHashes(text); err != nil {
			return err
		}
		return os.WriteFile(file, text, 0o644)
	}
}

// withoutToolHashes takes the checksums of the tool out of a bill of materials: they are those of the tool as it was
// built on this machine.
func withoutToolHashes(text []byte) ([]byte, error) {
	var bill map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&bill); err != nil {
		return nil, err
	}
	about, _ := bill["metadata"].(map[string]any)
	tools, _ := about["tools"].([]any)
	if len(tools) == 0 {
		return nil, fmt.Errorf("a bill of materials without metadata.tools: is it of another form?")
	}
	for _, one := range tools {
		if tool, ok := one.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	text, err := json.MarshalIndent(bill, "", "  ")
	return append(text, '\n'), err
}
