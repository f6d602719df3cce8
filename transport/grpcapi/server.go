// Package grpcapi is the gRPC API: sluice.v1 on a *grpc.Server that the caller
// makes and serves, with the standard health and reflection services beside it.
//
// It decides gRPC status codes, and that an operator's call comes from this machine; checks are the limiter.Service's.
// Each CheckStream has a goroutine that reads and one per request in flight; the stream's handler waits for the latter,
// Close for all.
package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Config configures a Server.
type Config struct {
	// Limiter decides checks. Required.
	Limiter limiter.Service
	// Guard authenticates and authorizes callers. nil admits all.
	Guard *access.Guard
	// CheckTimeout is how long the Limiter looks for the owner of a key; clients learn it.
	CheckTimeout time.Duration
	// Tracing: callers' traceparent is read.
	Tracing bool
	// Reasons says why the node is not ready, for the trailer TrailerReason of the health service. May be nil.
	Reasons func() []string
	// InFlight caps the requests of one CheckStream that are being decided; the stream is read no further meanwhile.
	// 0 means 64.
	InFlight int
	// MaxAge is the age at which clients are told to open another connection, plus or minus a tenth. Streams end a little later, with
	// everything that they have taken answered, and other calls have time to end. 0 means no age.
	MaxAge time.Duration
	// Unread is how long a response on a CheckStream may wait for the client to read, before the stream ends. 0 means 10 s.
	Unread time.Duration
	// Admit is called for each request of a CheckStream, each call of Check, Reserve, Spend and Extend, and of Methods with Shed
	// before their message is read. A rejected one gets limiter.ErrBusy. nil admits all.
	Admit func() bool
	// Methods are those of other services on the same port, by full name, "/service/method". Others have only known clients.
	Methods map[string]Method
	// MessageDeadline is how long the message of a unary call may take, from its headers on. 0 means 10 s.
	MessageDeadline time.Duration
	// MaxUnread is the most bytes that are held of messages that are not complete, of all connections. 0 means 128 MiB.
	MaxUnread int
	// Memory bounds the memory of messages, with that of other APIs. nil means one of a process
	// that may take 512 MiB.
	Memory *inflow.Memory
	// Log gets a line when a call ends because its connection holds too much of incomplete messages. Nil logs nothing.
	Log *slog.Logger
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("grpcapi: Limiter is required")
	case c.InFlight < 0:
		return errors.New("grpcapi: InFlight is negative")
	case c.MaxAge < 0:
		return errors.New("grpcapi: MaxAge is negative")
	case c.Unread < 0:
		return errors.New("grpcapi: Unread is negative")
	case c.MaxUnread < 0:
		return errors.New("grpcapi: MaxUnread is negative")
	case c.MessageDeadline < 0:
		return errors.New("grpcapi: MessageDeadline is negative")
	}
	return nil
}

// Server is sluice.v1 and sluice.admin.v1alpha1. Make it with New, close it with Close.
type Server struct {
	sluicev1.UnimplementedRateLimitServiceServer
	config Config
	health *health.Server
	inflow *inflow.Budget

	// leaving ends when no more requests are to be taken; mu is held to end it, and to start a reader.
	leaving context.Context
	leave   context.CancelFunc
	mu      sync.Mutex
	readers sync.WaitGroup
}

// New returns a Server that says NOT_SERVING until SetReady.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.InFlight = cmp.Or(c.InFlight, 64)
	c.Unread = cmp.Or(c.Unread, 10*time.Second)
	c.MessageDeadline = cmp.Or(c.MessageDeadline, messageDeadline)
	c.MaxUnread = cmp.Or(c.MaxUnread, maxUnreadOfAll)
	if c.Memory == nil {
		c.Memory = inflow.NewMemory(512 << 20)
	}
	if c.Admit == nil {
		c.Admit = func() bool { return true }
	}
	budget, err := inflow.New(inflow.Config{
		Port: "grpc", Connection: min(maxUnread, c.MaxUnread), Process: c.MaxUnread,
		Unknown: maxUnknown, UnknownCalls: maxUnknownCalls, Deadline: c.MessageDeadline, Memory: c.Memory, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, health: health.NewServer(), inflow: budget}
	s.leaving, s.leave = context.WithCancel(context.Background())
	s.SetReady(false)
	return s, nil
}

// Register adds sluice.v1, sluice.admin.v1alpha1, grpc.health.v1 and reflection to g, which must have Options and not serve yet. It returns the
// registrar for other services of the same port, whose calls are bounded alike.
func (s *Server) Register(g *grpc.Server) grpc.ServiceRegistrar {
	r := s.inflow.Registrar(g)
	r.RegisterService(serviceDesc(), s)
	adminv1alpha1.RegisterAdminServiceServer(r, admin{Server: s})
	healthv1.RegisterHealthServer(r, &healthService{s.health, s})
	reflection.Register(r)
	return r
}

// healthNames are the services that the health service knows: the node, its own API, and the names that clients of
// envoyproxy/ratelimit use.
var healthNames = []string{
	"", sluicev1.RateLimitService_ServiceDesc.ServiceName, "ratelimit", "envoy.service.ratelimit.v3.RateLimitService",
}

// SetReady makes the health service report SERVING or NOT_SERVING. Checks are answered either way. After Drain it stays
// NOT_SERVING.
func (s *Server) SetReady(ready bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		s.health.SetServingStatus(name, status)
	}
}

// Drain rejects new calls with Unavailable, reports NOT_SERVING, and ends streams once the requests that they have taken
// are answered. It does not wait.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health.Shutdown()
	s.leave()
}

// Shutdown drains, stops g gracefully until ctx ends and by force then, and waits until nothing of s is running.
func (s *Server) Shutdown(ctx context.Context, g *grpc.Server) {
	s.Drain()
	stop := context.AfterFunc(ctx, g.Stop) // ends GracefulStop too
	g.GracefulStop()
	stop()
	s.Close()
}

// Close drains and waits until every stream has ended: call it after the grpc.Server has been stopped.
func (s *Server) Close() {
	s.Drain()
	s.readers.Wait()
}

// read runs f in a goroutine that Close waits for, unless s is leaving.
func (s *Server) read(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Err() != nil {
		return false
	}
	s.readers.Go(f)
	return true
}

const (
	// maxMessage is the default cap on a message, in bytes: 10,000 checks of a few hundred bytes each.
	maxMessage = 4 << 20
	// maxHeaders caps the metadata of a call, in bytes. Clients learn of it when they connect, so that they reject more
	// with a clear error.
	maxHeaders = 64 << 10
	// maxStreams is the most calls at once on one connection. Clients wait with more.
	maxStreams = 250
	// streamWorkers is how many goroutines wait for calls: one that has served calls has a stack that is large enough.
	streamWorkers = 128
)

// Options returns ServerOptions, the credentials c, nil for plain TCP, the hooks that authenticate calls and bound their
// messages, and an interceptor that ends streams that would outlast s or their connection.
func (s *Server) Options(c credentials.TransportCredentials) []grpc.ServerOption {
	options := append(ServerOptions(), grpc.InTapHandle(s.tap))
	if age := s.config.MaxAge; age > 0 {
		p := keepaliveParams
		p.MaxConnectionAge, p.MaxConnectionAgeGrace = age, streamAge(age)-age*9/10+s.config.CheckTimeout+s.config.Unread
		options = append(options, grpc.KeepaliveParams(p))
	}
	return append(append(options, s.inflow.Options(c)...), grpc.ChainStreamInterceptor(s.endWithDrain))
}

// HTTPOptions returns those Options that suit a server that only its ServeHTTP reaches: connections are the HTTP server's.
func (s *Server) HTTPOptions() []grpc.ServerOption {
	return append(ServerOptions(), s.inflow.Streams(), grpc.ChainStreamInterceptor(s.endWithDrain))
}

// streamAge is the age of a connection of that MaxAge at which its streams end. gRPC's own jitter is a tenth, so the client knows then
// that it must open another connection. One that streams forever would be broken off after the grace, with calls that are not answered.
func streamAge(most time.Duration) time.Duration { return most*11/10 + time.Second }

// errAged ends streams of connections that are too old. Like errLeaving, it says that everything that was decided is answered.
var errAged = statusOf(&limiter.Error{Code: limiter.Unavailable, Message: "this connection has reached --grpc-max-connection-age; open the stream again"})

// lifeOf returns a context that ends when a stream must end, and whose cause is errAged or that of leaving.
func (s *Server) lifeOf(stream grpc.ServerStream) (context.Context, context.CancelFunc) {
	opened := inflow.Opened(stream.Context())
	if s.config.MaxAge == 0 || opened.IsZero() {
		return s.leaving, func() {}
	}
	return context.WithDeadlineCause(s.leaving, opened.Add(streamAge(s.config.MaxAge)), errAged)
}

// endOf returns the status of a stream whose life has ended.
func endOf(life context.Context) error {
	if context.Cause(life) == errAged {
		return errAged
	}
	return errLeaving
}

// endWithDrain ends the context of streams when s is drained or their connection is old. CheckStream ends by itself once everything is
// answered.
func (s *Server) endWithDrain(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == sluicev1.RateLimitService_CheckStream_FullMethodName {
		return handler(srv, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	life, end := s.lifeOf(stream)
	defer end()
	over := make(chan error, 1)
	if !s.read(func() { over <- handler(srv, &endingStream{stream, ctx}) }) {
		return errLeaving
	}
	select {
	case err := <-over:
		return err
	case <-life.Done():
		// A handler that waits for its client in Recv ends when this one has returned, and Close waits for it.
		return endOf(life)
	}
}

// endingStream is a stream with a shorter context.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }

// keepaliveParams: a client that vanished without a word frees its streams within 40 s.
var keepaliveParams = keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// ServerOptions returns the options that a grpc.Server must have that a Server is registered with, the codec of its hot
// calls among them. Responses are not capped: a small check can have a long one.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.NewCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(10 * time.Second),
		// Idle clients that ping to keep their connection are welcome, in reason.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepaliveParams),
		// Wide enough that batches do not wait for window updates. A longer message gets more when its length is read.
		grpc.InitialWindowSize(256 << 10),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.NumStreamWorkers(streamWorkers),
		// Stop returns when handlers have, so that what they use may be closed.
		grpc.WaitForHandlers(true),
	}
}
