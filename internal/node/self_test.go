package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/listen"
	"github.com/sluicecluster/sluice/internal/shed"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestNotice(t *testing.T) {
	var c notice
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		after time.Duration
		count uint64
		want  uint64
	}{
		{0, 0, 0},
		{5 * time.Second, 3, 3}, // the first is told at once
		{10 * time.Second, 10, 0},
		{64 * time.Second, 12, 0},
		{65 * time.Second, 20, 17}, // and the others once a minute
		{200 * time.Second, 20, 0},
		{205 * time.Second, 21, 1},
	} {
		if got := c.due(step.count, begin.Add(step.after)); got != step.want {
			t.Errorf("%d after %v: %d, want %d", step.count, step.after, got, step.want)
		}
	}
}

func TestPortNotice(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	var c portNotice
	now := time.Unix(1000, 0)
	c.look(log, portStats{"grpc", listen.Stats{Silent: 5}}, now)
	if text.Len() > 0 {
		t.Errorf("silent connections are logged: %s", &text)
	}
	c.look(log, portStats{"grpc", listen.Stats{Full: 2, Failed: 1}}, now)
	c.look(log, portStats{"grpc", listen.Stats{Full: 9, Crowded: 1, Failed: 1}}, now.Add(logEvery))
	for _, want := range []string{"full=2 of_one_address=0 accept_failed=1", "full=7 of_one_address=1 accept_failed=0"} {
		if !strings.Contains(text.String(), "port=grpc "+want) {
			t.Errorf("no %q in:\n%s", want, &text)
		}
	}
}

func TestOwnAddress(t *testing.T) {
	ip := func(text string) net.Addr {
		_, network, _ := net.ParseCIDR(text)
		network.IP = net.ParseIP(strings.Split(text, "/")[0])
		return network
	}
	here := func() ([]net.Addr, error) { return []net.Addr{ip("127.0.0.1/8"), ip("10.0.0.5/24")}, nil }
	gone := func() ([]net.Addr, error) { return []net.Addr{ip("127.0.0.1/8"), ip("10.0.0.50/24")}, nil }
	unknown := func() ([]net.Addr, error) { return nil, errors.New("no such call") }
	a := ownAddress{addr: netip.MustParseAddr("10.0.0.5")}
	for i, step := range []struct {
		addresses     func() ([]net.Addr, error)
		changed, lost bool
	}{
		{here, false, false},
		{gone, false, true}, // for a moment
		{here, false, false},
		{gone, false, true},
		{unknown, false, false},
		{gone, true, true},
		{gone, false, true},
		{here, true, false},
		{here, false, false},
	} {
		changed, lost := a.look(step.addresses)
		if changed != step.changed || changed && lost != step.lost {
			t.Errorf("step %d: changed %v, lost %v", i, changed, lost)
		}
	}
	if changed, _ := new(ownAddress).look(gone); changed {
		t.Error("an address that was given is looked for")
	}
}

func TestSleeper(t *testing.T) {
	second := int64(time.Second)
	s := sleeper{50 * second}
	for i, step := range []struct {
		now  int64
		want time.Duration
	}{
		{50*second + second/4, 0},
		{51*second + second/4, 0}, // late, but not by a second
		{61*second + second/2 + second/5, 10*time.Second + 200*time.Millisecond},
		{61*second + second/2 + second/5 + second/4, 0},
	} {
		if got := s.check(step.now, 250*time.Millisecond); got != step.want {
			t.Errorf("look %d: %v, want %v", i, got, step.want)
		}
	}
}

// A node whose work waits for too long turns checks away at every API, says when to come back, and
// does everything else.
func TestOverloadRejectsChecksAlone(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.Bounds.MaxWait = time.Minute
	var busy atomic.Bool // the machine's own waits do not count
	writeRule(t, s.Rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\n"+
		"descriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	n := startNode(t, s, func(n *Node) {
		n.schedLoad = func() (shed.Load, uint64) {
			if busy.Load() {
				return shed.Load{Wait: time.Hour, Waiting: 1000}, idleGoroutines
			}
			return shed.Load{}, idleGoroutines
		}
	})
	conn := n.conn(t)
	api := sluicev1.NewRateLimitServiceClient(conn)
	sdk, _ := newClient(t, n.listen.grpc.Addr().String())
	stream, err := api.CheckStream(t.Context())
	do(t, err)
	apis := map[string]func() (rejected bool){
		"CheckStream": func() bool {
			do(t, stream.Send(checksOf("auth", "user", "stream", 0)))
			res, err := stream.Recv()
			do(t, err)
			return res.GetError().GetCode() == sluicev1.ErrorCode_ERROR_CODE_OVERLOADED
		},
		"gubernator": func() bool {
			req := &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("n", "k", 0, 1)}}
			_, err := gubernatorv1.NewV1Client(conn).GetRateLimits(t.Context(), req)
			return status.Code(err) == codes.Unavailable
		},
	}
	users := 0
	for _, api := range n.apis(t, sdk)[:4] {
		apis[api.name] = func() bool {
			users++ // who have spent nothing
			got, err := api.ask(fmt.Sprint(users))
			do(t, err)
			return got == "unavailable" || api.name == "Envoy" && got == "denied" // by the rule, since Envoy may pass what is an error
		}
	}
	for name, rejected := range apis {
		if rejected() {
			t.Errorf("%s: rejected by a node at rest", name)
		}
	}
	busy.Store(true)
	await(t, "rejecting most", func() bool { return n.gate.Stats().Rejecting > 0.9 })
	for name, rejected := range apis {
		await(t, "rejected: "+name, rejected) // some are let in all the time
	}
	await(t, "told when to come back, by gRPC", func() bool {
		_, err := api.Check(t.Context(), checksOf("auth", "user", "a", sluicev1.Verb_VERB_READ))
		details := status.Convert(err).Details()
		return len(details) == 3 && slices.ContainsFunc(details, func(d any) bool {
			retry, ok := d.(*errdetails.RetryInfo)
			return ok && retry.GetRetryDelay().AsDuration() > 0
		})
	})
	await(t, "told when to come back, by HTTP", func() bool {
		resp, _ := send(t, n.listen.http.Addr(), "POST", "/v1/check", "{}")
		return resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
	})
	for range 50 {
		if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatalf("health: %v", err)
		}
		if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil {
			t.Fatalf("nodes: %v", err)
		}
		if code, _ := n.get(t, "/readyz"); code != http.StatusOK {
			t.Fatalf("readyz: %d", code)
		}
	}
	if _, text := n.get(t, "/metrics"); strings.Contains(text, `sluice_calls_rejected_total{reason="slow"} 0`) {
		t.Error("nothing was counted")
	}
}

// A node that has had too much to do takes everything again within 3 s of rest, though at rest it looks at itself more rarely.
func TestOverloadPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, err := shed.New(shed.Config{MaxCalls: 1, MaxWait: time.Second})
		do(t, err)
		var busy atomic.Bool
		var looks atomic.Int64
		busy.Store(true)
		n := &Node{gate: gate, clock: func() int64 { return time.Now().UnixNano() }, schedLoad: func() (shed.Load, uint64) {
			looks.Add(1)
			if busy.Load() {
				return shed.Load{Wait: time.Hour, Waiting: 1000}, idleGoroutines
			}
			return shed.Load{}, 0
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.watchRuntime(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if part := gate.Stats().Rejecting; part < 0.9 {
			t.Errorf("%.2f are rejected by a node that has had too much to do for a second", part)
		}
		busy.Store(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if part := gate.Stats().Rejecting; part != 0 {
			t.Errorf("%.2f are rejected after three seconds of rest", part)
		}
		looks.Store(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n, want := looks.Load(), int64(10*time.Second/idleTick); n > want+1 {
			t.Errorf("%d looks in ten seconds of rest, want %d", n, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWaits(t *testing.T) {
	h := &metrics.Float64Histogram{
		Buckets: []float64{math.Inf(-1), 0, 0.001, 0.1, 10, math.Inf(1)},
		Counts:  []uint64{0, 100, 100, 100, 100},
	}
	for _, c := range []struct {
		name   string
		before []uint64
		want   time.Duration
	}{
		{"nothing since", []uint64{0, 100, 100, 100, 100}, 0},
		{"one of ten waited long", []uint64{0, 10, 100, 90, 100}, 0},
		{"two of ten", []uint64{0, 20, 100, 80, 100}, 100 * time.Millisecond},
		{"all, longer than there are buckets for", []uint64{0, 100, 100, 100, 0}, 10 * time.Second},
	} {
		if got, _ := waitOf(h, c.before); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
