package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// repository is the root of the checkout, seen from this package.
const repository = "../.."

// TestReadmeCommands runs every command of the README as it stands there, but
// for the ports, against the demo that the README starts first.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	commands := readmeCommands(t)
	base := demoPort(t)
	demo := runDemo(t, base)

	var serves []*exec.Cmd
	var starting []func() // wait for them: they wait for each other
	ran := 0
	for _, line := range commands {
		if !strings.HasPrefix(line, "bin/sluice serve --name") {
			for _, ready := range starting {
				ready()
			}
			starting = nil
		}
		switch {
		case line == "make run" || line == "make test":
			// This test is part of one, and has just done what the other does.
			if out, err := exec.Command("make", "-C", repository, "-n", strings.Fields(line)[1]).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		case strings.HasPrefix(line, "bin/sluice serve --name"):
			if runtime.GOOS != "linux" {
				continue // as the README says
			}
			cmd, ready := startServe(t, line, base+100)
			serves, starting = append(serves, cmd), append(starting, ready)
			ran++
			continue
		case strings.Contains(line, "127.0.1."):
			if runtime.GOOS != "linux" {
				continue
			}
			runReadmeCommand(t, line, base+100)
		default:
			runReadmeCommand(t, line, base)
		}
		ran++
	}
	if ran < 8 {
		t.Errorf("only %d commands found in the README", ran)
	}
	for _, s := range append(serves, demo) {
		s.Process.Signal(syscall.SIGINT)
		if err := s.Wait(); err != nil {
			t.Errorf("%s after Ctrl-C: %v\n%s", strings.Join(s.Args, " "), err, s.Stderr)
		}
	}
}

var (
	shellBlock    = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	inlineCommand = regexp.MustCompile("`(bin/sluice [^`]*)`")
)

// readmeCommands returns the commands of the README.
func readmeCommands(t *testing.T) []string { return pageCommands(t, "README.md", inlineCommand) }

// pageCommands returns the lines of a page's sh blocks and the inline commands, if there are to be any, in order.
func pageCommands(t *testing.T, page string, inlineCommand *regexp.Regexp) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	text := string(data)
	for text != "" {
		block := shellBlock.FindStringSubmatchIndex(text)
		var inline []int
		if inlineCommand != nil {
			inline = inlineCommand.FindStringSubmatchIndex(text)
		}
		switch {
		case block != nil && (inline == nil || block[0] < inline[0]):
			commands = append(commands, strings.Split(strings.TrimSpace(text[block[2]:block[3]]), "\n")...)
			text = text[block[1]:]
		case inline != nil:
			commands = append(commands, text[inline[2]:inline[3]])
			text = text[inline[1]:]
		default:
			text = ""
		}
	}
	// The demo itself is running, and help needs no cluster but must work.
	var list []string
	for _, c := range commands {
		if c != "bin/sluice demo" {
			list = append(list, c)
		}
	}
	return list
}

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

// atPorts moves the README's ports to those of this test.
func atPorts(line string, base int) string {
	for _, p := range []int{7460, 7461, 7464, 7470, 7471, 7480} {
		line = strings.ReplaceAll(line, fmt.Sprint(":", p), fmt.Sprint(":", base+p-7460))
	}
	return line
}

func command(line string, env ...string) *exec.Cmd {
	line = strings.Replace(line, "bin/sluice", process.Binary, 1)
	cmd := exec.Command("sh", "-c", "exec "+line)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

func runReadmeCommand(t *testing.T, line string, base int) {
	t.Helper()
	cmd := command(atPorts(line, base), fmt.Sprintf("SLUICE_ADDR=127.0.0.1:%d", base))
	if strings.HasPrefix(line, "curl") {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Logf("no curl on this machine: %s", line)
			return
		}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s%s", line, err, out, cmd.Stderr)
		return
	}
	t.Logf("%s\n%s", line, out)
}

func runDemo(t *testing.T, base int) *exec.Cmd {
	t.Helper()
	cmd := command(fmt.Sprintf("bin/sluice demo --port %d", base))
	cmd.Dir = t.TempDir() // where there are no rules: it has its own
	out := &process.LogBuffer{}
	cmd.Stdout = out
	startCommand(t, cmd)
	t.Cleanup(func() { // on a signal it removes its rules
		cmd.Process.Signal(syscall.SIGINT)
		cmd.Wait()
	})
	process.Eventually(t, 30*time.Second, "the demo prints what to try", func() error {
		if !strings.Contains(out.String(), "Ctrl-C stops") {
			return fmt.Errorf("so far:\n%s%s", out.String(), cmd.Stderr)
		}
		return nil
	})
	if text := out.String(); strings.Count(text, ": ALLOWED") != 5 || strings.Count(text, ": DENIED") != 1 || !strings.Contains(text, "\nHealthy") {
		t.Errorf("want a healthy cluster, five checks allowed and one denied:\n%s", text)
	}
	t.Logf("%s", out.String())
	return cmd
}

// TestDemoOtherRules: without a rule for its own checks, the demo makes none and suggests none.
func TestDemoOtherRules(t *testing.T) {
	t.Parallel()
	cmd := command(fmt.Sprintf("bin/sluice demo --port %d --exit --rules examples/nginx/rules", demoPort(t)))
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "\nHealthy") || strings.Contains(string(out), "asked n1") || strings.Contains(fmt.Sprint(cmd.Stderr), "no rule matches") {
		t.Errorf("%v\n%s%s", err, out, cmd.Stderr)
	}
}

// TestDemoRegions: the demo of three regions shows that they are linked, who decides, and one limit in all.
func TestDemoRegions(t *testing.T) {
	t.Parallel()
	cmd := command(fmt.Sprintf("bin/sluice demo --regions --port %d --exit", demoPort(t)))
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "linked  1       2 of 2") || !regexp.MustCompile(`\n  (60|5\d) of 60 in all`).Match(out) {
		t.Errorf("%v\n%s%s", err, out, cmd.Stderr)
	}
}

// startServe runs one of the README's serve commands on other ports and waits
// until it answers.
func startServe(t *testing.T, line string, base int) (cmd *exec.Cmd, ready func()) {
	t.Helper()
	var env []string
	for i, flag := range []string{"GRPC", "HTTP", "PEER", "GOSSIP"} {
		env = append(env, fmt.Sprintf("SLUICE_%s_PORT=%d", flag, base+i))
	}
	cmd = command(line, env...)
	startCommand(t, cmd)
	bind := regexp.MustCompile(`--bind (\S+)`).FindStringSubmatch(line)[1]
	return cmd, func() {
		process.Eventually(t, 20*time.Second, line, func() error {
			status, body, err := process.Get(fmt.Sprintf("http://%s:%d/readyz", bind, base+1))
			if err == nil && status != 200 {
				err = fmt.Errorf("%d %s", status, body)
			}
			return err
		})
	}
}

func startCommand(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
}
