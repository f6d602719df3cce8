package e2e

import (
	"bytes"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

// firstProgram is how many lines the first program of the client's page may have.
const firstProgram = 15

var goBlock = regexp.MustCompile("(?ms)^```go\n(package main\n.*?)^```")

// TestFirstProgram compiles the Go program of the client's page as it stands there, but for the address, and
// runs it against a node with the rules of the examples, until its limit denies.
func TestFirstProgram(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(repository, "docs/use/client.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := goBlock.FindAllSubmatch(data, -1)
	if len(found) != 1 {
		t.Fatalf("the page has %d programs, want one", len(found))
	}
	source := found[0][1]
	if formatted, err := format.Source(source); err != nil || !bytes.Equal(formatted, source) {
		t.Errorf("it is not as gofmt writes it: %v\n%s", err, formatted)
	}
	if n := bytes.Count(source, []byte("\n")); n > firstProgram {
		t.Errorf("it has %d lines, want at most %d", n, firstProgram)
	}
	const addr = `"127.0.0.1:7460"`
	if bytes.Count(source, []byte(addr)) != 1 {
		t.Fatalf("it does not name %s once:\n%s", addr, source)
	}

	node := process.Start(t, process.Config{Name: "n1", Rules: filepath.Join(repository, "examples/rules")})
	dir := t.TempDir()
	file, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	text := strings.Replace(string(source), addr, `"`+node.GRPC+`"`, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The file may lie anywhere; the module is that of the folder that go runs in.
	build := exec.Command("go", "build", "-o", program, file)
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for run, want := range []string{"true", "true", "true", "true", "true", "false"} {
		out, err := exec.Command(program).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want+" <nil>") {
			t.Errorf("run %d printed %q, %v; want %s and no error", run+1, out, err, want)
		}
	}
}
