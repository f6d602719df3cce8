package httplimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicecluster/sluice/client/limit"
)

// counters admit three units of each descriptor.
type counters struct {
	fake
	mu    sync.Mutex
	spent map[string]int64
}

func (c *counters) Check(_ context.Context, q limit.Check) (limit.Decision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spent == nil {
		c.spent = map[string]int64{}
	}
	n, d := c.spent[q.Descriptor[0].Value], allowed
	switch {
	case q.Verb == limit.VerbRefund:
		n = max(0, n-q.Amount)
	case q.Verb == limit.VerbCharge || n+q.Amount <= 3:
		n += q.Amount
	default:
		return denied, nil
	}
	c.spent[q.Descriptor[0].Value] = n
	return d, nil
}

func (c *counters) CheckEach(ctx context.Context, checks ...limit.Check) (all []limit.Decision, err error) {
	for _, q := range checks {
		d, e := c.Check(ctx, q)
		all, err = append(all, d), errors.Join(err, e)
	}
	return all, err
}

// failures are what counts of logins.
func failures(status int) int64 {
	if status == http.StatusUnauthorized {
		return 1
	}
	return 0
}

// TestParallelGuesses: of a hundred wrong passwords at once, three are tried; and a success makes room at once.
func TestParallelGuesses(t *testing.T) {
	c := &counters{}
	var guesses atomic.Int32
	login := Middleware(c, Config{Domain: "auth", Keys: []Key{Header("user", "X-User")}, ChargeIf: failures})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Password") != "right" {
				guesses.Add(1)
				w.WriteHeader(http.StatusUnauthorized)
			}
		}))
	try := func(user, password string) int {
		r := request(user)
		r.Header.Set("X-Password", password)
		w := httptest.NewRecorder()
		login.ServeHTTP(w, r)
		return w.Code
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { try("anna", "wrong") })
	}
	all.Wait()
	if n := guesses.Load(); n != 3 {
		t.Errorf("%d guesses, want 3", n)
	}
	if got := try("anna", "right"); got != 429 {
		t.Errorf("after three guesses: %d", got)
	}
	for i := range 10 {
		if got := try("bob", "right"); got != 200 {
			t.Fatalf("login %d: %d", i, got)
		}
	}
	for i, want := range []int{401, 401, 401, 429} {
		if got := try("bob", "wrong"); got != want {
			t.Errorf("guess %d: %d, want %d", i, got, want)
		}
	}
}

// TestSettles: what is given back or charged, by what was spent.
func TestSettles(t *testing.T) {
	with := func(change func(*limit.Decision)) limit.Decision {
		d := allowed
		change(&d)
		return d
	}
	for _, c := range []struct {
		name string
		d    limit.Decision
		cost int64
		want string
	}{
		{"less", allowed, 1, "refund 2"},
		{"nothing", allowed, -1, "refund 3"},
		{"the same", allowed, 3, ""},
		{"more", allowed, 7, "charge 4"},
		{"by the soft margin", with(func(d *limit.Decision) { d.Verdict = limit.VerdictSoft }), 0, "refund 3"},
		{"denied in shadow mode", with(func(d *limit.Decision) { d.Verdict = limit.VerdictShadow }), 0, ""},
		{"by a pool", with(func(d *limit.Decision) { d.Verdict = limit.VerdictElastic }), 0, ""},
		{"by a failure policy", with(func(d *limit.Decision) { d.Degraded = limit.ErrUnavailable }), 0, ""},
		{"no limit", limit.Decision{Allowed: true, Verdict: limit.VerdictAllowed, Source: limit.SourceUnmatched}, 0, ""},
	} {
		f := always(c.d)
		serve(t, f, Config{Amount: func(*http.Request) int64 { return 3 }, ChargeIf: func(int) int64 { return c.cost }}, request("anna"))
		got := ""
		for _, q := range f.after {
			got += fmt.Sprint(q.Verb, " ", q.Amount)
			if q.Domain != "shop" || q.Descriptor[0].Value != "anna" || q.Validate() != nil {
				t.Errorf("%s: %+v", c.name, q)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	shadow := with(func(d *limit.Decision) { d.Verdict = limit.VerdictShadow })
	f := &fake{answer: func(c limit.Check) (limit.Decision, error) {
		if c.Descriptor[0].Key == "ip" {
			return shadow, nil
		}
		return allowed, nil
	}}
	serve(t, f, Config{Keys: []Key{IP(), Header("user", "X-User")}, ChargeIf: failures}, request("anna"))
	if len(f.after) != 1 || f.after[0].Descriptor[0].Key != "user" {
		t.Errorf("of a rule in shadow mode and another: %+v", f.after)
	}
	for name, c := range map[string]*fake{"denied": always(denied), "failed": {answer: func(limit.Check) (limit.Decision, error) { return limit.Decision{}, limit.ErrForbidden }}} {
		if serve(t, c, Config{ChargeIf: failures}, request("anna")); len(c.after) != 0 {
			t.Errorf("%s: %+v", name, c.after)
		}
	}
}

// TestOutlives: a request that has ended is settled, and one whose handler panics stays spent.
func TestOutlives(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	ctx, cancel := context.WithCancel(t.Context())
	l := &ended{fake: always(allowed)}
	config := Config{Domain: "shop", Keys: []Key{IP()}, ChargeIf: failures}
	Middleware(l, config)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() })).
		ServeHTTP(httptest.NewRecorder(), request("").WithContext(ctx))
	if l.err != nil || l.calls != 1 {
		t.Errorf("settled in a context with %v, %d times", l.err, l.calls)
	}
	if !strings.Contains(log.String(), "an outcome was not counted") {
		t.Errorf("a refund that failed is logged as %q", log.String())
	}
	defer func() {
		if recover() == nil || l.calls != 1 {
			t.Errorf("settled %d times", l.calls)
		}
	}()
	Middleware(l, config)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("handler") })).
		ServeHTTP(httptest.NewRecorder(), request(""))
}

// ended fails to settle, and keeps the state of the context.
type ended struct {
	*fake
	err   error
	calls int
}

func (e *ended) CheckEach(ctx context.Context, _ ...limit.Check) ([]limit.Decision, error) {
	e.err, e.calls = ctx.Err(), e.calls+1
	return nil, limit.ErrUnavailable
}

// TestStatus: the status that is settled by, and that handlers can do what they do without it.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w http.ResponseWriter)
		want int
	}{
		{"nothing", func(http.ResponseWriter) {}, 200},
		{"a body", func(w http.ResponseWriter) { fmt.Fprint(w, "x"); w.WriteHeader(401) }, 200},
		{"a status", func(w http.ResponseWriter) { w.WriteHeader(401); w.WriteHeader(500) }, 401},
		{"early hints", func(w http.ResponseWriter) { w.WriteHeader(103); w.WriteHeader(401) }, 401},
		{"flushed by assertion", func(w http.ResponseWriter) { w.(http.Flusher).Flush(); w.WriteHeader(401) }, 200},
		{"flushed by controller", func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		}, 200},
		{"full duplex", func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			w.WriteHeader(401)
		}, 401},
		{"hijacked by assertion", func(w http.ResponseWriter) { switchProtocols(t, w.(http.Hijacker).Hijack) }, 101},
		{"hijacked by controller", func(w http.ResponseWriter) { switchProtocols(t, http.NewResponseController(w).Hijack) }, 101},
	} {
		got := make(chan int, 1)
		server := httptest.NewUnstartedServer(Middleware(always(allowed), Config{
			Domain: "shop", Keys: []Key{IP()}, ChargeIf: func(status int) int64 { got <- status; return 1 },
		})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.do(w) })))
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // of a second WriteHeader
		server.Start()
		r, err := http.NewRequest("GET", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		res.Body.Close()
		if status := <-got; status != c.want || res.StatusCode != c.want {
			t.Errorf("%s: settled by %d, the client got %d, want %d", c.name, status, res.StatusCode, c.want)
		}
		server.Close()
	}
}

// TestNoHijack: a ResponseWriter that cannot be hijacked says so, and the status is that of the response.
func TestNoHijack(t *testing.T) {
	got := 0
	Middleware(always(allowed), Config{Domain: "shop", Keys: []Key{IP()}, ChargeIf: func(status int) int64 { got = status; return 1 }})(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%v", err)
			}
			w.WriteHeader(http.StatusNotImplemented)
		})).ServeHTTP(httptest.NewRecorder(), request(""))
	if got != http.StatusNotImplemented {
		t.Errorf("settled by %d", got)
	}
}

func switchProtocols(t *testing.T, hijack func() (net.Conn, *bufio.ReadWriter, error)) {
	conn, _, err := hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
}
