package sluice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// as returns q with another verb.
func as(v limit.Verb, q Check) Check {
	q.Verb = v
	return q
}

var user = Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: "42"}}, Amount: 1}

func decision(n *fakeNode, allowed bool) *sluicev1.Decision {
	return &sluicev1.Decision{Allowed: allowed, Limit: new(int64(10)), PeriodNs: int64(time.Minute), Source: sluicev1.Source_SOURCE_OWNED, Owner: n.name}
}

// TestCheck: a check arrives as it was asked, and its answer as it was given.
func TestCheck(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		var got *sluicev1.Check
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			got = c
			return &sluicev1.Decision{
				LimitName: "hourly", Count: 6, Burst: 7, Limit: new(int64(7)), Remaining: new(int64(3)), ResetAfterNs: 5, RetryAfterNs: new(int64(6)), Rule: "shop/user", Source: sluicev1.Source_SOURCE_FORWARDED,
				Owner: "n2", LimitIndex: 1, PeriodNs: 9, Verdict: sluicev1.Verdict_VERDICT_ALLOWED_SOFT,
				Response: &sluicev1.DenialResponse{Status: 503, Body: "no", Headers: []*sluicev1.DenialHeader{{Name: "A", Value: "b"}}},
			}
		})
		c := f.dial()
		q := user
		q.Amount, q.Limits = 3, []Limit{{Algorithm: limit.TokenBucket, Count: 7, Period: time.Second}}
		d, err := c.Check(t.Context(), as(limit.VerbRead, q))
		do(t, err)
		if got.GetDomain() != "shop" || got.GetDescriptor_()[0].GetValue() != "42" || got.GetCost() != 3 ||
			got.GetVerb() != sluicev1.Verb_VERB_READ || got.GetLimits()[0].GetCount() != 7 {
			t.Errorf("asked %v", got)
		}
		if d.Allowed || d.Limit != 7 || d.Remaining != 3 || d.ResetAfter != 5 || d.RetryAfter != 6 || d.Rule != "shop/user" ||
			d.Source != limit.SourceForwarded || d.Owner != "n2" || d.LimitIndex != 1 || d.Period != 9 || d.Verdict != limit.VerdictSoft ||
			!d.Counted || d.LimitName != "hourly" || d.Count != 6 || d.Burst != 7 || d.Degraded != nil ||
			d.Response == nil || d.Response.Status != 503 || d.Response.Header[0].Value != "b" {
			t.Errorf("answered %+v", d)
		}
		if ok, err := c.Key("shop", "user", "42").Allow(t.Context()); ok || err != nil {
			t.Errorf("Allow: %v, %v", ok, err)
		}
	})
}

// TestTogether: calls that come while frames are unanswered travel in one.
func TestTogether(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		release := make(chan struct{})
		f.hold = func(*fakeNode, *sluicev1.CheckRequest) { <-release }
		c := f.dial()
		var wg sync.WaitGroup
		const callers = 100
		for i := range callers {
			wg.Go(func() {
				if ok, err := c.Key("shop", "user", fmt.Sprint(i)).Allow(context.Background()); !ok || err != nil {
					t.Errorf("caller %d: %v, %v", i, ok, err)
				}
			})
		}
		n := f.nodes[0]
		waitFor(t, "all to wait", func() bool { return underWay(c, n) == callers })
		close(release)
		wg.Wait()
		if frames := n.frames.Load(); frames > callers/10 { // maxInFlight and one
			t.Errorf("%d frames for %d checks", frames, callers)
		}
	})
}

func streamOf(c *Client, f *fakeNode) *stream {
	if n := c.fleet.Load().byName[f.name]; n != nil {
		return n.current.Load()
	}
	return nil
}

// underWay returns how many checks wait to be sent to f, or for its answer.
func underWay(c *Client, f *fakeNode) int {
	s := streamOf(c, f)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.queued + sentLocked(s)
}

// inFlight returns how many checks are sent to f and unanswered, if none waits to be sent.
func inFlight(c *Client, f *fakeNode) int {
	s := streamOf(c, f)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.queued > 0 {
		return -1
	}
	return sentLocked(s)
}

func sentLocked(s *stream) (n int) {
	for _, f := range s.mu.inFlight {
		n += len(f.calls)
	}
	return n
}

// waitFor polls what other goroutines do.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond) // and not at once, which would take the processor from what is waited for
	}
}

// TestFollowsOwner: a counter is asked of the node that answers name, and of another once they name that.
func TestFollowsOwner(t *testing.T) {
	inBubble(t, "n1 n2 n3", func(t *testing.T, f *fakeCluster) {
		var owner atomic.Value
		owner.Store("n3")
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, true)
			if d.Owner = owner.Load().(string); d.Owner != n.name {
				d.Source = sluicev1.Source_SOURCE_FORWARDED
			}
			return d
		})
		c := f.dial()
		forwarded := func() (n int) {
			for range 20 {
				d, err := c.Check(t.Context(), user)
				if err != nil || !d.Allowed {
					t.Fatalf("%+v, %v", d, err)
				}
				if d.Source == limit.SourceForwarded {
					n++
				}
			}
			return n
		}
		if n := forwarded(); n > 1 {
			t.Errorf("%d of 20 checks were forwarded, want the first at most", n)
		}
		owner.Store("n1")
		if n := forwarded(); n != 1 {
			t.Errorf("%d of 20 checks were forwarded after the owner had changed, want 1", n)
		}
	})
}

// TestDenied: a denial is remembered for as long as it stands, for no smaller cost, and until
// something is given back.
func TestDenied(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, c.GetCost() < 3)
			if !d.Allowed {
				d.RetryAfterNs, d.DeniedForNs = new(int64(time.Hour)), int64(time.Hour)
			}
			return d
		})
		c, n := f.dial(), f.nodes[0]
		ask := func(cost int64, limits []Limit) Decision {
			q := user
			q.Amount, q.Limits = cost, limits
			d, err := c.Check(t.Context(), q)
			do(t, err)
			return d
		}
		ask(5, nil)
		before := n.asked.Load()
		for _, cost := range []int64{5, 6, 100} {
			if d := ask(cost, nil); d.Allowed || d.Source != limit.SourceDenyCache || d.RetryAfter > time.Hour || d.RetryAfter < time.Hour-time.Minute {
				t.Errorf("cost %d: %+v", cost, d)
			}
		}
		if got := n.asked.Load(); got != before {
			t.Errorf("the node was asked %d times", got-before)
		}
		if d := ask(4, nil); d.Source != limit.SourceOwned {
			t.Errorf("a smaller cost: %+v", d)
		}
		if d := ask(5, []Limit{{Count: 1, Period: time.Second}}); d.Source != limit.SourceOwned {
			t.Errorf("other limits: %+v", d)
		}
		for name, give := range map[string]func() error{
			"refund": func() error { _, err := c.Check(t.Context(), as(limit.VerbRefund, user)); return err },
			"charge": func() error { _, err := c.Check(t.Context(), as(limit.VerbCharge, user)); return err },
			"reset":  func() error { return c.Key("shop", "user", "42").Reset(t.Context()) },
		} {
			ask(5, nil)
			do(t, give())
			if d := ask(5, nil); d.Source != limit.SourceOwned {
				t.Errorf("after a %s: %+v", name, d)
			}
		}
	})
}

// TestDenialEnds: a denial is not answered from memory after its time.
func TestDenialEnds(t *testing.T) {
	m := newDenials(4)
	at := time.Unix(1000, 0)
	d := Decision{RetryAfter: time.Minute, ResetAfter: time.Hour, Source: limit.SourceOwned}
	m.note(counterKey{1}, 1, &d, 50*time.Millisecond, at)
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{-1, false}, {0, true}, {49 * time.Millisecond, true}, {50*time.Millisecond - 1, true}, {50 * time.Millisecond, false}} {
		got, ok := m.get(counterKey{1}, 1, func() time.Time { return at.Add(c.after) })
		if ok != c.want {
			t.Errorf("%v later: %v", c.after, ok)
		}
		if ok && (got.RetryAfter != time.Minute-c.after || got.ResetAfter != time.Hour-c.after) {
			t.Errorf("%v later: %+v", c.after, got)
		}
	}
}

// TestOddValues: whatever a value is, the check is decided; what no message can carry is sent shortened, each as one of its own.
func TestOddValues(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		asked := map[string]bool{}
		f.set(func(_ *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			asked[c.GetDescriptor_()[0].GetValue()] = true
			return &sluicev1.Decision{Allowed: true}
		})
		c := f.dial()
		long := strings.Repeat("x", 1025)
		values := []string{long, long + "x", "anna\xff", "anna\xfe", strings.Repeat("y", 5<<20)}
		for _, v := range values {
			q := Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: v}}, Amount: 1}
			if _, err := c.Check(t.Context(), q); err != nil {
				t.Errorf("%.10q: %v", v, err)
			}
			if _, err := c.CheckAll(t.Context(), q, q); err != nil {
				t.Errorf("all of %.10q: %v", v, err)
			}
		}
		if len(asked) != len(values) {
			t.Errorf("%d values became %d", len(values), len(asked))
		}
	})
}

// TestBadInput: the error names the invalid field, and no node gets the check.
func TestBadInput(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		c := f.dial()
		long := strings.Repeat("x", 1025)
		for field, q := range map[string]Check{
			"domain":            {Descriptor: user.Descriptor},
			"descriptor":        {Domain: "shop"},
			"descriptor[0].key": {Domain: "shop", Descriptor: []Entry{{Key: "", Value: "x"}}, Amount: 1},
			"descriptor[1].key": {Domain: "shop", Descriptor: []Entry{{Key: "a", Value: ""}, {Key: long, Value: "b"}}},
			"descriptor[2].key": {Domain: "shop", Descriptor: []Entry{{Key: "a", Value: ""}, {Key: "b", Value: ""}, {Key: "\xff", Value: "a"}}},
			"amount":            {Domain: "shop", Descriptor: user.Descriptor, Amount: -1},
			"limits":            {Domain: "shop", Descriptor: user.Descriptor, Limits: make([]Limit, 17)},
		} {
			_, err := c.Check(t.Context(), q)
			if e, ok := errors.AsType[*Error](err); !ok || e.Field != field {
				t.Errorf("%s: %v", field, err)
			}
			_, err = c.CheckAll(t.Context(), user, q)
			if e, ok := errors.AsType[*Error](err); !ok || e.Field != "checks[1]."+field {
				t.Errorf("checks[1].%s: %v", field, err)
			}
		}
		f.set(func(*fakeNode, *sluicev1.Check) *sluicev1.Decision {
			return &sluicev1.Decision{Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_INVALID, Field: "checks[5].limits[0].period", Message: "0"}}
		})
		asked := f.nodes[0].asked.Load()
		_, err := c.Check(t.Context(), user)
		if e, ok := errors.AsType[*Error](err); !ok || e.Field != "limits[0].period" {
			t.Errorf("the node's word: %v", err)
		}
		if n := f.nodes[0].asked.Load() - asked; n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
	})
}

// TestLeaving: a node that leaves in order costs no answer, of any verb.
func TestLeaving(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		f.hold = func(*fakeNode, *sluicev1.CheckRequest) { time.Sleep(time.Millisecond) }
		c := f.dial()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var charged atomic.Int64
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := c.Check(context.Background(), as(limit.VerbCharge, user)); err != nil {
						t.Error(err)
						return
					}
					charged.Add(1)
				}
			})
		}
		waitFor(t, "some to be charged", func() bool { return charged.Load() > 100 })
		leaver := f.nodes[1]
		f.remove(leaver)
		close(leaver.leaving)
		before := charged.Load()
		waitFor(t, "more to be charged", func() bool { return charged.Load() > before+1000 })
		close(stop)
		wg.Wait()
	})
}

// TestBroken: a connection that breaks costs checks no answer, and a charge that may have been made is
// not repeated.
func TestBroken(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		hold := make(chan struct{})
		var taken atomic.Int64
		f.hold = func(n *fakeNode, _ *sluicev1.CheckRequest) {
			if n.name == "n2" {
				taken.Add(1)
				<-hold
			}
		}
		c := f.dial()
		// Both are held by n2, which takes them and breaks.
		q, _ := appendCounter(nil, &user)
		c.owners.Add(keyOf(q), owner{name: "n2"})
		type result struct {
			d   Decision
			err error
		}
		check, charge := make(chan result, 1), make(chan result, 1)
		go func() { d, err := c.Check(context.Background(), user); check <- result{d, err} }()
		go func() { d, err := c.Check(context.Background(), as(limit.VerbCharge, user)); charge <- result{d, err} }()
		waitFor(t, "n2 to have both", func() bool {
			s := streamOf(c, f.nodes[1])
			if s == nil {
				return false
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return sentLocked(s) == 2 && int(taken.Load()) == len(s.mu.inFlight)
		})
		n2 := f.nodes[1]
		go n2.server.Stop()
		if r := <-check; r.err != nil || !r.d.Allowed || r.d.Owner != "n1" {
			t.Errorf("check: %+v, %v", r.d, r.err)
		}
		if r := <-charge; !errors.Is(r.err, ErrUnavailable) {
			t.Errorf("charge: %+v, %v", r.d, r.err)
		}
		close(hold)
	})
}

// TestPolicies: without any node the policy answers, in time.
func TestPolicies(t *testing.T) {
	for _, p := range []struct {
		policy FailurePolicy
		source limit.Source
		want   []bool
	}{
		{FailOpen(), limit.SourceFailOpen, []bool{true, true, true}},
		{FailClosed(), limit.SourceFailClosed, []bool{false, false, false}},
		{FailLocal(0.2), limit.SourceFailLocal, []bool{true, true, false}},
	} {
		t.Run(p.source.String(), func(t *testing.T) {
			inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
				c := f.dial(WithFailurePolicy(p.policy), WithTimeout(100*time.Millisecond))
				f.known(c)
				f.nodes[0].server.Stop()
				for i, want := range p.want {
					d, err := c.Check(t.Context(), user)
					if err != nil || d.Allowed != want || d.Source != p.source || !errors.Is(d.Degraded, ErrUnavailable) {
						t.Errorf("check %d: %+v, %v", i, d, err)
					}
					if !d.Allowed && d.RetryAfter <= 0 {
						t.Errorf("check %d: no time to come back: %+v", i, d)
					}
				}
				all, err := c.CheckAll(t.Context(), user, Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: "other"}}, Amount: 1})
				if err != nil || all.Allowed != (p.source == limit.SourceFailOpen) || all.Decisions[1].Allowed != all.Allowed || !errors.Is(all.Decisions[0].Degraded, ErrUnavailable) {
					t.Errorf("all: %+v, %v", all, err)
				}
				if _, err := c.Check(t.Context(), as(limit.VerbRefund, user)); !errors.Is(err, ErrUnavailable) {
					t.Errorf("refund: %v", err)
				}
				if err := c.Key("shop", "user", "42").Reset(t.Context()); !errors.Is(err, ErrUnavailable) {
					t.Errorf("reset: %v", err)
				}
			})
		})
	}
}

// TestContext: a caller that gives up gets its context's error, and no other caller's answer is touched.
func TestContext(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		hold := make(chan struct{})
		f.hold = func(*fakeNode, *sluicev1.CheckRequest) { <-hold }
		c := f.dial()
		ctx, cancelCause := context.WithCancelCause(t.Context())
		cancel := func() { cancelCause(errors.New("of the caller's own")) }
		gone := make(chan error)
		go func() { _, err := c.Check(ctx, user); gone <- err }()
		waitFor(t, "the check to be on its way", func() bool { return underWay(c, f.nodes[0]) == 1 })
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		close(hold)
		for i := range 100 {
			if ok, err := c.Key("shop", "user", fmt.Sprint(i)).Allow(t.Context()); !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
		}
	})
}

// TestClose: waiting calls end with ErrClosed, and no goroutine is left.
func TestClose(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		hold := make(chan struct{})
		defer close(hold)
		f.hold = func(*fakeNode, *sluicev1.CheckRequest) { <-hold }
		c := f.dial()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Check(context.Background(), user); !errors.Is(err, ErrClosed) {
					t.Errorf("%v", err)
				}
			})
		}
		waitFor(t, "checks to be on their way", func() bool { return underWay(c, f.nodes[0]) == 20 })
		c.Close()
		wg.Wait()
		q, _ := appendCounter(nil, &user)
		c.denials.note(keyOf(q), 1, &Decision{}, time.Hour, time.Now())
		if _, err := c.Check(t.Context(), user); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		c.Close()
	})
}

// TestWait: it comes back when the limit admits it, or says at once that it will not.
func TestWait(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		var denials atomic.Int64
		denials.Store(2)
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, denials.Add(-1) < 0)
			if !d.Allowed {
				d.RetryAfterNs = new(int64(20 * time.Millisecond))
			}
			d.DelayNs = int64(10 * time.Millisecond)
			return d
		})
		key := f.dial().Key("shop", "user", "42")
		began := time.Now()
		do(t, key.Wait(t.Context()))
		if took := time.Since(began); took < 50*time.Millisecond || took > 60*time.Millisecond {
			t.Errorf("waited %v, want twice 20 ms and 10 ms, and a little more", took)
		}
		denials.Store(1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := key.Wait(ctx); !errors.Is(err, ErrWouldExceedDeadline) {
			t.Errorf("a short deadline: %v", err)
		}
		gone, cancel := context.WithTimeout(t.Context(), -1)
		defer cancel()
		if err := key.OnFailure(FailOpen()).Wait(gone); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a deadline that has passed: %v", err)
		}
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, false)
			d.Verdict = sluicev1.Verdict_VERDICT_DENIED_NEVER
			return d
		})
		if err := key.Wait(t.Context()); !errors.Is(err, ErrNever) || !errors.Is(err, ErrDenied) {
			t.Errorf("never: %v", err)
		}
	})
}

// TestStalled: a node that says nothing, not to an empty request either, costs five eighths of the time that checks have.
func TestStalled(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		c := f.dial(WithTimeout(4 * time.Second))
		f.stop(f.nodes[1])
		for i := range 10 {
			d, err := c.Check(t.Context(), Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: fmt.Sprint(i)}}, Amount: 1})
			if err != nil || d.Source != limit.SourceOwned || d.Owner != "n1" {
				t.Errorf("check %d: %+v, %v", i, d, err)
			}
		}
	})
}

// TestPatient: a node that looks for an owner for longer than others take to hang is waited for, and its stream goes on
// when it takes too long.
func TestPatient(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		const timeout = 2 * time.Second
		c := f.dial(WithTimeout(timeout), WithFailurePolicy(FailClosed()))
		var wait atomic.Int64
		f.hold = func(*fakeNode, *sluicev1.CheckRequest) { time.Sleep(time.Duration(wait.Load())) }
		wait.Store(int64(timeout * 7 / 8))
		if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceOwned {
			t.Errorf("%+v, %v", d, err)
		}
		wait.Store(int64(timeout * 3 / 2))
		if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceFailClosed {
			t.Errorf("too late: %+v, %v", d, err)
		}
		wait.Store(0)
		if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceOwned || c.Stats().StreamsLost != 0 {
			t.Errorf("after it: %+v, %v, %+v", d, err, c.Stats())
		}
	})
}

// TestNodesGiveUpFirst: nodes are told a time that is shorter than WithTimeout, and none without it.
func TestNodesGiveUpFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, opts := range map[time.Duration][]Option{0: nil, 700 * time.Millisecond: {WithTimeout(800 * time.Millisecond)}} {
			f := newCluster(t, "n1")
			c := f.dial(opts...)
			var told atomic.Int64
			f.hold = func(_ *fakeNode, r *sluicev1.CheckRequest) { told.Store(r.TimeoutNs) }
			f.known(c)
			if got := time.Duration(told.Load()); got != want {
				t.Errorf("the node may take %v, want %v", got, want)
			}
		}
	})
}

// TestTimeoutOfNodes: a call takes what nodes need for a takeover, as they tell, and not much more; and an earlier deadline of
// the context is kept, by the policy.
func TestTimeoutOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range [][]Option{nil, {WithoutRouting()}} {
			f := newCluster(t, "n1")
			f.checkTimeout = time.Second
			c := f.dial(append(o, WithFailurePolicy(FailClosed()))...)
			waitFor(t, "the nodes to tell", func() bool { return c.patience.Load() < int64(firstTimeout) })
			hold := make(chan struct{})
			f.hold = func(*fakeNode, *sluicev1.CheckRequest) {
				select {
				case <-hold:
				case <-time.After(f.checkTimeout):
				}
			}
			if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceOwned {
				t.Errorf("an answer after a takeover: %+v, %v", d, err)
			}
			f.hold = func(*fakeNode, *sluicev1.CheckRequest) { <-hold }
			began := time.Now()
			if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceFailClosed {
				t.Errorf("no answer: %+v, %v", d, err)
			} else if took := time.Since(began); took < f.checkTimeout || took > 2*f.checkTimeout || !strings.Contains(fmt.Sprint(d.Degraded), "not within 1.") {
				t.Errorf("the policy answered after %v: %s", took, d.Degraded)
			}
			// The client ends a call before the deadline, and not because the context has ended: these never end.
			soon := func() context.Context { return deadlineContext{t.Context(), time.Now().Add(500 * time.Millisecond)} }
			began = time.Now()
			if d, err := c.Check(soon(), user); err != nil || d.Source != limit.SourceFailClosed {
				t.Errorf("before its deadline: %+v, %v", d, err)
			} else if took := time.Since(began); took != 490*time.Millisecond {
				t.Errorf("by a deadline in half a second, the policy answered after %v", took)
			}
			if _, err := c.Check(soon(), as(limit.VerbCharge, user)); !errors.Is(err, ErrUnavailable) {
				t.Errorf("a charge: %v", err)
			}
			close(hold)
		}
	})
}

// deadlineContext has a deadline, at which it does not end.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

// TestOptions: wrong ones are named.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Option{
		"WithTimeout": WithTimeout(0), "WithDenyCache": WithDenyCache(-1), "WithRouteCache": WithRouteCache(0),
		"FailLocal": WithFailurePolicy(FailLocal(1.5)), "WithFailurePolicy": WithFailurePolicy(FailurePolicy{}), "WithObserver": WithObserver(nil), "WithTLS": WithTLS(nil), "WithLogger": WithLogger(nil), "WithToken": WithToken(nil),
	} {
		if _, err := New("127.0.0.1:1", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := New("127.0.0.1:1,"); err == nil {
		t.Error("an empty address was accepted")
	}
}

// TestNeverOfOthers: an atomic batch that can never be admitted says so in every decision.
func TestNeverOfOthers(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, false)
			if d.Verdict = sluicev1.Verdict_VERDICT_DENIED_BY_OTHERS; c.GetCost() > 10 {
				d.Verdict = sluicev1.Verdict_VERDICT_DENIED_NEVER
			}
			return d
		})
		large := user
		large.Amount = 11
		b, err := f.dial().CheckAll(t.Context(), user, large)
		if _, known := b.RetryIn(); err != nil || known || b.Allowed || len(b.Denied()) != 1 || b.Denied()[0] != 1 || b.Strictest().Verdict != limit.VerdictNever {
			t.Errorf("%+v, %v", b, err)
		}
	})
}
