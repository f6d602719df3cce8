package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sluicecluster/sluice/internal/operators"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// startOperated starts a node without callers that has an admin port.
func startOperated(t *testing.T) *running {
	t.Helper()
	s := testConfig(t)
	s.Admin.Addr, s.Admin.Level = "127.0.0.1:0", new(slog.LevelVar)
	writeRule(t, s.Rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	return startNode(t, s)
}

// operator returns the way to a node by its socket, and the token of its admin port.
func (r *running) operator(t *testing.T) (way operators.Way, token string) {
	t.Helper()
	way, ok := operators.Find("", r.listen.grpc.Addr().String())
	if !ok || way.Token != "" {
		t.Fatalf("the socket is not found: %v", way)
	}
	text, err := os.ReadFile(strings.TrimSuffix(way.String(), ".sock") + ".token")
	do(t, err)
	return way, strings.TrimSpace(string(text))
}

// tcpProxy passes bytes on to to, as HAProxy does in mode tcp.
func tcpProxy(t *testing.T, to net.Addr) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
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
	do(t, err)
	defer conn.Close()
	ctx := t.Context()
	if r.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.token)
	}
	for name, call := range operatorsCalls("auth", []*sluicev1.Entry{{Key: "user", Value: "ann"}}) {
		all++
		switch outcome := byCode(call(ctx, adminv1alpha1.NewAdminServiceClient(conn))); outcome {
		case passed:
			answered = append(answered, name)
		case forbidden, unauthenticated:
		default:
			t.Errorf("%s %s: %s", r.name, name, outcome)
		}
	}
	return answered, all
}

// operatorsCalls are the calls of gRPC that operators have.
func operatorsCalls(domain string, entries []*sluicev1.Entry) map[string]func(context.Context, adminv1alpha1.AdminServiceClient) error {
	return map[string]func(context.Context, adminv1alpha1.AdminServiceClient) error{
		"Top": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.Top(ctx, &adminv1alpha1.TopRequest{})
			return err
		},
		"Inspect": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.Inspect(ctx, &adminv1alpha1.InspectRequest{Domain: domain, Descriptor_: entries})
			return err
		},
		"ForgetMember": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.ForgetMember(ctx, &adminv1alpha1.ForgetMemberRequest{Name: "nobody"})
			return err
		},
		"Bootstrap": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.Bootstrap(ctx, &adminv1alpha1.BootstrapRequest{})
			return err
		},
		"AcceptLoss": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.AcceptLoss(ctx, &adminv1alpha1.AcceptLossRequest{})
			return err
		},
		"PromoteRegion": func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
			_, err := c.PromoteRegion(ctx, &adminv1alpha1.PromoteRegionRequest{Region: "eu", Home: "eu"})
			return err
		},
	}
}

// httpCalls is grpcCalls for HTTP. tools are those that the operators' ways in alone have.
func (r route) httpCalls(t *testing.T, tools bool) (answered []string, all int) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx) }}
	defer transport.CloseIdleConnections()
	const ann = `{"domain":"auth","descriptor":[{"key":"user","value":"ann"}]}`
	calls := []struct{ method, path, body string }{
		{"GET", "/admin/v1alpha1/top", ""}, {"GET", "/console/api/rules", ""}, {"GET", "/console/api/watch", ""}, {"POST", "/console/api/inspect", ann},
		{"POST", "/console/api/inspect/reset", ann}, {"POST", "/admin/v1alpha1/members/forget", `{"name":"nobody"}`}, {"POST", "/console/code", "{}"},
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
		do(t, err)
		req.Host = cmp.Or(r.authority, req.Host)
		req.Header.Set("Content-Type", "application/json")
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
			if c.path == "/admin/v1alpha1/members/forget" {
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
	t.Parallel()
	n := startOperated(t)
	g, h, admin := n.listen.grpc.Addr(), n.listen.http.Addr(), n.listen.admin.Addr()
	way, token := n.operator(t)
	base := strings.TrimSuffix(way.String(), ".sock")
	tcp := func(addr string) func(context.Context) (net.Conn, error) { return anyOf("tcp", addr, "") }
	for _, r := range []route{
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
	} {
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

	for _, r := range []route{
		{name: "the socket", dial: way.Dial},
		{name: "the admin port with the token", dial: tcp(admin.String()), token: token},
	} {
		if answered, all := r.grpcCalls(t); len(answered) != all {
			t.Errorf("gRPC, %s: answered only %v", r.name, answered)
		}
		if answered, all := r.httpCalls(t, true); len(answered) != all {
			t.Errorf("HTTP, %s: answered only %v", r.name, answered)
		}
	}
	// The token is the admin port's alone.
	stray := route{name: "the token at the HTTP port", dial: tcp(h.String()), token: token}
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
	t.Parallel()
	s := testConfig(t)
	s.Admin.Addr, s.Admin.Level = "127.0.0.1:0", new(slog.LevelVar)
	admin, adminDigest := testToken(t, 1)
	reader, readerDigest := testToken(t, 2)
	s.Callers = writeFile(t, fmt.Sprintf("callers:\n  - {name: admin, tokens: [%s], grants: [{domains: [\"*\"], verbs: [admin]}]}\n"+
		"  - {name: reader, tokens: [%s], grants: [{domains: [\"*\"], verbs: [read]}]}\n", adminDigest, readerDigest))
	n := startNode(t, s)
	way, own := n.operator(t)
	port := anyOf("tcp", n.listen.admin.Addr().String(), "")
	const all = 11
	for _, c := range []struct {
		route
		answered int
	}{
		{route{name: "the socket", dial: way.Dial}, all},
		{route{name: "the admin port with the token", dial: port, token: own}, all},
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

// TestOtherPages: what a page of another site, or one that had its name resolved to this node (DNS rebinding), has a browser send is
// rejected on every path but forward auth, whose proxies pass their clients' headers on.
func TestOtherPages(t *testing.T) {
	t.Parallel()
	n := startOperated(t)
	web, admin := n.listen.http.Addr(), n.listen.admin.Addr()
	_, token := n.operator(t)
	const ann = `{"domain":"auth","descriptor":[{"key":"user","value":"ann"}]}`
	n.check(t, "ann")
	gubernator := func(behavior, hits int) string {
		return fmt.Sprintf(`{"requests":[{"name":"n","uniqueKey":"k","hits":%d,"limit":10,"duration":3600000,"behavior":%d}]}`, hits, behavior)
	}
	calls := []struct {
		address            net.Addr
		method, path, body string
	}{
		{web, "POST", "/v1/check", ann}, {web, "POST", "/v1/reset", ann}, {web, "PUT", "/v1/pools/auth/x/load", `{"load":0}`},
		{web, "POST", "/v1/GetRateLimits", gubernator(8, 1)}, {web, "POST", "/v1/GetRateLimits", gubernator(0, -1)},
		{web, "GET", "/v1/HealthCheck", ""}, {web, "GET", "/admin/v1alpha1/members", ""}, {web, "GET", "/admin/v1alpha1/top", ""}, {web, "GET", "/console/api/rules", ""},
		{web, "POST", "/console/api/inspect/reset", ann}, {web, "POST", "/console/login", "{}"}, {web, "GET", "/metrics", ""}, {web, "GET", "/healthz", ""},
		{admin, "PUT", "/loglevel", "debug"}, {admin, "GET", "/debug/pprof/profile?seconds=1", ""}, {admin, "POST", "/admin/v1alpha1/members/forget", `{"name":"n1"}`},
	}
	const evil, rebound = "http://evil.example", "rebind.attacker.example:7461"
	for kind, headers := range map[string][]string{
		"another site":     {"Origin", evil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Content-Type", "text/plain"},
		"an older browser": {"Origin", evil, "Content-Type", "text/plain"},
		"a rebound name":   {"Host", rebound, "Sec-Fetch-Site", "same-origin"},
		"a rebound origin": {"Host", rebound, "Origin", "http://" + rebound},
		"another port":     {"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"},
	} {
		for _, c := range calls {
			shown := slices.Clone(headers)
			if c.address == admin {
				shown = append(shown, "Authorization", "Bearer "+token) // even so
			}
			if resp, text := send(t, c.address, c.method, c.path, c.body, shown...); resp.StatusCode != 403 || !strings.Contains(text, "web page") {
				t.Errorf("%s, %s %s: %d %.100s", kind, c.method, c.path, resp.StatusCode, text)
			}
		}
		resp, text := send(t, web, "GET", "/v1/authorize/auth", "", append(headers, "X-User", "bob")...)
		if resp.StatusCode != 200 && resp.StatusCode != 429 {
			t.Errorf("%s, forward auth: %d %s", kind, resp.StatusCode, text)
		}
	}
	if left := n.left(t, "ann"); left != 1 {
		t.Errorf("%d are left of 2, and 1 was spent", left)
	}
	for path, want := range map[string]int{
		"/debug/pprof/profile?seconds=3600": 400, "/debug/pprof/trace?seconds=61": 400, "/debug/pprof/heap?seconds=NaN": 400,
		"/debug/pprof/trace?seconds=0.01": 200,
	} {
		if resp, text := send(t, admin, "GET", path, "", "Authorization", "Bearer "+token); resp.StatusCode != want {
			t.Errorf("%s: %d %.100s", path, resp.StatusCode, text)
		}
	}
}

// The level of a running logger is read and changed, and what is no level changes nothing.
func TestLogLevel(t *testing.T) {
	var out bytes.Buffer
	level := new(slog.LevelVar)
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
	h := operatorsTools(level, log)
	for _, c := range []struct {
		method, body string
		status       int
		answer       string
		now          slog.Level
	}{
		{"GET", "", 200, "info\n", slog.LevelInfo},
		{"PUT", "debug\n", 200, "debug\n", slog.LevelDebug},
		{"GET", "", 200, "debug\n", slog.LevelDebug},
		{"PUT", "loud", 400, `"loud" is none of`, slog.LevelDebug},
		{"PUT", "error+4", 400, `"error+4" is none of`, slog.LevelDebug}, // it would hide errors
		{"PUT", strings.Repeat("x", 100), 400, "want one of", slog.LevelDebug},
		{"POST", "error", 405, "", slog.LevelDebug},
		{"PUT", "ERROR", 200, "error\n", slog.LevelError},
	} {
		r := httptest.NewRequest(c.method, "/loglevel", strings.NewReader(c.body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) || level.Level() != c.now {
			t.Errorf("%s %q: %d %q, level %v", c.method, c.body, w.Code, w.Body, level.Level())
		}
	}
	if text := out.String(); strings.Count(text, "log level changed") != 1 || !strings.Contains(text, "from=INFO to=DEBUG") {
		t.Errorf("logged:\n%s", text)
	}
	log.Warn("unheard")
	if strings.Contains(out.String(), "unheard") {
		t.Error("a warning was logged at level error")
	}
}
