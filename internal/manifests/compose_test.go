package manifests

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// project is the whole tree: compose mounts the example rules.
var project = os.DirFS("../..")

const composeFile = "deploy/compose/compose.yaml"

func readCompose(t *testing.T) string {
	t.Helper()
	data, err := fs.ReadFile(project, composeFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCompose(t *testing.T) {
	c, err := ReadCompose([]byte(readCompose(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range c.Judge(project, path.Dir(composeFile), program.Settings, ports) {
		t.Error(fault)
	}
}

func TestComposeJudge(t *testing.T) {
	for _, c := range []struct{ want, old, new string }{
		{"field read_only_root not found", "read_only:", "read_only_root:"},
		{`SLUICE_BOOTSTRAP_EXPECT is "1", want more than half of the 3 nodes`, `EXPECT: "3"`, `EXPECT: "1"`},
		{"SLUICE_PEERS is no setting", "SLUICE_JOIN:", "SLUICE_PEERS:"},
		{"which is nobody's name", "SLUICE_JOIN: sluice", "SLUICE_JOIN: nodes"},
		{`n1: is named "n2"`, "SLUICE_NAME: n1", "SLUICE_NAME: n2"},
		{"published to the world", "127.0.0.1:7470:7460", "7470:7460"},
		{"published by n1 too", "127.0.0.1:7470:7460", "127.0.0.1:7460:7460"},
		{"publishes ports [7460 7462]", "7471:7461", "7471:7462"},
		{"not mounted read-only", "/etc/sluice/rules:ro", "/etc/sluice/rules"},
		{"there is nothing at", "examples/rules", "example/rules"},
		{"rules are mounted at", "SLUICE_RULES: /etc/sluice/rules", "SLUICE_RULES: /etc/rules"},
		{"not what SLUICE_SECRET_FILE names", "/run/secrets/cluster", "/run/secrets/sluice"},
		{"there is no file", "./example.secret", "./real.secret"},
		{"more rights than a node needs", "cap_drop: [ALL]", "cap_drop: []"},
		{"there is no network", "networks:\n  cluster: {}", "networks:\n  nodes: {}"},
		{"2 services, want 3", "  n3:\n", "  n2b:\n"},
	} {
		t.Run(c.want, func(t *testing.T) {
			text := readCompose(t)
			if !strings.Contains(text, c.old) {
				t.Fatalf("%s has no %q to spoil", composeFile, c.old)
			}
			text = strings.Replace(text, c.old, c.new, 1)
			if strings.Contains(c.want, "services") {
				text = text[:strings.Index(text, "  n2b:\n")] + text[strings.Index(text, "\nnetworks:"):]
			}
			compose, err := ReadCompose([]byte(text))
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v", err)
				}
				return
			}
			faults := compose.Judge(project, path.Dir(composeFile), program.Settings, ports)
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("the judge says %q", faults)
			}
		})
	}
}
