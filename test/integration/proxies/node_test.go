package proxies

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const root = "../../.."

// binary is sluice, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-proxies-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-o", binary, "./cmd/sluice")
	build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the binary:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var hosts atomic.Int32

// newHost returns a loopback address that no other test uses, so that the examples can keep their ports.
func newHost(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs loopback addresses beside 127.0.0.1, which are there without further ado on Linux only")
	}
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()>>7%128, os.Getpid()%128, hosts.Add(1))
}

// example returns a file of the examples. Its only change is that 127.0.0.1 becomes host.
func example(t *testing.T, path, host string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "examples", path))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), "127.0.0.1", host)
}

// process is a program that a test has started.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *lines
	done chan struct{} // closed when it has ended
}

// lines is what a process has written.
type lines struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.String()
}

// start starts a program, which ends with the test at the latest.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), log: new(lines), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(name), p.log)
		}
	})
	return p
}

// stop ends it in order. It may be called again.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%s did not stop within 30 s", p.cmd.Path)
	}
}

// await polls until ok, at most 20 s and while p runs.
func (p *process) await(what string, ok func() bool) {
	p.t.Helper()
	late := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-p.done:
			p.t.Fatalf("%s ended before it was %s:\n%s", p.cmd.Path, what, p.log)
		case <-late:
			p.t.Fatalf("%s is not %s within 20 s:\n%s", p.cmd.Path, what, p.log)
		case <-tick.C:
		}
	}
}

// startSluice starts one node at host, by the rules of an example, and waits until it is ready.
func startSluice(t *testing.T, host, rules string, flags ...string) *process {
	t.Helper()
	args := []string{"serve", "--name", "n1", "--bind", host, "--rules", filepath.Join(root, "examples", rules)}
	p := start(t, binary, append(args, flags...)...)
	p.await("ready", func() bool { return ready(host, 7461) || len(flags) > 0 && ready(host, 8461) })
	return p
}

// ready reports whether a node with that HTTP port takes traffic.
func ready(host string, port int) bool {
	res, err := quick.Get(fmt.Sprintf("http://%s:%d/readyz", host, port))
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// quick does not wait for a node that hangs.
var quick = http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}

// listens reports whether somebody accepts connections at addr.
func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		conn.Close()
	}
	return err == nil
}
