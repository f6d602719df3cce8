package proxies

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// filter asks as Envoy's rate limit filter does by examples/envoy/envoy.yaml, which no test can run: the nodes of the cluster in
// turn, but for those that the health checks have found dead, each request once and within the time-out.
type filter struct {
	config  *filterv3.RateLimit
	cluster *cluster
	nodes   []*upstream
	next    atomic.Uint64
}

// upstream is one endpoint.
type upstream struct {
	conn    *grpc.ClientConn
	healthy atomic.Bool
}

// newFilter returns what the file has at host, which checks the nodes' health until the test ends.
func newFilter(t *testing.T, host string, c *cluster) *filter {
	t.Helper()
	config := decodeEnvoy(t, example(t, "envoy/envoy.yaml", host))
	f := &filter{cluster: c, config: filterOf(t, config)}
	name := f.config.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName()
	ctx, cancel := context.WithCancel(context.Background())
	var checks sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		checks.Wait()
		for _, n := range f.nodes {
			n.conn.Close()
		}
	})
	for _, one := range config.GetStaticResources().GetClusters() {
		if one.GetName() != name {
			continue
		}
		for i, e := range one.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints() {
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			if want := uint32(7460 + 10*i); a.GetAddress() != host || a.GetPortValue() != want {
				t.Fatalf("endpoint %d is %v, want %s:%d", i, a, host, want)
			}
			quickly := grpc.ConnectParams{MinConnectTimeout: one.GetConnectTimeout().AsDuration(),
				Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}}
			conn, err := grpc.NewClient(net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue()))),
				grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quickly))
			if err != nil {
				t.Fatal(err)
			}
			n := &upstream{conn: conn}
			n.healthy.Store(true)
			f.nodes = append(f.nodes, n)
			checks.Go(func() { n.watch(ctx, one.GetHealthChecks()[0]) })
		}
	}
	if len(f.nodes) != len(c.nodes) {
		t.Fatalf("%d endpoints, want %d", len(f.nodes), len(c.nodes))
	}
	return f
}

// filterOf returns the rate limit filter of a configuration.
func filterOf(t *testing.T, config *bootstrapv3.Bootstrap) *filterv3.RateLimit {
	t.Helper()
	edge := config.GetStaticResources().GetListeners()[0]
	manager := unpack[*hcmv3.HttpConnectionManager](t, edge.GetFilterChains()[0].GetFilters()[0].GetTypedConfig())
	return unpack[*filterv3.RateLimit](t, manager.GetHttpFilters()[0].GetTypedConfig())
}

// watch checks the health of n as h says, until ctx ends.
func (n *upstream) watch(ctx context.Context, h *corev3.HealthCheck) {
	tick := time.NewTicker(h.GetInterval().AsDuration())
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, h.GetTimeout().AsDuration())
		res, err := healthv1.NewHealthClient(n.conn).Check(one, &healthv1.HealthCheckRequest{Service: h.GetGrpcHealthCheck().GetServiceName()})
		cancel()
		n.healthy.Store(err == nil && res.GetStatus() == healthv1.HealthCheckResponse_SERVING)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pick returns the next healthy endpoint, or just the next one if there is none.
func (f *filter) pick() int {
	first := int(f.next.Add(1))
	for i := range f.nodes {
		if at := (first + i) % len(f.nodes); f.nodes[at].healthy.Load() {
			return at
		}
	}
	return first % len(f.nodes)
}

// ask asks about one request, with the descriptors that the file makes of it.
func (f *filter) ask(who int, login bool) outcome {
	address := &commonv3.RateLimitDescriptor_Entry{Key: "remote_address", Value: fmt.Sprint("127.0.1.", 10+who)}
	d := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{address}}
	if login {
		d.Entries = []*commonv3.RateLimitDescriptor_Entry{{Key: "route", Value: "login"}, address}
	}
	began, at := time.Now(), f.pick()
	ctx, cancel := context.WithTimeout(f.cluster.t.Context(), f.config.GetTimeout().AsDuration())
	defer cancel()
	res, err := ratelimitv3.NewRateLimitServiceClient(f.nodes[at].conn).ShouldRateLimit(ctx,
		&ratelimitv3.RateLimitRequest{Domain: f.config.GetDomain(), Descriptors: []*commonv3.RateLimitDescriptor{d}})
	switch {
	case err != nil && !f.config.GetFailureModeDeny():
		return outcome{passed: true}
	case err != nil && f.cluster.wasOut(at, began, time.Now()):
		return outcome{dead: true}
	case err != nil:
		return outcome{failed: err.Error()}
	case res.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT:
		return outcome{limited: true}
	}
	return outcome{passed: true, limited: res.GetStatuses()[0].GetCurrentLimit() != nil}
}

// TestEnvoyUnderFire: a request is rejected without a limit only where the node that Envoy has asked is dead or hangs.
func TestEnvoyUnderFire(t *testing.T) {
	host := newHost(t)
	c := startCluster(t, host, "envoy/rules")
	f := newFilter(t, host, c)
	all := underFire(c, f.ask)
	judge(t, all)
	dead := 0
	for _, o := range all {
		if o.dead {
			dead++
		}
	}
	// A third of the load, for one interval and one time-out of the health checks, in each of two outages; twice that on a busy machine.
	if most := 2 * 2 * 2 * rate / 3; dead > most {
		t.Errorf("%d requests were rejected because the node asked was dead; want %d at most", dead, most)
	}
	t.Logf("%d requests were rejected because the node asked was dead", dead)
}
