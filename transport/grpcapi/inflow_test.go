package grpcapi

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/internal/certs/mint"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/test/rawh2"
)

// port is a Server on a port of loopback, or in memory, as a testing/synctest bubble needs it.
type port struct {
	*Server
	dial   func(context.Context) (net.Conn, error)
	secure *tls.Config // of clients, nil where it is plain
	token  string      // of a caller that may check
	lines  *strings.Builder
}

func openPort(t *testing.T, c Config, callers, secure bool) *port {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	return openPortOn(t, l, dial, c, callers, secure)
}

func openPortInMemory(t *testing.T, c Config, callers bool) *port {
	t.Helper()
	l := bufconn.Listen(64 << 10)
	return openPortOn(t, l, l.DialContext, c, callers, false)
}

func openPortOn(t *testing.T, l net.Listener, dial func(context.Context) (net.Conn, error), c Config, callers, secure bool) *port {
	t.Helper()
	p := &port{dial: dial, lines: new(strings.Builder)}
	c.Log = slog.New(slog.NewTextHandler(p.lines, nil))
	if callers {
		c.Guard, p.token = apitest.Guard(t, "callers: [{name: shop, tokens: [TOKEN], grants: [{domains: [shop], verbs: [check]}]}]")
	}
	if c.Limiter == nil {
		c.Limiter = newLimiter(t, apitest.NewNode(t))
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Server = s
	var creds credentials.TransportCredentials
	if secure {
		authority, err := mint.NewCA("test", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := authority.Issue(mint.Leaf{Hosts: []string{"127.0.0.1"}, Server: true, From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		own, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		creds = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13})
		p.secure = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	}
	g := grpc.NewServer(s.Options(creds)...)
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

// raw connects a client that does as it likes.
func (p *port) raw(t *testing.T) *rawh2.Client {
	t.Helper()
	c, err := p.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if p.secure != nil {
		c = tls.Client(c, p.secure)
	}
	r, err := rawh2.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// client connects one that behaves, and has the token if there is one.
func (p *port) client(t *testing.T) (*grpc.ClientConn, context.Context) {
	t.Helper()
	creds := insecure.NewCredentials()
	if p.secure != nil {
		creds = credentials.NewTLS(p.secure.Clone())
	}
	c, err := grpc.NewClient("10.0.0.1:7460", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx := t.Context()
	if p.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+p.token)
	}
	return c, ctx
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys - m.HeapReleased
}

// One connection that finishes none of its messages takes at most 64 MiB of the process, and others are answered.
func TestUnfinishedMessages(t *testing.T) {
	for name, c := range map[string]struct{ callers, secure bool }{
		"open": {}, "callers": {callers: true}, "TLS": {secure: true}, "TLS and callers": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPort(t, Config{MessageDeadline: time.Second}, c.callers, c.secure)
			conn, ctx := p.client(t)
			client := sluicev1.NewRateLimitServiceClient(conn)
			if _, err := client.Check(ctx, request(user("before"))); err != nil {
				t.Fatal(err)
			}
			debug.FreeOSMemory()
			before := heap()
			r := p.raw(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.Flood(t.Context(), 150, 4<<20, sluicev1.RateLimitService_Check_FullMethodName)
			}()
			most, asked := before, 0
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				one, cancel := context.WithTimeout(ctx, time.Minute)
				if _, err := client.Check(one, request(user("other"))); err != nil {
					t.Fatalf("another caller: %v", err)
				}
				cancel()
				now := heap()
				if now-before > 64<<20 { // a busy machine collects garbage late; TestOneConnection of test/e2e looks at a process of its own
					debug.FreeOSMemory()
					now = heap()
				}
				most, asked = max(most, now), asked+1
				if held := p.Unread().Held; held > maxUnread+1<<20 {
					t.Fatalf("%d bytes are held", held)
				}
			}
			t.Logf("%d MiB more, %d other calls, %+v", (most-before)>>20, asked, p.Unread())
			if most-before > 64<<20 && !race.Enabled { // the race detector has memory of its own
				t.Errorf("the process has grown by %d MiB; want at most 64", (most-before)>>20)
			}
			ended, _, over := r.Ended()
			for id, s := range ended {
				if want := codes.Unauthenticated; c.callers && s != int(want) {
					t.Errorf("call %d: status %d, want %d", id, s, want)
				}
			}
			if c.callers && len(ended) != 150 && over == nil {
				t.Errorf("%d calls were rejected, want 150", len(ended))
			}
		})
	}
}

// A message that does not end is ended, with a status, and the other calls of its connection go on.
func TestMessageDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openPortInMemory(t, Config{MessageDeadline: time.Second}, false)
		r := p.raw(t)
		stream, err := r.Open(sluicev1.RateLimitService_CheckStream_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		half, err := r.Open(sluicev1.RateLimitService_Check_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Announce(half, 1000); err != nil {
			t.Fatal(err)
		}
		silent, err := r.Open(sluicev1.RateLimitService_Check_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		late := time.After(time.Minute)
		for {
			ended, changed, over := r.Ended()
			if over != nil {
				t.Fatal(over)
			}
			if s, ok := ended[stream]; ok {
				t.Fatalf("a stream without a message was ended with status %d", s)
			}
			if len(ended) == 2 {
				if ended[half] != int(codes.DeadlineExceeded) || ended[silent] != int(codes.DeadlineExceeded) {
					t.Errorf("statuses %v", ended)
				}
				break
			}
			select {
			case <-changed:
			case <-late:
				t.Fatalf("not ended: %v", ended)
			}
		}
		s := p.Unread()
		if s.Held != 0 || s.Ended.Of("deadline") != 2 {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(p.lines.String(), "\n"); n != 1 {
			t.Errorf("%d lines:\n%s", n, p.lines)
		}
	})
}

// Large messages that do end are all answered, however many come at once.
func TestLargeMessages(t *testing.T) {
	p := openPort(t, Config{MessageDeadline: time.Minute}, false, false) // on a busy machine they take their time
	conn, ctx := p.client(t)
	client := sluicev1.NewRateLimitServiceClient(conn)
	many := request()
	for range 10_000 {
		many.Checks = append(many.Checks, user(strings.Repeat("x", 60)))
	}
	errs := make(chan error)
	for range 32 {
		go func() {
			_, err := client.Check(ctx, many)
			errs <- err
		}()
	}
	for range 32 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	stream, err := client.CheckStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 40 { // 32 MiB, all of it read
		if err := stream.Send(many); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.Unread(); s.Held != 0 || s.Ended.Of("connection") != 0 {
		t.Errorf("%+v", s)
	}
}

// Without a token there is health, in small messages and few calls, and nothing else.
func TestUnauthenticated(t *testing.T) {
	p := openPort(t, Config{}, true, false)
	r := p.raw(t)
	for _, method := range []string{"/sluice.admin.v1alpha1.AdminService/Members", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/no.such/Method"} {
		id, err := r.Open(method)
		if err != nil {
			t.Fatal(err)
		}
		if s := wait(t, r, id); s != int(codes.Unauthenticated) {
			t.Errorf("%s: status %d", method, s)
		}
	}
	id, err := r.Open(healthv1.Health_Check_FullMethodName)
	if err == nil {
		err = r.Announce(id, 8<<10)
	}
	if err == nil {
		err = r.Send(id, make([]byte, 8<<10-1))
	}
	if err != nil {
		t.Fatal(err)
	}
	if s := wait(t, r, id); s != int(codes.ResourceExhausted) {
		t.Errorf("a long health check: status %d", s)
	}
	conn, ctx := p.client(t)
	var last healthv1.Health_WatchClient
	for range maxUnknownCalls + 1 {
		if last, err = healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := last.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one watch too many: %v", err)
	}
	// Callers with a token have as many calls as they like.
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// TestRejectedCallsTakeTime: a connection that has calls without a token has at most a thousand a second, and takes little of the node's time by them.
// One that others with a token share, as that of a proxy, does not wait for them.
func TestRejectedCallsTakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 1500
		for _, known := range []bool{false, true} {
			p := openPortInMemory(t, Config{}, true)
			conn, ctx := p.client(t)
			api := sluicev1.NewRateLimitServiceClient(conn)
			if known {
				if _, err := api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{Domain: "shop"}}}); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() {
					for range calls / 10 {
						if _, err := api.Check(t.Context(), &sluicev1.CheckRequest{}); status.Code(err) != codes.Unauthenticated {
							t.Errorf("%v, want %v", err, codes.Unauthenticated)
							return
						}
					}
				})
			}
			callers.Wait()
			if took := time.Since(began); known && took != 0 || !known && took < calls*time.Millisecond {
				t.Errorf("another call of the connection has a token %v: %d calls without one took %v", known, calls, took)
			}
		}
	})
}

func wait(t *testing.T, r *rawh2.Client, id uint32) int {
	t.Helper()
	late := time.After(time.Minute)
	for {
		ended, changed, over := r.Ended()
		if s, ok := ended[id]; ok {
			return s
		}
		if over != nil {
			t.Fatal(over)
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("call %d has not ended", id)
		}
	}
}
