package proxies

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// startNginx runs examples/nginx/nginx.conf at host, with changes: pairs of old and new text.
func startNginx(t *testing.T, host string, changes ...string) *process {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		if os.Getenv("SLUICE_PROXIES") == "required" {
			t.Fatal("nginx is not installed")
		}
		t.Skip("nginx is not installed: apt-get install nginx-light")
	}
	text := example(t, "nginx/nginx.conf", host)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("the example has no %q", changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, path, "-p", dir, "-c", conf, "-e", "stderr", "-g", "daemon off;")
	p.await("listening", func() bool { return listens(host + ":10000") })
	return p
}

func TestNginx(t *testing.T) {
	host := newHost(t)
	node := startSluice(t, host, "nginx/rules")
	startNginx(t, host)
	conversation(t, host, "Too many requests", true)
	ann := client{t, host, "127.0.0.11"}
	if a := ann.ask("GET", "/forbidden"); a.status != 403 || a.body != "not yours\n" {
		t.Errorf("a 403 of the service itself: %+v", a)
	}
	if a := ann.ask("GET", "/sluice"); a.status != 404 {
		t.Errorf("the check itself, asked for from outside: %+v", a)
	}
	node.stop()
	failsClosed(t, host, "no node answers")
}

func TestNginxWithoutDomain(t *testing.T) {
	host := newHost(t)
	startSluice(t, host, "nginx/rules")
	startNginx(t, host, "authorize/web", "authorize/none")
	failsClosed(t, host, "a domain that is not known")
}

// TestNginxWithSlash: a path behind the domain would make one path of all requests.
func TestNginxWithSlash(t *testing.T) {
	host := newHost(t)
	startSluice(t, host, "nginx/rules")
	startNginx(t, host, "authorize/web;", "authorize/web/;")
	failsClosed(t, host, "a slash too many")
}

// TestNginxOpen: with the lines that the example has commented out, requests pass when no node answers, and
// only then.
func TestNginxOpen(t *testing.T) {
	host := newHost(t)
	node := startSluice(t, host, "nginx/rules")
	startNginx(t, host, "# proxy_intercept_errors", "proxy_intercept_errors", "# error_page 500", "error_page 500")
	conversation(t, host, "Too many requests", true)
	node.stop()
	for range 3 {
		if a := (client{t, host, "127.0.0.11"}).ask("POST", "/login", "Content-Length: 0"); a.status != 200 || a.body != "hello\n" {
			t.Errorf("without a node: %+v", a)
		}
	}
}

// countConnections passes connections at from on to another address until the test ends, and counts them.
func countConnections(t *testing.T, from, to string) *atomic.Int64 {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	var running sync.WaitGroup
	open := make(chan net.Conn, 1000)
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			out, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				in.Close()
				return
			}
			open <- in
			open <- out
			pass := func(a, b net.Conn) {
				io.Copy(a, b)
				a.Close()
			}
			running.Go(func() { pass(in, out) })
			running.Go(func() { pass(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		for {
			select {
			case c := <-open:
				c.Close()
				continue
			default:
			}
			break
		}
		running.Wait()
	})
	return &count
}

// TestNginxKeepsConnections: denials go by the connections to sluice that are there, as all other answers.
func TestNginxKeepsConnections(t *testing.T) {
	host := newHost(t)
	startSluice(t, host, "nginx/rules", "--http-port", "8461")
	count := countConnections(t, host+":7461", host+":8461")
	startNginx(t, host)
	ann := client{t, host, "127.0.0.11"}
	denied := 0
	for range 60 {
		if ann.ask("POST", "/login", "Content-Length: 0").status == 429 {
			denied++
		}
	}
	// The two nodes that are not there are tried now and then, and the third again after them.
	if n := count.Load(); denied != 55 || n > 3 {
		t.Errorf("%d denials, and %d connections for 60 requests; want 55, and 3 at most", denied, n)
	}
}
