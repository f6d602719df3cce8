package access

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// testCluster is a guard whose clock and log the test has.
type testCluster struct {
	*Guard
	now time.Time
	log bytes.Buffer
}

func newTestCluster(t testing.TB, file string) *testCluster {
	w := &testCluster{now: time.Unix(1, 0)}
	var policy *Policy
	if file != "" {
		policy = parse(t, file)
	}
	w.Guard = NewGuard(policy, slog.New(slog.NewTextHandler(&w.log, nil)), func() time.Time { return w.now })
	return w
}

// count is how often something was rejected.
func (w *testCluster) count(d limiter.API, why reason) uint64 {
	return w.seen[d][why].count.Load()
}

func twoTenants(t testing.TB) (file, a, b string) {
	a, da := token(t, 1)
	b, db := token(t, 2)
	return "callers:\n" +
		"  - {name: a, tokens: [" + da.String() + "], certificates: [cn:a], grants: [{domains: [a, 'a/*'], verbs: [check, read]}]}\n" +
		"  - {name: b, tokens: [" + db.String() + "], grants: [{domains: [b], verbs: [check, reset]}]}\n", a, b
}

func TestCredentials(t *testing.T) {
	file, a, b := twoTenants(t)
	outsider, _ := token(t, 3)
	w := newTestCluster(t, file)
	ca := &x509.Certificate{Subject: pkix.Name{CommonName: "a"}}
	unknown := &x509.Certificate{Subject: pkix.Name{CommonName: "somebody"}}
	for _, c := range []struct {
		name          string
		authorization []string
		verified      *x509.Certificate
		unverified    *x509.Certificate
		want          string // who it is, or the reason
	}{
		{name: "nothing", want: "no_credentials"},
		{name: "token", authorization: []string{"Bearer " + a}, want: "a"},
		{name: "any case, several spaces", authorization: []string{"bEARER   " + b + " "}, want: "b"},
		{name: "unknown", authorization: []string{"Bearer " + outsider}, want: "unknown_token"},
		{name: "empty", authorization: []string{""}, want: "malformed"},
		{name: "no scheme", authorization: []string{a}, want: "malformed"},
		{name: "another scheme", authorization: []string{"Basic " + a}, want: "malformed"},
		{name: "no space", authorization: []string{"Bearer" + a}, want: "malformed"},
		{name: "two lines", authorization: []string{"Bearer " + a, "Bearer " + a}, want: "malformed"},
		{name: "a good one after a bad one", authorization: []string{"Bearer " + outsider, "Bearer " + a}, want: "malformed"},
		{name: "two in one", authorization: []string{"Bearer " + a + ", Bearer " + b}, want: "malformed"},
		{name: "cut", authorization: []string{"Bearer " + a[:len(a)-1]}, want: "malformed"},
		{name: "longer", authorization: []string{"Bearer " + a + "A"}, want: "malformed"},
		{name: "the digest", authorization: []string{"Bearer " + strings.Split(file, ", ")[1]}, want: "malformed"},
		{name: "a word", authorization: []string{"Bearer hunter2"}, want: "malformed"},
		{name: "certificate", verified: ca, want: "a"},
		{name: "certificate of an unknown CA", unverified: ca, want: "no_credentials"},
		{name: "certificate that maps to nobody", verified: unknown, want: "unknown_certificate"},
		{name: "token before certificate", authorization: []string{"Bearer " + b}, verified: ca, want: "b"},
		{name: "a wrong token is not made good", authorization: []string{"Bearer " + outsider}, verified: ca, want: "unknown_token"},
	} {
		var state *tls.ConnectionState
		if c.verified != nil {
			state = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.verified}, VerifiedChains: [][]*x509.Certificate{{c.verified}}}
		} else if c.unverified != nil {
			state = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.unverified}}
		}
		r := &http.Request{RemoteAddr: "192.0.2.1:99", Header: http.Header{}, TLS: state}
		proxied := &http.Request{RemoteAddr: "192.0.2.1:99", Header: http.Header{}, TLS: state}
		md := metadata.MD{}
		p := &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 99}}
		for _, v := range c.authorization {
			r.Header.Add("Authorization", v)
			md.Append("authorization", v)
		}
		if state != nil {
			p.AuthInfo = credentials.TLSInfo{State: *state}
		}
		ctx := peer.NewContext(metadata.NewIncomingContext(context.Background(), md), p)
		judge := func(api limiter.API, pass Pass, err *limiter.Error) {
			t.Helper()
			switch {
			case err == nil && pass.Name() != c.want:
				t.Errorf("%s, %v: let in as %q, want %s", c.name, api, pass.Name(), c.want)
			case err != nil && (err.Code != limiter.Unauthenticated || w.count(api, reasonOf(c.want)) == 0):
				t.Errorf("%s, %v: %v, want %s", c.name, api, err, c.want)
			}
		}
		w.seen = [limiter.APIs][reasonCount]rejections{}
		for range 2 { // the second time it may be remembered
			pass, err := w.Call(ctx, limiter.GRPCAPI)
			judge(limiter.GRPCAPI, pass, err)
			pass, err = w.Request(r, limiter.HTTPAPI)
			judge(limiter.HTTPAPI, pass, err)
		}

		// A proxy shows its client's Authorization, which is nobody's business here.
		if c.verified == nil && c.unverified == nil {
			proxied.Header = r.Header.Clone()
			if _, err := w.Proxied(proxied, limiter.ForwardAuthAPI); err == nil || w.count(limiter.ForwardAuthAPI, noCredentials) != 1 {
				t.Errorf("%s: as a proxy's client's: %v", c.name, err)
			}
		}
	}
	if log := w.log.String(); strings.Contains(log, a[7:]) || strings.Contains(log, outsider[7:]) || strings.Contains(log, "hunter2") {
		t.Errorf("the log has a token:\n%s", log)
	}
}

// reasonOf returns the reason of that name, reasonCount for a caller's.
func reasonOf(name string) reason {
	for r := range reasonCount {
		if reasonNames[r] == name {
			return r
		}
	}
	return 0
}

func TestProxies(t *testing.T) {
	file, a, b := twoTenants(t)
	w := newTestCluster(t, file)
	for _, c := range []struct {
		values []string
		want   string
	}{
		{[]string{a}, "a"}, {[]string{b}, "b"}, {[]string{a, b}, ""}, {[]string{"Bearer " + a}, ""}, {[]string{""}, ""}, {nil, ""},
	} {
		r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + b}, TokenHeader: c.values}}
		pass, err := w.Proxied(r, limiter.ForwardAuthAPI)
		if pass.Name() != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v; want %q", c.values, pass.Name(), err, c.want)
		}
	}
}

func TestRestrict(t *testing.T) {
	file, a, _ := twoTenants(t)
	w := newTestCluster(t, file)
	pass := enter(t, w, a)
	fill := func(checks ...limiter.Check) *limiter.Batch {
		b := limiter.NewBatch()
		for _, c := range checks {
			one := b.Add()
			one.Domain, one.Verb = c.Domain, c.Verb
			one.Descriptor = append(one.Descriptor, rules.Entry{Key: "k"})
		}
		return b
	}
	b := fill(limiter.Check{Domain: "a"}, limiter.Check{Domain: "b"}, limiter.Check{Domain: "a", Verb: bucket.Refund},
		limiter.Check{Domain: "a/x", Verb: bucket.Read}, limiter.Check{Domain: "a", Verb: bucket.Verb(99)}, limiter.Check{Domain: ""})
	if err := pass.Restrict(b); err != nil || b.Account != "" || b.Caller != "a" {
		t.Errorf("the whole call: %v, account %q, caller %q", err, b.Account, b.Caller)
	}
	for i, want := range []string{
		"", `the caller a may not check in the domain "b"`, `the caller a may not refund in the domain "a"`, "",
		`the caller a may not admin in the domain "a"`, "the caller a may not check in all domains",
	} {
		got := ""
		if f := b.Checks[i].Err; f != nil {
			got = f.Message
			if f.Code != limiter.Forbidden {
				t.Errorf("check %d: code %v", i, f.Code)
			}
		}
		if got != want {
			t.Errorf("check %d: %q, want %q", i, got, want)
		}
	}
	if err := pass.Restrict(fill(limiter.Check{Domain: "b"}, limiter.Check{Domain: "c"})); err == nil || err.Code != limiter.Forbidden {
		t.Errorf("a call without one that is granted: %v", err)
	}
	if err := pass.Restrict(limiter.NewBatch()); err != nil {
		t.Errorf("an empty call, which is the limiter's to reject: %v", err)
	}
	open := Pass{}
	if err := open.Restrict(b); err != nil {
		t.Error(err)
	}
}

// enter returns the pass of a token.
func enter(t testing.TB, w *testCluster, token string) Pass {
	t.Helper()
	id := Identity{}
	id.take([]string{"Bearer " + token})
	p, err := w.Enter(limiter.GRPCAPI, &id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAnonymous(t *testing.T) {
	file, a, _ := twoTenants(t)
	w := newTestCluster(t, file+"anonymous: [{domains: [public], verbs: [check]}]\n")
	pass, err := w.Enter(limiter.GRPCAPI, &Identity{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pass.May(Check, "public"); err != nil {
		t.Error(err)
	}
	// Credentials may help, so it is not a matter of who they are.
	if err := pass.May(Check, "a"); err == nil || err.Code != limiter.Unauthenticated {
		t.Errorf("in the domain of another: %v", err)
	}
	known := enter(t, w, a)
	if err := known.May(Check, "public"); err != nil {
		t.Errorf("what everybody may: %v", err)
	}
	wrong := Identity{shown: malformedToken}
	if _, err := w.Enter(limiter.GRPCAPI, &wrong); err == nil {
		t.Error("a wrong token was let in as none")
	}
}

// TestTakenAway takes a token away from under a stream, and from calls, whose callers are remembered.
func TestTakenAway(t *testing.T) {
	file, a, b := twoTenants(t)
	w := newTestCluster(t, file)
	var id Identity
	id.take([]string{"Bearer " + a})
	last, err := w.Enter(limiter.GRPCAPI, &id)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := w.Again(last, &id); err != nil || again != last {
		t.Errorf("before: %v, %v", again, err)
	}
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + a}}}
	for range 2 {
		if _, err := w.Request(r, limiter.HTTPAPI); err != nil {
			t.Fatal(err)
		}
	}
	_, db := token(t, 2)
	w.SetPolicy(parse(t, "callers: [{name: b, tokens: ["+db.String()+"], grants: [{domains: [b], verbs: [check]}]}]\n"))
	_, anew := w.Enter(limiter.GRPCAPI, &id)
	_, again := w.Again(last, &id)
	_, request := w.Request(r, limiter.HTTPAPI)
	for what, err := range map[string]*limiter.Error{"anew": anew, "on a stream": again, "of a call": request} {
		if err == nil || err.Code != limiter.Unauthenticated {
			t.Errorf("%s, after it was taken away: %v", what, err)
		}
	}
	pass := enter(t, w, b)
	if err := pass.May(Reset, "b"); err == nil {
		t.Error("a verb that was taken away is there")
	}
}

// TestHeadersRemembered: as many as there are tokens find room, each finds its own caller, and spellings of one take no more.
func TestHeadersRemembered(t *testing.T) {
	const tokens = 200
	var q quick
	q.open(tokens)
	callers := make([]Caller, tokens)
	text := func(i int) []string { return []string{fmt.Sprintf("Bearer %0*d", tokenSize, i)} }
	for i := range callers {
		for range 2 {
			q.add(text(i), &callers[i])
		}
		q.add([]string{strings.ToUpper(text(i)[0])}, &callers[i])
		q.add([]string{text(i)[0], "x"}, &callers[i])
		q.add([]string{text(i)[0] + " "}, &callers[i])
	}
	found, used := 0, 0
	for i := range callers {
		switch q.find(text(i)) {
		case &callers[i]:
			found++
		case nil: // no room near its place
		default:
			t.Fatalf("%d is taken for another", i)
		}
	}
	for i := range q.slots {
		if q.slots[i].Load() != nil {
			used++
		}
	}
	if found < tokens*9/10 || used != found {
		t.Errorf("%d of %d are found, in %d places", found, tokens, used)
	}
	if q.find(text(tokens)) != nil || q.find(nil) != nil || q.find([]string{""}) != nil {
		t.Error("what was not added is found")
	}
	q.open(0)
	q.add(text(1), &callers[1])
}

func TestWithoutPolicy(t *testing.T) {
	w := newTestCluster(t, "")
	for _, g := range []*Guard{nil, w.Guard} {
		pass, err := g.Request(&http.Request{Header: http.Header{"Authorization": {"nonsense"}}}, limiter.HTTPAPI)
		if err != nil {
			t.Fatal(err)
		}
		if err := pass.May(Reset, "any"); err != nil {
			t.Error(err)
		}
		if err := pass.Operate(t.Context(), Admin, ""); err != limiter.ErrNotOperator {
			t.Errorf("an operator's call by somebody else: %v", err)
		}
		if err := pass.Operate(AsOperator(t.Context()), Admin, ""); err != nil {
			t.Errorf("an operator's call: %v", err)
		}
	}
	if n := w.count(limiter.HTTPAPI, notOperator); n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
	// With one, operators need no credentials, and those that are shown go first.
	file, a, _ := twoTenants(t)
	w = newTestCluster(t, file)
	for _, credentials := range []string{"", a} {
		r := (&http.Request{Header: http.Header{}}).WithContext(AsOperator(t.Context()))
		ctx := AsOperator(t.Context())
		if credentials != "" {
			r.Header.Set("Authorization", "Bearer "+credentials)
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+credentials))
		}
		http, errHTTP := w.Request(r, limiter.HTTPAPI)
		grpc, errGRPC := w.Call(ctx, limiter.GRPCAPI)
		if errHTTP != nil || errGRPC != nil {
			t.Fatal(errHTTP, errGRPC)
		}
		for _, pass := range []*Pass{&http, &grpc} {
			may, reset := pass.Operate(ctx, Admin, "") == nil, pass.May(Reset, "b") == nil
			if want := credentials == ""; may != want || reset != want {
				t.Errorf("with credentials %q: operates %v, resets %v", credentials, may, reset)
			}
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	file, a, _ := twoTenants(t)
	w := newTestCluster(t, file)
	pass := enter(t, w, a)
	long := strings.Repeat("x", 1000)
	for range 100 {
		pass.May(Check, long)
		w.now = w.now.Add(time.Second)
	}
	if got := strings.Count(w.log.String(), "\n"); got != 2 {
		t.Errorf("%d lines in 100 s, want 2:\n%s", got, w.log.String())
	}
	for _, want := range []string{"api=grpc reason=not_granted", "verb=check domain=" + strings.Repeat("x", 60) + "… caller=a times=1\n", "caller=a times=60\n"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, w.log.String())
		}
	}
	if n := w.count(limiter.GRPCAPI, notGranted); n != 100 {
		t.Errorf("%d counted, want 100", n)
	}
	// A clock that was set back does not silence it for long.
	w.now = w.now.Add(-time.Hour)
	pass.May(Check, "y")
	if !strings.Contains(w.log.String(), "domain=y") {
		t.Error("nothing is logged after the clock was set back")
	}
}

func FuzzAuthorization(f *testing.F) {
	file, a, b := twoTenants(f)
	w := newTestCluster(f, file)
	f.Add("Bearer "+a, "")
	f.Add("bearer  "+b, a)
	f.Add("Bearer "+a+"\x00", "Basic x")
	f.Fuzz(func(t *testing.T, one, two string) {
		for _, values := range [][]string{{one}, {one, two}} {
			var id Identity
			id.take(values)
			pass, err := w.Enter(limiter.GRPCAPI, &id)
			if err != nil {
				continue
			}
			of := map[string]string{"a": a, "b": b}[pass.Name()]
			if of == "" || len(values) != 1 || !strings.EqualFold(one[:7], "bearer ") || strings.Trim(one[7:], " ") != of {
				t.Errorf("%q was let in as %q", values, pass.Name())
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	file, a, _ := twoTenants(t)
	w := newTestCluster(t, file)
	var id Identity
	id.take([]string{"Bearer " + a})
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + a}}}
	b := limiter.NewBatch()
	b.Add().Domain = "a"
	for _, enter := range []func() (Pass, *limiter.Error){
		func() (Pass, *limiter.Error) { return w.Request(r, limiter.HTTPAPI) },
		func() (Pass, *limiter.Error) { return w.Enter(limiter.GRPCAPI, &id) },
		func() (Pass, *limiter.Error) { return w.Again(Pass{}, &id) },
	} {
		if n := testing.AllocsPerRun(100, func() {
			pass, err := enter()
			if err != nil || pass.Restrict(b) != nil || b.Checks[0].Err != nil {
				t.Fatal("rejected")
			}
		}); n != 0 {
			t.Errorf("%v allocations a call, want 0", n)
		}
	}
	open := NewGuard(nil, slog.Default(), time.Now)
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		pass, err := open.Call(ctx, limiter.GRPCAPI)
		if err != nil || pass.Restrict(b) != nil {
			t.Fatal("rejected")
		}
	}); n != 0 {
		t.Errorf("%v allocations a call without a policy, want 0", n)
	}
}

func BenchmarkGuard(b *testing.B) {
	file, a, _ := twoTenants(b)
	w := newTestCluster(b, file)
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + a}}}
	batch := limiter.NewBatch()
	batch.Add().Domain = "a/x"
	var stream Identity
	stream.take(r.Header["Authorization"])
	b.Run("call", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pass, err := w.Request(r, limiter.HTTPAPI)
			if err != nil || pass.Restrict(batch) != nil {
				b.Fatal("rejected")
			}
		}
	})
	b.Run("request of a stream", func(b *testing.B) {
		last := enter(b, w, a)
		b.ReportAllocs()
		for b.Loop() {
			pass, err := w.Again(last, &stream)
			if err != nil || pass.Restrict(batch) != nil {
				b.Fatal("rejected")
			}
		}
	})
}
