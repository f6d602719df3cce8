package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// inState starts a node that stays in a state: it waits for another node, serves, or hands over to one that does not run any more,
// and then for the rest of a client's request.
func inState(t *testing.T, state string, c process.Config) *process.Node {
	t.Helper()
	c.Name = "signaled"
	c.Args = append(slices.Clone(c.Args), "--handover-timeout", "10m", "--shutdown-timeout", "10m")
	switch state {
	case "starting":
		c.Args = append(c.Args, "--bootstrap-expect", "2", "--join", "127.0.0.1:1", "--join-timeout", "10m")
		n := process.Launch(t, c)
		n.WaitLog("msg=started", process.Quiet)
		return n
	case "serving":
		return process.Start(t, c)
	}
	n := process.Start(t, c)
	other := process.Start(t, process.Config{Name: "other", Join: []string{n.Gossip}, Args: c.Args})
	process.WaitAgreed(t, []*process.Node{n, other}, process.Quiet)
	other.Signal(syscall.SIGSTOP)
	conn, err := net.Dial("tcp", n.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
	if _, err := conn.Read(make([]byte, 64)); err != nil { // 100 Continue: the call is in progress
		t.Fatal(err)
	}
	n.Signal(syscall.SIGTERM)
	n.WaitLog(`msg="handing over"`, process.Quiet)
	return n
}

// TestSignals is the table of signals in docs/operate/deploy.md.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"starting", "serving", "leaving"} {
		// Signals that a node goes on after, each of which is logged but for SIGPIPE.
		goesOn := func(t *testing.T, n *process.Node) {
			n.Signal(syscall.SIGPIPE)
			for i, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
				line := fmt.Sprintf("no meaning here\" signal=%q", s.String())
				if s == syscall.SIGHUP {
					line = "msg=reloaded changed=[] unchanged=[secret]"
				}
				n.Signal(s)
				process.Eventually(t, process.Quiet, "log of "+s.String(), func() error {
					if !n.Alive() {
						t.Fatalf("%v ended it: %v", s, n.Cmd.ProcessState)
					}
					if got := strings.Count(n.Log.String(), line); got < 1+i/3 {
						return fmt.Errorf("%q is logged %d times", line, got)
					}
					return nil
				})
			}
		}
		ends := func(t *testing.T, n *process.Node, s syscall.Signal, code int, line string) {
			t.Helper()
			if _, got := n.Stop(s); got != code || !strings.Contains(n.Log.String(), line) {
				t.Errorf("exit code %d after %v, want %d and the line %s\n%s", got, s, code, line, n.Log.Tail(2000))
			}
		}
		dir := t.TempDir()
		secret := filepath.Join(dir, "secret")
		if err := os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		follows := process.Config{Args: []string{"--secret-file", secret}}
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			n := inState(t, state, follows)
			goesOn(t, n)
			if state != "leaving" {
				ends(t, n, syscall.SIGTERM, 0, "msg=stopped")
				ends(t, inState(t, state, follows), syscall.SIGINT, 0, "msg=stopped")
				return
			}
			n.Signal(syscall.SIGTERM)
			n.WaitLog("not all was handed over", process.Quiet)
			ends(t, n, syscall.SIGTERM, -1, "") // it would wait for the call
			if s := n.Cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGTERM {
				t.Errorf("a third signal: %v", n.Cmd.ProcessState)
			}
		})
		t.Run("SIGQUIT "+state, func(t *testing.T) {
			t.Parallel()
			ends(t, inState(t, state, follows), syscall.SIGQUIT, 2, "\ngoroutine ")
		})
		// A process that nohup has started ignores SIGHUP at first.
		t.Run("nohup "+state, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(dir, "nohup")
			if err := os.WriteFile(script, []byte("#!/bin/sh\ntrap '' HUP\nexec "+process.Binary+" \"$@\"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			goesOn(t, inState(t, state, process.Config{Binary: script, Args: follows.Args}))
		})
	}
}

// TestLogThatNobodyReads: the program that reads a node's log hangs, so that its pipe is full, or has gone, or the disk is full. The
// node goes on, counts lost lines, and hands over at its end.
func TestLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() (r, w *os.File, err error){
		"hangs": os.Pipe, "has gone": os.Pipe,
		"full": func() (*os.File, *os.File, error) {
			w, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			return nil, w, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := open()
			if err != nil {
				t.Skip(err) // another system than Linux has no such device
			}
			defer r.Close()
			if name == "hangs" {
				if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
					t.Skip(err) // pipes of this system have no deadlines
				}
				for err == nil {
					_, err = w.Write(make([]byte, 1))
				}
			}
			n := process.Start(t, process.Config{Name: "unread", Output: w})
			w.Close()
			if name == "has gone" {
				r.Close()
			}
			n.Signal(syscall.SIGHUP) // logs a line
			if name != "hangs" {
				process.Eventually(t, process.Quiet, "lost lines are counted", func() error {
					if n.Metric("sluice_log_lines_lost_total") == 0 {
						n.Signal(syscall.SIGHUP)
						return errors.New("none is lost")
					}
					return nil
				})
			}
			if took, code := n.Stop(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d after %v: %v", code, took.Round(time.Millisecond), n.Cmd.ProcessState)
			}
		})
	}
}
