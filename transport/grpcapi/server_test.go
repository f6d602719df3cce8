package grpcapi

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newLimiter returns a Service on d.
func newLimiter(t testing.TB, d check.Decider) *limiter.Limiter {
	t.Helper()
	self := member.Member{Name: "n1", Boot: "b1", State: member.Serving, GRPC: "127.0.0.1:7460"}
	return apitest.NewLimiter(t, d, apitest.Rules, self)
}

// API is a Server being served in memory, and a client of it.
type api struct {
	*Server
	grpc   *grpc.Server
	conn   *grpc.ClientConn
	client sluicev1.RateLimitServiceClient
	admin  adminv1alpha1.AdminServiceClient
}

// open serves c until the test ends, by when all of it must have stopped.
func open(t testing.TB, c Config, opts ...grpc.ServerOption) *api {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	d := &api{Server: s, grpc: grpc.NewServer(append(s.Options(nil), opts...)...)}
	s.Register(d.grpc)
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- d.grpc.Serve(lis) }()
	d.conn, err = grpc.NewClient("passthrough:///api",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	d.client, d.admin = sluicev1.NewRateLimitServiceClient(d.conn), adminv1alpha1.NewAdminServiceClient(d.conn)
	t.Cleanup(func() {
		d.conn.Close()
		d.grpc.Stop()
		d.Close()
		// A test that asks nothing may stop the server before it has begun.
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return d
}

// openNode opens an API to a node of its own.
func openNode(t testing.TB) *api {
	return open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t))})
}

// user is a check of one user, to be changed.
func user(name string) *sluicev1.Check {
	return &sluicev1.Check{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: name}}}
}

func request(checks ...*sluicev1.Check) *sluicev1.CheckRequest {
	return &sluicev1.CheckRequest{Checks: checks}
}

func TestConfigValidate(t *testing.T) {
	for field, c := range map[string]Config{
		"Limiter":  {},
		"InFlight": {Limiter: &limiter.Limiter{}, InFlight: -1},
		"Unread":   {Limiter: &limiter.Limiter{}, Unread: -1},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}

func TestServices(t *testing.T) {
	d := openNode(t)
	info := d.grpc.GetServiceInfo()
	for _, name := range []string{"sluice.v1.RateLimitService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} {
		if _, ok := info[name]; !ok {
			t.Errorf("%s is not registered", name)
		}
	}
}

func TestHealth(t *testing.T) {
	d := openNode(t)
	health := healthv1.NewHealthClient(d.conn)
	want := func(when string, s healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", "sluice.v1.RateLimitService", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			res, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
			if err != nil || res.GetStatus() != s {
				t.Errorf("%s: %q is %v, %v; want %v", when, service, res.GetStatus(), err, s)
			}
		}
	}
	want("at first", healthv1.HealthCheckResponse_NOT_SERVING)
	d.SetReady(true)
	want("when ready", healthv1.HealthCheckResponse_SERVING)
	d.SetReady(false)
	want("when not ready any more", healthv1.HealthCheckResponse_NOT_SERVING)
	if _, err := d.client.Check(t.Context(), request(user("x"))); err != nil {
		t.Errorf("a node that is not ready does not answer: %v", err)
	}
	d.SetReady(true)
	d.Drain()
	d.SetReady(true)
	want("when leaving", healthv1.HealthCheckResponse_NOT_SERVING)
}

func TestDrainRejectsCalls(t *testing.T) {
	d := openNode(t)
	d.Drain()
	d.Drain()
	_, err := d.client.Check(t.Context(), request(user("x")))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("Check: %v", err)
	}
	stream, err := d.client.CheckStream(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("CheckStream: %v", err)
	}
}

// Shutdown ends idle streams by itself, and does not wait longer than its
// context for calls that hang.
// TestDrainEndsWatches: a client that watches the health of this node for as long as
// it lives does not hold up its end.
func TestDrainEndsWatches(t *testing.T) {
	d := openNode(t)
	watch, err := healthv1.NewHealthClient(d.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	d.Drain()
	d.grpc.GracefulStop() // would wait for the watch
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestShutdown(t *testing.T) {
	t.Run("idle stream", func(t *testing.T) {
		d := openNode(t)
		stream, err := d.client.CheckStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(request(user("x"))); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		d.Shutdown(t.Context(), d.grpc)
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v", err)
		}
	})
	t.Run("call that hangs", func(t *testing.T) {
		entered := make(chan struct{})
		d := open(t, Config{Limiter: newLimiter(t, decideFunc(func(ctx context.Context, b *check.Batch) {
			close(entered)
			<-ctx.Done()
			b.Answers[0].Err = check.ErrNoOwner
		}))})
		done := make(chan error, 1)
		go func() {
			_, err := d.client.Check(context.Background(), request(user("x")))
			done <- err
		}()
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		d.Shutdown(ctx, d.grpc)
		if err := <-done; status.Code(err) != codes.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
	})
}

// decideFunc is a Decider.
type decideFunc func(ctx context.Context, b *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }
