package forwardauth

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/test/apitest"
)

// TestBadInput: what cannot be made out is rejected with a reason, and nothing is charged.
func TestBadInput(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for _, c := range []struct {
		name   string
		call   call
		status int
		field  string
		reason string
	}{
		{"nothing told", call{path: Prefix + "web"}, 400, "X-Forwarded-Uri", "the request's path is not known: the proxy must send it in this header"},
		{"told by who is not trusted", call{path: Prefix + "web", peer: "192.0.2.1:1", headers: "X-Forwarded-Uri: /x\nX-Forwarded-Method: GET\nX-Forwarded-Host: h"}, 400,
			"X-Forwarded-Uri", "the caller is not among the domain's trusted_proxies"},
		{"no method", call{path: Prefix + "web", headers: "X-Forwarded-Uri: /login\nX-Forwarded-Host: h"}, 400, "X-Forwarded-Method", "the request's method is not known"},
		{"no host", call{path: Prefix + "web", headers: "X-Forwarded-Uri: /login\nX-Forwarded-Method: GET"}, 400, "X-Forwarded-Host", "the request's host is not known"},
		{"told twice", forwarded("GET", "/login", "192.0.2.9", "X-Forwarded-Uri: /"), 400, "X-Forwarded-Uri", "comes more than once"},
		{"method told twice", forwarded("POST", "/login", "192.0.2.9", "X-Forwarded-Method: GET"), 400, "X-Forwarded-Method", "comes more than once"},
		{"told in both ways", call{path: Prefix + "web/", headers: "X-Forwarded-Uri: /login"}, 400, "X-Forwarded-Uri", "the call tells the path too"},
		{"bad escape", forwarded("GET", "/login%zz", "192.0.2.9"), 400, "X-Forwarded-Uri", `invalid URL escape "%zz"`},
		{"half an escape", forwarded("GET", "/login%2", "192.0.2.9"), 400, "X-Forwarded-Uri", `invalid URL escape "%2"`},
		{"no path", forwarded("GET", "login", "192.0.2.9"), 400, "X-Forwarded-Uri", "want a path that begins with /"},
		{"empty path", forwarded("GET", "", "192.0.2.9"), 400, "X-Forwarded-Uri", "want a path that begins with /"},
		{"empty method", forwarded("", "/login", "192.0.2.9"), 400, "X-Forwarded-Method", "not a method"},
		{"two words for a method", forwarded("GET POST", "/login", "192.0.2.9"), 400, "X-Forwarded-Method", "not a method"},
		{"a long method", forwarded(long, "/login", "192.0.2.9"), 400, "X-Forwarded-Method", "not a method"},
		{"a caller without an address", call{path: Prefix + "web/x", peer: "@"}, 400, "client_address", "the caller's address is not known"},
		{"another domain", call{path: Prefix + "shop"}, 404, "", "no rule file in force has authorize for this domain; see https://"},
		{"no domain", call{path: Prefix}, 404, "", "no rule file in force has authorize for this domain"},
		{"a long domain", call{path: Prefix + long}, 404, "", "no rule file in force has authorize for this domain"},
		{"a domain and an asterisk", call{method: "OPTIONS", path: Prefix + "web*"}, 404, "", "no rule file in force has authorize for this domain"},
	} {
		n := apitest.NewNode(t)
		w := ask(open(t, n, web), c.call)
		p := problem(t, w)
		detail, _ := p["detail"].(string)
		field, _ := p["field"].(string)
		if w.Code != c.status || field != c.field || !strings.Contains(detail, c.reason) || len(w.Body.Bytes()) > 1000 {
			t.Errorf("%s: %d %.500s\nwant %d, field %q, reason %q", c.name, w.Code, w.Body, c.status, c.field, c.reason)
		}
		if n.Asked.Load() != 0 {
			t.Errorf("%s: %d checks were decided", c.name, n.Asked.Load())
		}
	}
}

// TestLongAndStrange: what is long or strange and can be counted all the same, is.
func TestLongAndStrange(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for _, c := range []struct {
		name string
		call call
	}{
		{"a long path where only patterns count", forwarded("GET", "/api/"+long, "192.0.2.9")},
		{"a long chain", forwarded("GET", "/api/", strings.Repeat("198.51.100.1, ", 4000)+"192.0.2.9")},
		{"garbage before the client", forwarded("GET", "/api/", long+", 192.0.2.9")},
		{"a header that nobody asked for", forwarded("GET", "/api/", "192.0.2.9", "X-Other: "+long)},
		{"a strange method", forwarded("M-SEARCH", "/api/", "192.0.2.9")},
		{"a strange method of the call's own", call{method: "PROPFIND", path: Prefix + "web/api/", headers: "X-Forwarded-For: 192.0.2.9"}},
	} {
		d := open(t, apitest.NewNode(t), web)
		if w := ask(d, c.call); w.Code != 200 {
			t.Errorf("%s: %d %.500s", c.name, w.Code, w.Body)
		}
		// It was 192.0.2.9's.
		if w := ask(d, forwarded("GET", "/", "192.0.2.9")); w.Header().Get("X-RateLimit-Remaining") != "3" {
			t.Errorf("%s: then %v", c.name, w.Header())
		}
	}
}

// TestForged: a client that knows every header of the API gets past no proxy with them.
func TestForged(t *testing.T) {
	d := open(t, apitest.NewNode(t), web)
	for i := range 5 {
		// What the proxy adds stands behind what its client has sent.
		w := ask(d, forwarded("GET", "/", fmt.Sprintf("203.0.113.%d, 10.0.0.9, 192.0.2.9", i)))
		if want := fmt.Sprint(4 - i); w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != want {
			t.Fatalf("call %d: %d %v", i, w.Code, w.Header())
		}
	}
	for _, from := range []string{"203.0.113.7, 192.0.2.9", "10.0.0.1, 192.0.2.9", "garbage, 192.0.2.9", "::ffff:192.0.2.9", "192.0.2.9:4711", "192.0.2.9\nX-Forwarded-For: 10.0.0.2"} {
		if w := ask(d, forwarded("GET", "/", from)); w.Code != 429 {
			t.Errorf("%q: %d, want 429", from, w.Code)
		}
	}
	// Who is no proxy is taken for itself, whatever it says.
	for i := range 6 {
		want := 200
		if i == 5 {
			want = 429
		}
		w := ask(d, call{path: Prefix + "web/", peer: "198.51.100.7:1", headers: fmt.Sprintf("X-Forwarded-For: 203.0.113.%d\nX-Forwarded-Uri: /free", i)})
		if w.Code != want {
			t.Errorf("a caller that forges, call %d: %d, want %d", i, w.Code, want)
		}
	}
}

// TestWire: the same over a connection, where net/http judges first.
func TestWire(t *testing.T) {
	n := apitest.NewNode(t)
	s := httptest.NewUnstartedServer(open(t, n, strings.Replace(web, "10.0.0.0/8", "127.0.0.1", 1)).Before(http.NotFoundHandler()))
	s.Config.MaxHeaderBytes = 64 << 10
	s.Start()
	defer s.Close()
	const told = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Host: h\r\nX-Forwarded-For: 192.0.2.9\r\n"
	for _, c := range []struct {
		name, line, headers, body string
		status                    int
		charged                   bool
	}{
		{"sound", "GET /v1/authorize/web", told, "", 200, true},
		{"HEAD", "HEAD /v1/authorize/web/x", "", "", 200, true},
		{"a word for a method", "BREW /v1/authorize/web/x", "", "", 200, true},
		{"a body", "POST /v1/authorize/web", told + "Content-Length: 4\r\n", "body", 200, true},
		{"a body that is announced", "POST /v1/authorize/web", told + "Content-Length: 4000000000000\r\nExpect: 100-continue\r\n", "", 200, true},
		{"a method that is none", "G@T /v1/authorize/web/x", "", "", 400, false},
		{"a bad escape in the path", "GET /v1/authorize/web/%zz", "", "", 400, false},
		{"a bad escape in the domain", "GET /v1/authorize/%zz", told, "", 400, false},
		{"a header without end", "GET /v1/authorize/web", told + "X-User: " + strings.Repeat("x", 80<<10) + "\r\n", "", 431, false},
		{"a header with a line break", "GET /v1/authorize/web", told + "X-User: a\rb\r\n", "", 400, false},
		{"CONNECT", "CONNECT web:443", "", "", 404, false},
	} {
		before := n.Asked.Load()
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.line+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"+c.headers+"\r\n"+c.body); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(c.line, " ")
		res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		res.Body.Close()
		conn.Close()
		if res.StatusCode != c.status || (n.Asked.Load() != before) != c.charged {
			t.Errorf("%s: %s, %d checks; want %d", c.name, res.Status, n.Asked.Load()-before, c.status)
		}
	}
}
