package sluice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/client/internal/config"
	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// mute returns an address at which connections are accepted and never answered: as by a firewall or a stopped
// process looks like from here.
func (f *fakeCluster) mute() string {
	l, addr := f.net.listen("")
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	f.t.Cleanup(func() { l.Close() })
	return addr
}

// TestMembersOutOfReach: when the members' own addresses are unreachable, the target answers, and no check waits
// for attempts to reach them.
func TestMembersOutOfReach(t *testing.T) {
	inBubble(t, "n1 n2 n3", func(t *testing.T, f *fakeCluster) {
		for _, n := range f.nodes {
			n.listed = f.mute()
		}
		c := f.dial()
		for i := range 50 {
			began := time.Now()
			d, err := c.Check(t.Context(), Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: fmt.Sprint(i)}}, Amount: 1})
			if err != nil || d.Source != limit.SourceOwned {
				t.Fatalf("check %d: %+v, %v", i, d, err)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("check %d took %v", i, took)
			}
		}
		if n := c.Stats().Nodes; n != 3 {
			t.Errorf("%d members are known, want 3", n)
		}
	})
}

// TestOutage: once the cluster has been out of reach for as long as a call may take, the policy answers at
// once, and nodes do when they are back.
func TestOutage(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		const timeout = 2 * time.Second
		c := f.dial(WithTimeout(timeout), WithFailurePolicy(FailClosed()))
		f.nodes[0].server.Stop()
		var wg sync.WaitGroup
		for range 20 { // the first wait in vain, together
			wg.Go(func() {
				if d, err := c.Check(context.Background(), user); err != nil || d.Source != limit.SourceFailClosed {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		wg.Wait()
		began := time.Now()
		for range 100 {
			if d, err := c.Check(t.Context(), user); err != nil || d.Source != limit.SourceFailClosed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if _, err := c.Check(t.Context(), as(limit.VerbRefund, user)); !errors.Is(err, ErrUnavailable) {
			t.Errorf("refund: %v", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("101 answers took %v, want them at once", took)
		}
		f.serve(f.nodes[0])
		waitFor(t, "the node to be asked again", func() bool {
			d, err := c.Check(t.Context(), user)
			do(t, err)
			return d.Source == limit.SourceOwned
		})
	})
}

// TestHang: nodes that take checks and say nothing, the members' question too, cost no caller more time than it has.
func TestHang(t *testing.T) {
	inBubble(t, "n1 n2 n3", func(t *testing.T, f *fakeCluster) {
		const timeout = 3 * time.Second
		c := f.dial(WithTimeout(timeout))
		f.stop(f.nodes[0])
		f.stop(f.nodes[1])
		c.refreshSoon()
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				began := time.Now()
				if _, err := c.Check(context.Background(), Check{Domain: "shop", Descriptor: []Entry{{Key: "user", Value: fmt.Sprint(i)}}, Amount: 1}); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > timeout {
					t.Errorf("a check took %v of %v", took, timeout)
				}
			})
		}
		wg.Wait()
	})
}

// TestLanes: checks that a node cannot decide yet hold up neither those whose counters it holds nor, for long,
// others.
func TestLanes(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		hold := make(chan struct{})
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			if c.GetDescriptor_()[0].GetKey() == "lost" {
				<-hold
			}
			d := decision(n, true)
			d.Owner = "n1"
			return d
		})
		c := f.dial()
		if _, err := c.Check(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		const lost = 40
		for i := range lost {
			wg.Go(func() {
				if _, err := c.Check(context.Background(), Check{Domain: "shop", Descriptor: []Entry{{Key: "lost", Value: fmt.Sprint(i)}}, Amount: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		waitFor(t, "the lost to be on their way", func() bool { // all are sent: what is late invalidates
			return inFlight(c, f.nodes[0]) >= 0 && inFlight(c, f.nodes[1]) >= 0 &&
				inFlight(c, f.nodes[0])+inFlight(c, f.nodes[1]) == lost
		})
		for i := range 20 {
			for _, key := range []string{"user", "new"} {
				d, err := c.Check(t.Context(), Check{Domain: "shop", Descriptor: []Entry{{Key: key, Value: fmt.Sprint(42 + i)}}, Amount: 1})
				if err != nil || d.Source != limit.SourceOwned {
					t.Errorf("%s: %+v, %v", key, d, err)
				}
			}
		}
		if n := underWay(c, f.nodes[0]) + underWay(c, f.nodes[1]); n != lost {
			t.Errorf("%d of the %d lost are waiting", n, lost)
		}
		close(hold)
		wg.Wait()
	})
}

// TestPolicyByRule: the on_failure of a rule binds the client, for values that it has never asked about too, and as long as the
// rule says so; a policy of the Key goes first.
func TestPolicyByRule(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		var loginSays atomic.Int32
		loginSays.Store(int32(sluicev1.OnFailure_ON_FAILURE_CLOSED))
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, true)
			d.Rule = "shop/" + c.GetDescriptor_()[0].GetKey()
			switch c.GetDescriptor_()[0].GetKey() {
			case "login":
				d.OnFailure = sluicev1.OnFailure(loginSays.Load())
			case "page":
				d.OnFailure = sluicev1.OnFailure_ON_FAILURE_OPEN
			}
			return d
		})
		logged := &bytes.Buffer{}
		c := f.dial(WithFailurePolicy(FailByRule(FailLocal(1))), WithTimeout(3*time.Second), WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		f.known(c)
		ask := func(key, value string) Decision {
			t.Helper()
			d, err := c.Key("shop", key, value).Check(t.Context(), 1)
			do(t, err)
			return d
		}
		learn := func() {
			for _, key := range []string{"login", "page", "user"} {
				waitFor(t, "a node to answer", func() bool { return ask(key, "known").Degraded == nil })
			}
		}
		stopped := func(want map[string]limit.Source) {
			t.Helper()
			f.nodes[0].server.Stop()
			for key, source := range want {
				if d := ask(key, "new"); d.Source != source || d.Allowed == (source == limit.SourceFailClosed) || !errors.Is(d.Degraded, ErrUnavailable) {
					t.Errorf("%s: %+v, want %v", key, d, source)
				}
			}
			f.serve(f.nodes[0])
		}
		learn()
		stopped(map[string]limit.Source{"login": limit.SourceFailClosed, "page": limit.SourceFailOpen, "user": limit.SourceFailLocal})
		loginSays.Store(0)
		learn()
		waitFor(t, "the outage to end", func() bool { // a moment after the last decision of a policy
			ask("user", "known")
			return strings.Contains(logged.String(), "nodes answer again")
		})
		stopped(map[string]limit.Source{"login": limit.SourceFailLocal})
		if d, err := c.Key("shop", "page", "new").OnFailure(FailClosed()).Check(t.Context(), 1); err != nil || d.Source != limit.SourceFailClosed && d.Degraded != nil {
			t.Errorf("a policy of the key: %+v, %v", d, err)
		}
		for text, want := range map[string]int{"no node answers": 2, "nodes answer again": 1} {
			if got := strings.Count(logged.String(), text); got != want {
				t.Errorf("%d lines say %q, want %d:\n%s", got, text, want, logged)
			}
		}
	})
}

// TestReadySaysWhy: without a node, the error of Ready says where none answered, and why.
func TestReadySaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := newDown(t, FailOpen()).Ready(ctx)
		const want = "sluice: no node answered at 10.0.0.1:7460: Error while dialing: connection refused"
		if !errors.Is(err, ErrUnavailable) || fmt.Sprint(err) != want || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want %s", err, time.Since(began), want)
		}
	})
}

// TestFailTo: another limiter decides what no node does.
func TestFailTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spare := &spareLimiter{}
		c := newDown(t, FailTo(spare))
		key := c.Key("shop", "user", "42")
		if d, err := key.Check(t.Context(), 7); err != nil || !d.Allowed || d.Remaining != 7 || d.Source != limit.SourceFailLocal || d.Degraded == nil {
			t.Errorf("%+v, %v", d, err)
		}
		if b, err := c.CheckAll(t.Context(), key.Spend(1), key.Spend(2)); err != nil || !b.Allowed {
			t.Errorf("%+v, %v", b, err)
		}
		spare.err = errors.New("broken")
		if d, err := key.Check(t.Context(), 7); err != nil || d.Allowed || !errors.Is(d.Degraded, spare.err) {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// spareLimiter allows everything.
type spareLimiter struct {
	Limiter
	err error
}

func (s *spareLimiter) Check(_ context.Context, q Check) (Decision, error) {
	return Decision{Allowed: true, Remaining: q.Amount, Verdict: limit.VerdictAllowed}, s.err
}

// TestBlockedStaysBlocked: a local limiter admits nothing of what the cluster's limit never does.
func TestBlockedStaysBlocked(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		f.set(func(n *fakeNode, _ *sluicev1.Check) *sluicev1.Decision {
			d := decision(n, false)
			d.Limit, d.Verdict = new(int64(0)), sluicev1.Verdict_VERDICT_DENIED_NEVER
			return d
		})
		c := f.dial(WithFailurePolicy(FailLocal(1)), WithTimeout(50*time.Millisecond))
		f.known(c)
		f.nodes[0].server.Stop()
		if d, err := c.Check(t.Context(), user); err != nil || d.Allowed || d.Verdict != limit.VerdictNever || d.Source != limit.SourceFailLocal {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// TestLocalAllOrNothing: what is not admitted in the end leaves local limiters as they were.
func TestLocalAllOrNothing(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		c := f.dial(WithFailurePolicy(FailLocal(1)), WithTimeout(50*time.Millisecond))
		f.known(c)
		f.nodes[0].server.Stop()
		much := user
		much.Amount = 100 // of 10
		for range 5 {
			all, err := c.CheckAll(t.Context(), user, much)
			if _, known := all.RetryIn(); err != nil || all.Allowed || known || all.Decisions[0].Verdict != limit.VerdictDeniedByOthers {
				t.Fatalf("%+v, %v", all, err)
			}
		}
		all10 := user
		all10.Amount = 10
		if d, err := c.Check(t.Context(), all10); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// TestQueueTooLong: a queue whose turn comes after the deadline is not waited for, and the place in it is given back.
func TestQueueTooLong(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		var refunds atomic.Int64
		f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
			if c.GetVerb() == sluicev1.Verb_VERB_REFUND {
				refunds.Add(c.GetCost() + 1) // unset, since it is 1
			}
			d := decision(n, true)
			d.DelayNs = int64(time.Hour)
			return d
		})
		key := f.dial().Key("shop", "user", "42")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := key.Wait(ctx); !errors.Is(err, ErrWouldExceedDeadline) || refunds.Load() != 1 {
			t.Errorf("%v, %d given back", err, refunds.Load())
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := key.Wait(ctx); !errors.Is(err, context.Canceled) || refunds.Load() != 2 {
			t.Errorf("cancelled: %v, %d given back", err, refunds.Load())
		}
	})
}

// stuckConn is a connection that takes nothing any more once stuck is closed, until the end of the test.
type stuckConn struct {
	net.Conn
	stuck, ended chan struct{}
}

func (c *stuckConn) Write(b []byte) (int, error) {
	select {
	case <-c.stuck:
		<-c.ended
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(b)
	}
}

// TestFullConnection: a node that takes nothing any more, so that not even a frame of checks is sent to the end, is left for another.
func TestFullConnection(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		stuck := map[string]chan struct{}{f.nodes[0].addr: make(chan struct{}), f.nodes[1].addr: make(chan struct{})}
		ended := make(chan struct{})
		c := f.dial(WithTimeout(12*time.Second), WithFailurePolicy(FailClosed()), func(o *config.Options) error {
			o.Dial = append(o.Dial, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := f.net.dial(ctx, addr)
				return &stuckConn{conn, stuck[addr], ended}, err
			}))
			return nil
		})
		t.Cleanup(func() { close(ended) }) // before c is closed
		d, err := c.Check(t.Context(), user)
		do(t, err)
		owner, other := f.nodes[0], f.nodes[1]
		if d.Owner == other.name {
			owner, other = other, owner
		}
		s := streamOf(c, owner)
		close(stuck[owner.addr])
		var calls sync.WaitGroup
		defer calls.Wait()
		calls.Go(func() { c.CheckAll(t.Context(), slices.Repeat([]Check{user}, 9999)...) }) // more than gRPC buffers
		inFlight := func(n int) func() bool {
			return func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.mu.inFlight) == n && (n == 1 || s.mu.sending)
			}
		}
		waitFor(t, "a large frame to be sent", inFlight(1))
		answered := make(chan Decision, 1)
		calls.Go(func() {
			d, err := c.Check(t.Context(), user)
			if err != nil {
				t.Error(err)
			}
			answered <- d
		})
		waitFor(t, "the next one to wait for it", inFlight(2))
		if d := <-answered; d.Source != limit.SourceOwned || d.Owner != other.name {
			t.Errorf("%+v", d)
		}
	})
}
