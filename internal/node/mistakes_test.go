package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
)

// mistakeRules are those of TestMistakes.
const mistakeRules = `domain: shop
descriptors:
  - key: user
    limits: [{name: hourly, count: 3, period: 1h}]
  - key: queue
    limits: [{algorithm: leaky_queue, count: 1, period: 1m, burst: 20}]
  - key: login
    on_failure: closed
    cache_denials: false
    limits: [{count: 3, period: 1h}]
  - key: bill
    limits: [{count: 100, period: 1h}]
  - key: closed
    limits: [{count: 0, period: 1h}]
    response: {status: 503, body: closed}
`

// logLines is a log that a test reads.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// count returns in how many lines text is.
func (l *logLines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// newClient returns a client of target, and its log.
func newClient(t *testing.T, target string, options ...sluice.Option) (*sluice.Client, *logLines) {
	t.Helper()
	log := &logLines{}
	options = append([]sluice.Option{sluice.WithTimeout(time.Minute), sluice.WithLogger(slog.New(slog.NewTextHandler(log, nil)))}, options...)
	c, err := sluice.New(target, options...)
	do(t, err)
	t.Cleanup(func() { c.Close() })
	return c, log
}

// TestMistakes: what users of the Go client get wrong is told to them, with what to do, and never looks like a success. The
// names are those of the experiments that once ended otherwise.
func TestMistakes(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, mistakeRules)
	n := startNode(t, s)
	addr := n.listen.grpc.Addr().String()
	c, log := newClient(t, addr)
	do(t, c.Ready(t.Context()))
	// outage asks through another client that reaches nothing, and expects one line of log, and why.
	outage := func(target, why string) func(*testing.T) {
		return func(t *testing.T) {
			bad, log := newClient(t, target, sluice.WithTimeout(300*time.Millisecond))
			await(t, "told: "+why, func() bool { // gRPC waits a second for more of a response of HTTP
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				err := bad.Ready(ctx)
				return errors.Is(err, sluice.ErrUnavailable) && strings.Contains(err.Error(), why)
			})
			for range 3 {
				d, err := bad.Key("shop", "user", "a").Check(t.Context(), 1)
				if err != nil || d.Source != limit.SourceFailOpen || !errors.Is(d.Degraded, sluice.ErrUnavailable) || !strings.Contains(d.Degraded.Error(), why) {
					t.Errorf("%+v, %v", d, err)
				}
			}
			if got := log.count("no node answers"); got != 1 || log.count(why) != 1 {
				t.Errorf("%d lines of log: %s", got, log.text.String())
			}
		}
	}
	t.Run("a: a port where nobody listens", outage("127.0.0.1:1", "connection refused"))
	t.Run("a2: the HTTP port", outage(n.listen.http.Addr().String(), "is not the gRPC API of a node, whose port is 7460 by default"))
	for name, key := range map[string]sluice.Key{
		"an unknown domain": c.Key("shopp", "user", "a"), "an unknown key": c.Key("shop", "User", "a"), "one entry too many": c.Key("shop", "user", "a", "route", "/"),
	} {
		t.Run("b: "+name, func(t *testing.T) {
			before := log.count("no rule matches")
			for range 3 {
				d, err := key.Check(t.Context(), 1)
				if err != nil || !d.Allowed || d.Source != limit.SourceUnmatched || d.Rule != "" || d.Counted || d.Limit != 0 {
					t.Errorf("%+v, %v", d, err)
				}
			}
			if got := log.count("no rule matches") - before; got != 1 {
				t.Errorf("%d lines of log: %s", got, log.text.String())
			}
		})
	}
	t.Run("g: amounts of zero and below", func(t *testing.T) {
		key := c.Key("shop", "user", "g")
		if d, err := key.Check(t.Context(), 3); err != nil || d.Remaining != 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		for verb, call := range map[string]func(context.Context, int64) (sluice.Decision, error){"check": key.Check, "refund": key.Refund, "charge": key.Charge} {
			if d, err := call(t.Context(), 0); err != nil || d.Remaining != 0 {
				t.Errorf("%s 0: %+v, %v", verb, d, err)
			}
			if _, err := call(t.Context(), -1); !errors.Is(err, sluice.ErrInvalid) || !strings.Contains(err.Error(), "amount: negative") {
				t.Errorf("%s -1: %v", verb, err)
			}
		}
	})
	t.Run("w: waiting that fails keeps no place", func(t *testing.T) {
		key := c.Key("shop", "queue", "w")
		failed := 0
		for range 11 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a job starts every minute
			err := key.Wait(ctx)
			cancel()
			if errors.Is(err, sluice.ErrWouldExceedDeadline) || errors.Is(err, context.DeadlineExceeded) {
				failed++
			}
		}
		d, err := key.Check(t.Context(), 1)
		if err != nil || failed < 9 || d.Delay > 2*time.Minute {
			t.Errorf("%d failed, and the next job waits for %v (%v)", failed, d.Delay, err)
		}
	})
	t.Run("p: 100 logins at once, of 3", func(t *testing.T) {
		key := c.Key("shop", "login", "p")
		var guesses atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if ok, err := key.Allow(t.Context()); err != nil {
					t.Error(err)
				} else if ok {
					guesses.Add(1) // a wrong password: what was spent stays spent
				}
			})
		}
		if all.Wait(); guesses.Load() != 3 {
			t.Errorf("%d guesses", guesses.Load())
		}
		// Two kinds of policy in one client, by the rule.
		other, _ := newClient(t, addr, sluice.WithTimeout(300*time.Millisecond), sluice.WithoutRouting())
		if _, err := other.Key("shop", "login", "known").Check(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("c, k: what a decision says of a limit", func(t *testing.T) {
		if d, err := c.Key("shop", "user", "k").Check(t.Context(), 1); err != nil || !d.Counted || d.LimitName != "hourly" || d.Count != 3 || d.Burst != 0 || d.Period != time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a time that never comes", func(t *testing.T) {
		d, err := c.Key("shop", "user", "never").Check(t.Context(), 4)
		if wait, known := d.RetryIn(); err != nil || d.Allowed || known || wait != 0 || d.Verdict != limit.VerdictNever {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a rule's response of 503", func(t *testing.T) {
		d, err := c.Key("shop", "closed", "x").Check(t.Context(), 1)
		if err != nil || d.Allowed || d.Response == nil || d.Response.Status != http.StatusServiceUnavailable {
			t.Errorf("%+v, %v", d, err)
		}
		var body struct {
			Allowed  *bool
			Response struct{ Status int }
		}
		status := n.post(t, "/v1/check", `{"domain": "shop", "descriptor": ["closed=x"]}`, &body)
		if status >= 500 || body.Allowed == nil || *body.Allowed || body.Response.Status != 503 {
			t.Errorf("%d, %+v", status, body)
		}
	})
	t.Run("a charge with a name", func(t *testing.T) { once(t, n) })
	t.Run("z: a client that New has not made", func(t *testing.T) {
		var zero sluice.Client
		if _, err := zero.Key("shop", "user", "z").Allow(t.Context()); !errors.Is(err, sluice.ErrClosed) {
			t.Error(err)
		}
		if _, err := (sluice.Key{}).Allow(t.Context()); !errors.Is(err, sluice.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestTokenMistakes: no token, and one that nobody knows, are told at once by Ready, and in every decision. What a caller may not do
// is an error with its code.
func TestTokenMistakes(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	token, digest := testToken(t, 1)
	unknown, _ := testToken(t, 2)
	s.Callers = writeFile(t, "callers: [{name: all, tokens: ["+digest+"], grants: [{domains: [auth], verbs: [check]}]}]\n")
	addr := startNode(t, s).listen.grpc.Addr().String()
	for name, options := range map[string][]sluice.Option{"no token": nil, "an unknown token": {sluice.WithToken(sluice.Token(unknown))}} {
		c, log := newClient(t, addr, append(options, sluice.WithTimeout(300*time.Millisecond))...)
		if err := c.Ready(t.Context()); !errors.Is(err, sluice.ErrUnauthenticated) {
			t.Errorf("%s: Ready: %v", name, err)
		}
		d, err := c.Key("auth", "user", "a").Check(t.Context(), 1)
		if err != nil || !errors.Is(d.Degraded, sluice.ErrUnauthenticated) || log.count("no node answers") != 1 {
			t.Errorf("%s: %+v, %v, %s", name, d, err, log.text.String())
		}
	}
	c, _ := newClient(t, addr, sluice.WithToken(sluice.Token(token)))
	key := c.Key("auth", "user", "a")
	if ok, err := key.Allow(t.Context()); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if err := key.Reset(t.Context()); !errors.Is(err, sluice.ErrForbidden) {
		t.Errorf("reset: %v", err)
	}
	if _, err := c.Key("shop", "user", "a").Allow(t.Context()); !errors.Is(err, sluice.ErrForbidden) {
		t.Errorf("another domain: %v", err)
	}
}

// once: a charge with a name is made once, also when another client sends it again, and a check with one is an error.
func once(t *testing.T, n *running) {
	var all sync.WaitGroup
	for range 3 {
		c, _ := newClient(t, n.listen.grpc.Addr().String())
		all.Go(func() {
			for range 3 {
				if _, err := c.Key("shop", "bill", "a").Once("order-4711").Charge(t.Context(), 2); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	c, _ := newClient(t, n.listen.grpc.Addr().String())
	key := c.Key("shop", "bill", "a")
	if d, err := key.Read(t.Context(), 1); err != nil || d.Remaining != 98 {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := key.Once("order-4711").Refund(t.Context(), 2); err != nil || d.Remaining != 100 {
		t.Errorf("a refund of the same name: %+v, %v", d, err)
	}
	if _, err := key.Once("order-4711").Check(t.Context(), 2); !errors.Is(err, sluice.ErrInvalid) {
		t.Errorf("a check with a name: %v", err)
	}
	if _, err := key.Once(strings.Repeat("x", 129)).Charge(t.Context(), 2); !errors.Is(err, sluice.ErrInvalid) {
		t.Errorf("a long name: %v", err)
	}
}
