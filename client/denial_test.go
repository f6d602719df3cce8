package sluice

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/client/grpclimit"
	"github.com/sluicecluster/sluice/client/httplimit"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/client/netlimit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// full is the decision of fake nodes about the domain full, and unmatched about other.
func full() *sluicev1.Decision {
	return &sluicev1.Decision{Verdict: sluicev1.Verdict_VERDICT_DENIED, RetryAfterNs: new(int64(time.Hour)), Source: sluicev1.Source_SOURCE_OWNED, Rule: "full/k"}
}

func unmatched() *sluicev1.Decision {
	return &sluicev1.Decision{Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_UNMATCHED}
}

// newDenying returns a cluster that denies in the domain full, and has no rule for other.
func newDenying(t *testing.T) *fakeCluster {
	f := newCluster(t, "n1")
	f.slots.owner = "n1"
	f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
		switch charged := c.Verb == sluicev1.Verb_VERB_CHARGE || c.Verb == sluicev1.Verb_VERB_REFUND; {
		case c.GetDomain() == "full" && !charged:
			return full()
		case c.GetDomain() == "other":
			return unmatched()
		}
		return &sluicev1.Decision{Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_OWNED, Owner: n.name}
	})
	return f
}

// newDown returns a client that reaches no node.
func newDown(t *testing.T, p FailurePolicy) *Client {
	c, err := New("10.0.0.1:7460", new(network).option, WithTimeout(50*time.Millisecond), WithFailurePolicy(p), WithLogger(slog.New(slog.DiscardHandler)))
	do(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// outcome is how the package comment says what a call returned.
func outcome(allowed bool, err error) string {
	if denied, ok := errors.AsType[*DeniedError](err); ok && errors.Is(err, ErrDenied) && !denied.Allowed {
		return "*DeniedError"
	}
	for _, c := range []struct {
		name string
		is   error
	}{{"ErrDenied", ErrDenied}, {"ErrUnavailable", ErrUnavailable}, {"ErrRejected", ErrRejected}} {
		if errors.Is(err, c.is) { // a denial by a failure policy says that no node answered, too
			return c.name
		}
	}
	switch {
	case err != nil:
		return err.Error()
	case allowed:
		return "allowed"
	}
	return "not allowed"
}

// denialCalls are the calls that may be denied, by their names in the package comment, and what they return for a Key of the domain.
func denialCalls(t *testing.T) map[string]func(c *Client, k Key, domain string) string {
	// reservation returns one of domain, whatever its limits say.
	reservation := func(c *Client, domain string) *Reservation {
		r := &Reservation{ID: "r", Units: 1, client: c}
		if domain == "other" {
			r.ID = ""
		}
		return r
	}
	return map[string]func(c *Client, k Key, domain string) string{
		"Key.Allow, Check, Read": func(_ *Client, k Key, _ string) string {
			allowed, err := k.Allow(t.Context())
			for _, f := range []func(context.Context, int64) (Decision, error){k.Check, k.Read} {
				if d, e := f(t.Context(), 1); d.Allowed != allowed || (e == nil) != (err == nil) {
					t.Errorf("Allow %v %v, but %v %v", allowed, err, d.Allowed, e)
				}
			}
			return outcome(allowed, err)
		},
		"Key.Wait": func(_ *Client, k Key, _ string) string {
			ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond) // less than a FailClosed denies for
			defer cancel()
			err := k.Wait(ctx)
			return outcome(true, err)
		},
		"Key.Charge, Refund": func(_ *Client, k Key, _ string) string {
			d, err := k.Charge(t.Context(), 1)
			if r, e := k.Refund(t.Context(), 1); r.Allowed != d.Allowed || (e == nil) != (err == nil) {
				t.Errorf("Refund %+v %v", r, e)
			}
			return outcome(d.Allowed, err)
		},
		"Client.CheckAll": func(c *Client, k Key, _ string) string {
			b, err := c.CheckAll(t.Context(), k.Spend(1), k.Spend(1))
			return outcome(b.Allowed, err)
		},
		"Client.CheckEach": func(c *Client, k Key, _ string) string {
			d, err := c.CheckEach(t.Context(), k.Spend(1))
			return outcome(len(d) == 1 && d[0].Allowed, err)
		},
		"Client.Reserve": func(c *Client, k Key, _ string) string {
			r, err := c.Reserve(t.Context(), ReserveRequest{Keys: []Key{k}, Units: 7})
			if (r == nil) != (err != nil) || err == nil && r.Units != 7 {
				t.Errorf("%+v beside %v", r, err)
			}
			return outcome(r != nil && r.Allowed, err)
		},
		"Client.Hold": func(c *Client, k Key, _ string) string {
			r, err := c.Hold(t.Context(), k, time.Second)
			if (r == nil) != (err != nil) {
				t.Errorf("%+v beside %v", r, err)
			}
			return outcome(r != nil && r.Allowed, err)
		},
		"Client.Acquire": func(c *Client, k Key, _ string) string {
			x, err := c.Acquire(t.Context(), AcquireRequest{Key: k, MaxWait: -1})
			if err == nil && x.Context().Err() != nil || err != nil && (x.Context().Err() == nil || context.Cause(x.Context()) != err || x.Allowed) {
				t.Errorf("%v, but the context: %v", err, context.Cause(x.Context()))
			}
			x.Release()
			x.Release()
			if x.Context().Err() == nil {
				t.Error("the context outlives the slot")
			}
			return outcome(x.Allowed, err)
		},
		"Client.InFlight": func(c *Client, k Key, _ string) string {
			d, held, release, err := c.InFlight(t.Context(), k.Spend(1), 0)
			if d.Allowed != (held.Err() == nil) {
				t.Errorf("allowed %v, but the context: %v", d.Allowed, context.Cause(held))
			}
			release()
			release()
			return outcome(d.Allowed, err)
		},
		"Reservation.Spend": func(c *Client, _ Key, domain string) string {
			x, err := reservation(c, domain).Spend(t.Context(), 2)
			return outcome(x.Allowed, err)
		},
		"Reservation.Extend": func(c *Client, _ Key, domain string) string {
			x, err := reservation(c, domain).Extend(t.Context(), most, 0)
			return outcome(x.Allowed, err)
		},
		"Reservation.Settle": func(c *Client, _ Key, domain string) string {
			x, err := reservation(c, domain).Settle(t.Context(), 2)
			if x.Unlimited && x == (Settlement{Unlimited: true}) {
				return "Unlimited"
			}
			return outcome(true, err)
		},
		"httplimit.Middleware": func(c *Client, _ Key, domain string) string {
			var answers [2]string
			for i, slots := range []bool{false, true} {
				called := false
				h := httplimit.Middleware(c, httplimit.Config{Domain: domain, Keys: []httplimit.Key{httplimit.Value("k", "x")}, InFlight: slots})(
					http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
				if answers[i] = strconv.Itoa(w.Code); called {
					answers[i] = "allowed"
				}
			}
			if answers[0] != answers[1] {
				t.Errorf("%s, but %s with InFlight", answers[0], answers[1])
			}
			return answers[0]
		},
		"httplimit.NewTransport": func(c *Client, _ Key, domain string) string {
			ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
			defer cancel()
			sent := false
			base := roundTripper(func() { sent = true })
			tr := httplimit.NewTransport(c, base, httplimit.Config{Domain: domain, Keys: []httplimit.Key{httplimit.Value("k", "x")}})
			_, err := tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://host.invalid/", nil))
			if sent != (err == nil) {
				t.Errorf("sent %v, %v", sent, err)
			}
			return outcome(sent, err)
		},
		"grpclimit.UnaryServer": func(c *Client, _ Key, domain string) string {
			_, err := grpclimit.UnaryServer(c, grpclimit.Config{Domain: domain, Keys: []grpclimit.Key{grpclimit.Method()}})(
				t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, func(context.Context, any) (any, error) { return nil, nil })
			if code := status.Code(err); code != codes.OK {
				return code.String()
			}
			return "allowed"
		},
		"netlimit.NewListener": func(c *Client, _ Key, domain string) string {
			inner := bufconn.Listen(1)
			l := netlimit.NewListener(c, inner, netlimit.Config{Domain: domain, Keys: []netlimit.Key{netlimit.Value("k", "x")}})
			defer l.Close()
			conn, err := inner.Dial()
			do(t, err)
			defer conn.Close()
			result := make(chan string, 2)
			go func() {
				if _, err := l.Accept(); err == nil {
					result <- "allowed"
				}
			}()
			go func() {
				_, _ = conn.Read(make([]byte, 1)) // nothing is written
				result <- "closed"
			}()
			return <-result
		},
	}
}

// TestDenials: every call returns what the package comment says, and what is not allowed cannot be used as if it were.
func TestDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := denialCalls(t)
		f := newDenying(t)
		up, open, closed := f.dial(), newDown(t, FailOpen()), newDown(t, FailClosed())
		f.ledger.byID = map[string]*reserved{"r": {units: 1}}
		page, err := os.ReadFile("client.go")
		do(t, err)
		rows := regexp.MustCompile(`(?m)^//\t(\S.*?)  +(\S.*?)  +(\S.*?)  +(\S.*)$`).FindAllStringSubmatch(string(page), -1)
		if len(rows) != len(calls)+1 {
			t.Errorf("the table has %d rows for %d calls", len(rows)-1, len(calls))
		}
		for _, row := range rows[1:] {
			call := calls[row[1]]
			if call == nil {
				t.Errorf("no call %q", row[1])
				continue
			}
			denied, none := call(up, up.Key("full", "k", "x"), "full"), call(up, up.Key("other", "k", "x"), "other")
			yes, no := call(open, open.Key("full", "k", "x"), "full"), call(closed, closed.Key("full", "k", "x"), "full")
			down := yes
			if yes == "allowed" && no == denied {
				down = "FailurePolicy"
			}
			if got := strings.Join([]string{denied, none, down}, ", "); got != strings.Join(row[2:], ", ") {
				t.Errorf("%s: %s (%s and %s); the table has %v", row[1], got, yes, no, row[2:])
			}
		}
	})
}

type roundTripper func()

func (f roundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	f()
	return &http.Response{StatusCode: 200}, nil
}

// TestNothingHeld: a Slot that does not come from Acquire has ended too, and the waits of one that was not had are denials.
func TestNothingHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, x := range map[string]*Slot{"nil": nil, "zero": {}} {
			x.Release()
			if cause := context.Cause(x.Context()); !errors.Is(cause, ErrInvalid) {
				t.Errorf("%s: %v", name, cause)
			}
		}
		f := newDenying(t)
		c := f.dial()
		f.known(c)
		for name, w := range map[string]struct {
			ask AcquireRequest
			is  error
		}{
			"waited": {AcquireRequest{Units: 2, MaxWait: 50 * time.Millisecond}, ErrDenied},
			"wrong":  {AcquireRequest{Units: 4}, ErrInvalid},
		} {
			w.ask.Key = c.Key("jobs", "queue", "q")
			x, err := c.Acquire(t.Context(), w.ask)
			if !errors.Is(err, w.is) || context.Cause(x.Context()) != err {
				t.Errorf("%s: %v, %v", name, err, context.Cause(x.Context()))
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if x, err := c.Acquire(ended, AcquireRequest{Key: c.Key("jobs", "queue", "q")}); err != context.Canceled || x.Context().Err() == nil {
			t.Error(err)
		}
	})
}

// TestInFlightByRule: on_failure of a rule that slots were taken under binds the client, as with checks.
func TestInFlightByRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDenying(t)
		c := f.dial(WithTimeout(200*time.Millisecond), WithLogger(slog.New(slog.DiscardHandler)))
		q := c.Key("strict", "k", "x").Spend(1)
		waitFor(t, "a slot", func() bool {
			_, _, release, err := c.InFlight(t.Context(), q, time.Second)
			release()
			return err == nil && c.rules.onFailureOf(&q) == onFailureClosed
		})
		f.nodes[0].server.Stop()
		if d, held, _, err := c.InFlight(t.Context(), q, 0); err != nil || d.Allowed || d.Source != limit.SourceFailClosed || !errors.Is(d.Degraded, ErrUnavailable) || held.Err() == nil {
			t.Errorf("%+v %v", d, err)
		}
	})
}

// TestUnmatchedIsLogged: a misspelt key is logged, whatever call it is in.
func TestUnmatchedIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDenying(t)
		for name, call := range map[string]func(c *Client, k Key) error{
			"Reserve": func(c *Client, k Key) error {
				_, err := c.Reserve(t.Context(), ReserveRequest{Keys: []Key{k}, Units: 1})
				return err
			},
			"Acquire": func(c *Client, k Key) error {
				_, err := c.Acquire(t.Context(), AcquireRequest{Key: k})
				return err
			},
		} {
			var out strings.Builder
			c := f.dial(WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
			err := call(c, c.Key("other", "usr", "ann"))
			c.Close() // so that nothing else writes
			if text := out.String(); err != nil || strings.Count(text, "no rule matches") != 1 || !strings.Contains(text, "domain=other keys=usr") {
				t.Errorf("%s: %v %s", name, err, text)
			}
		}
	})
}

// TestDeniedError: the text names the rule, or that there is none, and when to come back.
func TestDeniedError(t *testing.T) {
	for want, d := range map[string]Decision{
		"sluice: the rate limit denies this: rule a; retry in 1s":          {Rule: "a", RetryAfter: time.Second},
		"sluice: the rate limit denies this: no rule matches":              {Source: limit.SourceUnmatched},
		"sluice: the amount is more than the limit can ever admit: rule a": {Rule: "a", Verdict: limit.VerdictNever},
		"sluice: the rate limit denies this":                               {},
	} {
		err := error(&DeniedError{Batch: limit.NewBatch([]Decision{d})})
		if err.Error() != want || !errors.Is(err, ErrDenied) || errors.Is(err, ErrNever) != (d.Verdict == limit.VerdictNever) {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// TestPageSnippet: the snippet about slots is that of ExampleClient_Acquire, which runs.
func TestPageSnippet(t *testing.T) {
	page, err := os.ReadFile("../docs/use/reservations.md")
	do(t, err)
	source, err := os.ReadFile("example_test.go")
	do(t, err)
	plain := regexp.MustCompile(`(?m)^[ \t]+`)
	snippets := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllSubmatch(page, -1)
	if len(snippets) == 0 {
		t.Error("no snippet")
	}
	for _, s := range snippets {
		if !strings.Contains(plain.ReplaceAllString(string(source), ""), plain.ReplaceAllString(string(s[1]), "")) {
			t.Errorf("no example has\n%s", s[1])
		}
	}
}
