package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// TestDemoCut: lines of input cut a region of the demo off and link it again, the commands that it suggests work, and it goes on when
// its input ends.
func TestDemoCut(t *testing.T) {
	t.Parallel()
	base := demoPort(t)
	cmd := exec.Command(process.Binary, "demo", "--regions", "--port", strconv.Itoa(base))
	cmd.Dir = t.TempDir()
	out := &process.LogBuffer{}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	startCommand(t, cmd)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			cmd.Process.Signal(syscall.SIGINT)
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, stderr.String())
			}
		}
	}
	t.Cleanup(stop)
	printed := func(within time.Duration, text string) {
		t.Helper()
		process.Eventually(t, within, "the demo prints "+text, func() error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("so far:\n%s", out.String())
			}
			return nil
		})
	}
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	printed(60*time.Second, "Ctrl-C stops")
	checks := regexp.MustCompile(`(?m)^  \S*sluice (check .*?) +#`).FindAllStringSubmatch(out.String(), -1)
	if len(checks) != 3 {
		t.Errorf("%d checks are suggested:\n%s", len(checks), out.String())
	}
	for _, c := range checks {
		if out, err := exec.Command(process.Binary, strings.Fields(c[1])...).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "ALLOWED") {
			t.Errorf("%s: %v: %s", c[1], err, out)
		}
	}
	for _, c := range []struct{ line, state string }{{"cut ap", "unreached"}, {"link ap", "linked"}} {
		say(c.line)
		process.Eventually(t, 20*time.Second, c.line, func() error {
			list, err := exec.Command(process.Binary, "regions", "--addr", fmt.Sprintf("127.0.0.1:%d", base)).CombinedOutput()
			if !regexp.MustCompile(`(?m)^ap +`+c.state).Match(list) || !regexp.MustCompile(`(?m)^us +linked`).Match(list) {
				return fmt.Errorf("%s (%v)", list, err)
			}
			return nil
		})
	}
	say("cut xx")
	printed(5*time.Second, "want cut or link, and one of eu, us, ap")
	in.Close()
	stop()
	if !strings.HasSuffix(out.String(), "Stopping …\n") {
		t.Errorf("%s", out.String())
	}
}
