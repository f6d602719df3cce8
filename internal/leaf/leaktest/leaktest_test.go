package leaktest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("LEAK") != "" {
		run(m, time.Millisecond)
	}
	Main(m)
}

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
