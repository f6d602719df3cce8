package leaktest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// TestLeak runs this test again in a process where it leaves a goroutine behind.
func TestLeak(t *testing.T) {
	if os.Getenv("LEAK") != "" {
		go func() { select {} }()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestLeak$")
	cmd.Env = append(os.Environ(), "LEAK=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "leaktest.TestLeak.func") {
		t.Errorf("a goroutine that remains: %v\n%s", err, out)
	}
}
