package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

var demos atomic.Int32

// demoPort returns a base port, another each time, such that the demo's twelve ports, one for operators, and four more
// at 100 above it, are free.
func demoPort(t *testing.T) int {
	t.Helper()
	for {
		base := 17260 + 200*int(demos.Add(1))
		if base > 30000 {
			break
		}
		if process.AllFree(base, 0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 4, 23, 30, 31, 32, 33, 40, 41, 42, 43, 50, 51, 52, 53, 100, 101, 102, 103) {
			return base
		}
	}
	t.Fatal("no free range of ports")
	return 0
}

// runDemo starts the demo, which ends with the test, as by Ctrl-C.
func runDemo(t *testing.T, base int) {
	t.Helper()
	cmd := exec.Command(process.Binary, "demo", "--port", strconv.Itoa(base))
	cmd.Dir = t.TempDir() // where there are no rules: it has its own
	out, stderr := &process.LogBuffer{}, &process.LogBuffer{}
	cmd.Stdout, cmd.Stderr = out, stderr
	startCommand(t, cmd)
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the demo after Ctrl-C: %v\n%s", err, stderr)
		}
	})
	process.Eventually(t, 30*time.Second, "the demo prints what to try", func() error {
		if !strings.Contains(out.String(), "Ctrl-C stops") {
			return fmt.Errorf("so far:\n%s%s", out, stderr)
		}
		return nil
	})
	text := out.String()
	if strings.Count(text, ": ALLOWED") != 5 || strings.Count(text, ": DENIED") != 1 || !strings.Contains(text, "\nHealthy") {
		t.Errorf("want a healthy cluster, five checks allowed and one denied:\n%s", text)
	}
}

// TestDemoOtherRules: without a rule for its own checks, the demo makes none and suggests none.
func TestDemoOtherRules(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(repository, "examples/nginx/rules")
	out, err := exec.Command(process.Binary, "demo", "--port", strconv.Itoa(demoPort(t)), "--exit", "--rules", rules).CombinedOutput()
	text := string(out)
	if err != nil || !strings.Contains(text, "\nHealthy") || strings.Contains(text, "asked n1") || strings.Contains(text, "no rule matches") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestDemoRegions: the demo of three regions shows that they are linked, who decides, and one limit in all.
func TestDemoRegions(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(process.Binary, "demo", "--regions", "--port", strconv.Itoa(demoPort(t)), "--exit").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "linked  1       2 of 2") || !regexp.MustCompile(`\n  (60|5\d) of 60 in all`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

func startCommand(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
}
