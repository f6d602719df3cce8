package proxies

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// client asks a proxy at port 10000 from an address of its own.
type client struct {
	t           *testing.T
	host, local string
}

// answer is what it hears.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one request whose target is not touched: no client cleans its path. headers are "Name: value".
func (c client) ask(method, target string, headers ...string) answer {
	c.t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.local)}}
	conn, err := from.Dial("tcp", c.host+":10000")
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	lines := append([]string{method + " " + target + " HTTP/1.1", "Host: shop.example", "Connection: close"}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		c.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, target, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, target, err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

// conversation asks a proxy that runs an example, before a node with the rules beside it, until the
// login of one client is spent. rejected is a part of what who is rejected reads; tells says whether
// others hear what is left.
func conversation(t *testing.T, host, rejected string, tells bool) {
	t.Helper()
	ann, bob := client{t, host, "127.0.0.11"}, client{t, host, "127.0.0.12"}

	a := ann.ask("GET", "/")
	if a.status != 200 || !strings.Contains(a.body, "hello") {
		t.Fatalf("the first request: %+v", a)
	}
	if got := a.header.Get("RateLimit-Policy"); tells && got != `"per-client";q=300;w=60` {
		t.Errorf("RateLimit-Policy is %q", got)
	}
	if got := a.header.Get("RateLimit"); tells && !strings.HasPrefix(got, `"per-client";r=299;t=`) {
		t.Errorf("RateLimit is %q", got)
	}
	a = ann.ask("GET", "/api/things?x=1", "X-Api-Key: k1")
	if got := a.header.Get("RateLimit"); a.status != 200 || tells && !strings.Contains(got, `"api-per-key";r=59;t=`) {
		t.Errorf("with an API key: %+v", a)
	}

	// Detours to one path are that path.
	for i, target := range []string{"/login", "//login", "/x/../login?next=/", "/%6cogin", "/./login"} {
		a := ann.ask("POST", target, "Content-Length: 0")
		if a.status != 200 {
			t.Errorf("login %d, %s: %+v", i, target, a)
		}
	}
	// The sixth is rejected, whatever it says of itself.
	for _, headers := range [][]string{
		nil,
		{"X-Forwarded-For: 203.0.113.9"},
		{"X-Forwarded-For: 127.0.0.1"},
		{"X-Forwarded-For: 203.0.113.9, 127.0.0.1", "X-Forwarded-For: garbage"},
		{"X-Forwarded-Uri: /", "X-Forwarded-Method: GET", "X-Forwarded-Host: other.example"},
		{"x-forwarded-uri: /", "X-FORWARDED-URI: /free"},
		{"X-Original-URI: /", "X-Original-URL: http://x/", "X-Original-Method: GET", "Forwarded: for=203.0.113.9"},
		{"X-Api-Key: k2"},
	} {
		a := ann.ask("POST", "/login", append(headers, "Content-Length: 0")...)
		if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, rejected) {
			t.Errorf("the sixth login with %q: %+v", headers, a)
		}
		if got := a.header.Get("RateLimit"); !strings.Contains(got, `"login-per-client";r=0;t=`) {
			t.Errorf("the sixth login with %q: RateLimit is %q", headers, got)
		}
	}
	if a := ann.ask("GET", "/"); a.status != 200 {
		t.Errorf("another path of who may log in no more: %+v", a)
	}
	if a := bob.ask("POST", "/login", "Content-Length: 4\r\n\r\nbody"); a.status != 200 {
		t.Errorf("somebody else's login: %+v", a)
	}
	// A long key is counted like any other; its limit does not go away.
	long := "X-Api-Key: " + strings.Repeat("k", 2000)
	if a := bob.ask("GET", "/api/x", long); a.status != 200 || tells && !strings.Contains(a.header.Get("RateLimit"), `"api-per-key";r=59;t=`) {
		t.Errorf("a long key: %+v", a)
	}
}

// failsClosed asks a proxy whose node does not answer for the domain, or at all.
func failsClosed(t *testing.T, host, why string) {
	t.Helper()
	for _, target := range []string{"/", "/login"} {
		a := client{t, host, "127.0.0.11"}.ask("GET", target)
		if a.status < 400 || strings.Contains(a.body, "hello") {
			t.Errorf("%s, %s: %+v, want a rejection", why, target, a)
		}
	}
}
