package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/internal/operators"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// startOperated starts a node without callers that has an admin port.
func startOperated(t *testing.T) *running {
	t.Helper()
	s := testSettings(t)
	s.admin.addr, s.admin.level = "127.0.0.1:0", new(slog.LevelVar)
	writeRule(t, s.rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	return startNode(t, s)
}

// tcpProxy passes bytes on to to, as HAProxy does in mode tcp.
func tcpProxy(t *testing.T, to net.Addr) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial(to.Network(), to.String())
			if err != nil {
				from.Close()
				continue
			}
			context.AfterFunc(ctx, func() { from.Close(); back.Close() })
			go func() { _, _ = io.Copy(back, from); back.Close() }()
			go func() { _, _ = io.Copy(from, back); from.Close() }()
		}
	}()
	return l.Addr().String()
}

// httpProxy passes requests on to to and adds no header, as nginx with proxy_pass, or for HTTP/2 with grpc_pass, and as HAProxy in
// mode http.
func httpProxy(t *testing.T, to net.Addr, http2 bool) (addr string) {
	t.Helper()
	var p http.Protocols
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: &p}
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: to.String()}) },
		Transport: transport,
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	})
	server.Config.Protocols = &p
	server.Start()
	t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	return server.Listener.Addr().String()
}

// anyOf dials a fixed address, from another if that is not empty.
func anyOf(network, address, from string) func(context.Context) (net.Conn, error) {
	var d net.Dialer
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, network, address) }
}

// route is a way to a node, for gRPC or for HTTP.
type route struct {
	name string
	dial func(context.Context) (net.Conn, error)
	// token is shown, and authority is what the node is called; both may be empty.
	token, authority string
}

// grpcCalls makes each operator's call and returns those that were answered.
func (r route) grpcCalls(t *testing.T) (answered []string, all int) {
	t.Helper()
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) }),
	}
	if r.authority != "" {
		options = append(options, grpc.WithAuthority(r.authority))
	}
	conn, err := grpc.NewClient("passthrough:///localhost", options...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := t.Context()
	if r.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.token)
	}
	c := sluicev1.NewSluiceServiceClient(conn)
	for name, call := range map[string]func() error{
		"Top": func() error { _, err := c.Top(ctx, &sluicev1.TopRequest{}); return err },
		"Inspect": func() error {
			_, err := c.Inspect(ctx, &sluicev1.InspectRequest{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "ann"}}})
			return err
		},
		"ForgetMember": func() error { _, err := c.ForgetMember(ctx, &sluicev1.ForgetMemberRequest{Name: "nobody"}); return err },
		"Bootstrap":    func() error { _, err := c.Bootstrap(ctx, &sluicev1.BootstrapRequest{}); return err },
		"AcceptLoss":   func() error { _, err := c.AcceptLoss(ctx, &sluicev1.AcceptLossRequest{}); return err },
	} {
		all++
		switch err := call(); status.Code(err) {
		case codes.OK, codes.NotFound, codes.FailedPrecondition: // what is behind the permission
			answered = append(answered, name)
		case codes.PermissionDenied, codes.Unauthenticated:
		default:
			t.Errorf("%s %s: %v", r.name, name, err)
		}
	}
	return answered, all
}

// httpCalls is grpcCalls for HTTP. tools are those that the operators' ways in alone have.
func (r route) httpCalls(t *testing.T, tools bool) (answered []string, all int) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx) }}
	defer transport.CloseIdleConnections()
	const ann = `{"domain":"auth","descriptor":[{"key":"user","value":"ann"}]}`
	calls := []struct{ method, path, body string }{
		{"GET", "/v1/top", ""}, {"GET", "/v1/rules", ""}, {"GET", "/v1/watch", ""}, {"POST", "/v1/inspect", ann},
		{"POST", "/v1/inspect/reset", ann}, {"POST", "/v1/members/forget", `{"name":"nobody"}`}, {"POST", "/console/code", "{}"},
	}
	if tools {
		calls = append(calls, []struct{ method, path, body string }{
			{"GET", "/loglevel", ""}, {"PUT", "/loglevel", "info"}, {"GET", "/debug/pprof/cmdline", ""}, {"GET", "/debug/pprof/goroutine?debug=1", ""},
		}...)
	}
	for _, c := range calls {
		all++
		ctx, cancel := context.WithCancel(t.Context()) // watching does not end by itself
		req, err := http.NewRequestWithContext(ctx, c.method, "http://localhost"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if r.authority != "" {
			req.Host = r.authority
		}
		if c.method == "POST" {
			req.Header.Set("Content-Type", "application/json")
		}
		if r.token != "" {
			req.Header.Set("Authorization", "Bearer "+r.token)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Errorf("%s %s: %v", r.name, c.path, err)
			cancel()
			continue
		}
		switch resp.StatusCode {
		case http.StatusOK:
			answered = append(answered, c.path)
		case http.StatusNotFound: // nobody is to be forgotten; or there is nothing at the path
			if c.path == "/v1/members/forget" {
				answered = append(answered, c.path)
			}
		case http.StatusUnauthorized, http.StatusForbidden:
		default:
			t.Errorf("%s %s: %s", r.name, c.path, resp.Status)
		}
		cancel()
		resp.Body.Close()
	}
	return answered, all
}

// TestOperatorsAreIdentified: where a call comes from makes nobody an operator; the socket and the token do.
func TestOperatorsAreIdentified(t *testing.T) {
	n := startOperated(t)
	g, h, admin := n.listen.grpc.Addr(), n.listen.http.Addr(), n.listen.admin.Addr()
	tcp := func(addr string) func(context.Context) (net.Conn, error) { return anyOf("tcp", addr, "") }
	grpcRoutes := []route{
		{name: "loopback", dial: tcp(g.String())},
		{name: "from an inbound sidecar's address", dial: anyOf("tcp", g.String(), "127.0.0.6")},
		{name: "foreign authority", dial: tcp(g.String()), authority: "evil.example"},
		{name: "loopback authority", dial: tcp(g.String()), authority: "127.0.0.1"},
		{name: "TCP proxy", dial: tcp(tcpProxy(t, g))},
		{name: "HTTP/2 proxy", dial: tcp(httpProxy(t, g, true))},
		{name: "with some token", dial: tcp(g.String()), token: "sluice_x"},
		{name: "admin port", dial: tcp(admin.String())},
		{name: "admin port through a TCP proxy", dial: tcp(tcpProxy(t, admin))},
		{name: "admin port through an HTTP/2 proxy", dial: tcp(httpProxy(t, admin, true))},
	}
	for _, r := range grpcRoutes {
		if answered, _ := r.grpcCalls(t); len(answered) > 0 {
			t.Errorf("gRPC, %s: answered %v", r.name, answered)
		}
	}
	for _, r := range []route{
		{name: "loopback", dial: tcp(h.String())},
		{name: "from an inbound sidecar's address", dial: anyOf("tcp", h.String(), "127.0.0.6")},
		{name: "foreign host", dial: tcp(h.String()), authority: "evil.example"},
		{name: "TCP proxy", dial: tcp(tcpProxy(t, h))},
		{name: "HTTP proxy", dial: tcp(httpProxy(t, h, false))},
		{name: "HTTP proxy that keeps the host", dial: tcp(httpProxy(t, h, false)), authority: "127.0.0.1"},
		{name: "admin port", dial: tcp(admin.String())},
		{name: "admin port through a TCP proxy", dial: tcp(tcpProxy(t, admin))},
		{name: "admin port through an HTTP proxy", dial: tcp(httpProxy(t, admin, false))},
	} {
		if answered, _ := r.httpCalls(t, true); len(answered) > 0 {
			t.Errorf("HTTP, %s: answered %v", r.name, answered)
		}
	}

	way, ok := operators.Find("", g.String())
	if !ok || way.Token != "" {
		t.Fatalf("the socket is not found: %v", way)
	}
	base := strings.TrimSuffix(way.String(), ".sock")
	token, err := os.ReadFile(base + ".token")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []route{
		{name: "the socket", dial: way.Dial},
		{name: "the admin port with the token", dial: tcp(admin.String()), token: strings.TrimSpace(string(token))},
	} {
		if answered, all := r.grpcCalls(t); len(answered) != all {
			t.Errorf("gRPC, %s: answered only %v", r.name, answered)
		}
		if answered, all := r.httpCalls(t, true); len(answered) != all {
			t.Errorf("HTTP, %s: answered only %v", r.name, answered)
		}
	}
	// The token is the admin port's alone.
	stray := route{name: "the token at the HTTP port", dial: tcp(h.String()), token: strings.TrimSpace(string(token))}
	if answered, _ := stray.httpCalls(t, false); len(answered) > 0 {
		t.Errorf("%s: answered %v", stray.name, answered)
	}

	for _, file := range []string{".sock", ".token", ".admin"} {
		if info, err := os.Stat(base + file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s%s: %v %v", base, file, info, err)
		}
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	for _, file := range []string{".sock", ".token", ".admin"} {
		if _, err := os.Stat(base + file); !os.IsNotExist(err) {
			t.Errorf("%s%s is left behind: %v", base, file, err)
		}
	}
}

// TestOperatorsAndCallers: with callers, the socket and the token are as good as before, and the admin port takes callers with the
// verb admin too.
func TestOperatorsAndCallers(t *testing.T) {
	s := testSettings(t)
	s.admin.addr, s.admin.level = "127.0.0.1:0", new(slog.LevelVar)
	admin, adminDigest := testToken(t, 1)
	reader, readerDigest := testToken(t, 2)
	s.callers = writeFile(t, fmt.Sprintf("callers:\n  - {name: admin, tokens: [%s], grants: [{domains: [\"*\"], verbs: [admin]}]}\n"+
		"  - {name: reader, tokens: [%s], grants: [{domains: [\"*\"], verbs: [read]}]}\n", adminDigest, readerDigest))
	n := startNode(t, s)
	way, ok := operators.Find("", n.listen.grpc.Addr().String())
	if !ok {
		t.Fatal("the socket is not found")
	}
	own, err := os.ReadFile(strings.TrimSuffix(way.String(), ".sock") + ".token")
	if err != nil {
		t.Fatal(err)
	}
	port := anyOf("tcp", n.listen.admin.Addr().String(), "")
	const all = 11
	for _, c := range []struct {
		route
		answered int
	}{
		{route{name: "the socket", dial: way.Dial}, all},
		{route{name: "the admin port with the token", dial: port, token: strings.TrimSpace(string(own))}, all},
		{route{name: "the admin port without", dial: port}, 0},
		{route{name: "the admin port, by a reader", dial: port, token: reader}, 0},
		{route{name: "the admin port, by an admin", dial: port, token: admin}, 5},      // forget and the tools
		{route{name: "the socket, as a reader", dial: way.Dial, token: reader}, 4 + 4}, // top, rules, watch, inspect and the tools
		{route{name: "the HTTP port", dial: anyOf("tcp", n.listen.http.Addr().String(), "")}, 0},
	} {
		if answered, _ := c.httpCalls(t, true); len(answered) != c.answered {
			t.Errorf("%s: answered %v, want %d", c.name, answered, c.answered)
		}
	}
}

// TestOperatorsCommands: the commands find the socket, or else the token, by the address alone; who is not the operator is told
// what to do.
func TestOperatorsCommands(t *testing.T) {
	n := startOperated(t)
	addr := n.listen.grpc.Addr().String()
	commands := [][]string{
		{"members"}, {"members", "forget", "nobody"}, {"members", "accept-loss", "--yes"}, {"members", "bootstrap", "--yes"},
		{"top", "--once"}, {"inspect", "auth", "user=ann"}, {"console"},
	}
	// What the node itself refuses.
	reasons := map[string]string{"forget": "not in the stable set", "bootstrap": "quorum"}
	all := func(kind string) {
		for _, args := range commands {
			code, out, errs := cli(append(args, "--addr", addr)...)
			if want := reasons[args[min(1, len(args)-1)]]; want != "" {
				if code != exitDenied || !strings.Contains(errs, want) {
					t.Errorf("%s, %v: %d %s", kind, args, code, errs)
				}
			} else if code != 0 || out == "" {
				t.Errorf("%s, %v: %d %s", kind, args, code, errs)
			}
		}
	}
	all("socket")
	nobody := t.TempDir()
	for _, args := range commands[1:] {
		code, _, errs := cli(append(args, "--addr", addr, "--operators-dir", nobody)...)
		if code == 0 || !strings.Contains(errs, "--operators-dir") || !strings.Contains(errs, nobody) {
			t.Errorf("by another user, %v: %d %s", args, code, errs)
		}
	}
	if code, _, errs := cli("members", "--addr", addr, "--operators-dir", nobody); code != 0 {
		t.Errorf("members by another user: %d %s", code, errs)
	}
	if err := os.Remove(n.operators.place.Socket()); err != nil {
		t.Fatal(err)
	}
	all("token")
}

// TestConsoleLogin: the address that `sluice console` prints gives a browser a session, once.
func TestConsoleLogin(t *testing.T) {
	n := startOperated(t)
	code, out, errs := cli("console", "--addr", n.listen.grpc.Addr().String())
	base := "http://" + n.listen.http.Addr().String()
	login, ok := strings.CutPrefix(strings.TrimSpace(out), base+"/console#login=")
	if code != 0 || !ok {
		t.Fatalf("%d %q %s", code, out, errs)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	defer browser.CloseIdleConnections()
	status := func(method, path, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		resp, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status("GET", "/v1/rules", ""); got != 401 {
		t.Errorf("before the login: %d", got)
	}
	if got := status("POST", "/console/login", `{"code":"`+login+`"}`); got != 204 {
		t.Errorf("login: %d", got)
	}
	if got := status("GET", "/v1/rules", ""); got != 200 {
		t.Errorf("after the login: %d", got)
	}
	// The session is the console's.
	for _, path := range []string{"/v1/top", "/v1/members/forget", "/console/code"} {
		method := "POST"
		if path == "/v1/top" {
			method = "GET"
		}
		if got := status(method, path, `{"name":"nobody"}`); got != 403 {
			t.Errorf("%s in a console's session: %d", path, got)
		}
	}
	if got := status("POST", "/console/logout", "{}"); got != 204 {
		t.Errorf("logout: %d", got)
	}
	if got := status("GET", "/v1/rules", ""); got != 401 {
		t.Errorf("after the logout: %d", got)
	}
	if got := status("POST", "/console/login", `{"code":"`+login+`"}`); got != 401 {
		t.Errorf("the same login again: %d", got)
	}
}

// TestOtherPages: what a page of another site, or one that had its name resolved to this node (DNS rebinding), has a browser send is
// rejected on every path but forward auth, whose proxies pass their clients' headers on.
func TestOtherPages(t *testing.T) {
	n := startOperated(t)
	web, admin := n.listen.http.Addr().String(), n.listen.admin.Addr().String()
	token, err := os.ReadFile(strings.TrimSuffix(n.operators.place.Socket(), ".sock") + ".token")
	if err != nil {
		t.Fatal(err)
	}
	remaining := func() string {
		t.Helper()
		resp, err := http.Post("http://"+web+"/v1/check", "", strings.NewReader(`{"domain":"auth","verb":"read","descriptor":[{"key":"user","value":"ann"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`"remaining":\d+`).FindString(string(body))
	}
	send := func(address, method, path, body string, headers map[string]string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range headers {
			if name == "Host" {
				req.Host = value
			} else {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	const ann = `{"domain":"auth","descriptor":[{"key":"user","value":"ann"}]}`
	if code, text := send(web, "POST", "/v1/check", ann, nil); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	before := remaining()
	gubernator := func(behavior, hits int) string {
		return fmt.Sprintf(`{"requests":[{"name":"n","uniqueKey":"k","hits":%d,"limit":10,"duration":3600000,"behavior":%d}]}`, hits, behavior)
	}
	calls := []struct{ address, method, path, body string }{
		{web, "POST", "/v1/check", ann}, {web, "POST", "/v1/reset", ann}, {web, "PUT", "/v1/pools/auth/x/load", `{"load":0}`},
		{web, "POST", "/v1/GetRateLimits", gubernator(8, 1)}, {web, "POST", "/v1/GetRateLimits", gubernator(0, -1)},
		{web, "GET", "/v1/HealthCheck", ""}, {web, "GET", "/v1/members", ""}, {web, "GET", "/v1/top", ""}, {web, "GET", "/v1/rules", ""},
		{web, "POST", "/v1/inspect/reset", ann}, {web, "POST", "/console/login", "{}"}, {web, "GET", "/metrics", ""}, {web, "GET", "/healthz", ""},
		{admin, "PUT", "/loglevel", "debug"}, {admin, "GET", "/debug/pprof/profile?seconds=1", ""}, {admin, "POST", "/v1/members/forget", `{"name":"n1"}`},
	}
	for kind, headers := range map[string]map[string]string{
		"another site":     {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Content-Type": "text/plain"},
		"an older browser": {"Origin": "http://evil.example", "Content-Type": "text/plain"},
		"a rebound name":   {"Host": "rebind.attacker.example:7461", "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"},
		"a rebound origin": {"Host": "rebind.attacker.example:7461", "Origin": "http://rebind.attacker.example:7461", "Content-Type": "application/json"},
		"another port":     {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
	} {
		for _, c := range calls {
			if c.address == admin {
				headers["Authorization"] = "Bearer " + strings.TrimSpace(string(token)) // even so
			} else {
				delete(headers, "Authorization")
			}
			if code, text := send(c.address, c.method, c.path, c.body, headers); code != 403 || !strings.Contains(text, "web page") {
				t.Errorf("%s, %s %s: %d %.100s", kind, c.method, c.path, code, text)
			}
		}
		headers["X-User"] = "bob"
		if code, text := send(web, "GET", "/v1/authorize/auth", "", headers); code != 200 && code != 429 {
			t.Errorf("%s, forward auth: %d %s", kind, code, text)
		}
	}
	if after := remaining(); after != before || before == "" {
		t.Errorf("%q is left, and was %q before", after, before)
	}
	for path, want := range map[string]int{
		"/debug/pprof/profile?seconds=3600": 400, "/debug/pprof/trace?seconds=61": 400, "/debug/pprof/heap?seconds=NaN": 400,
		"/debug/pprof/trace?seconds=0.01": 200,
	} {
		if code, text := send(admin, "GET", path, "", map[string]string{"Authorization": "Bearer " + strings.TrimSpace(string(token))}); code != want {
			t.Errorf("%s: %d %.100s", path, code, text)
		}
	}
}
