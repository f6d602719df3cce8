// Package grpcapi is the gRPC API: sluice.v1 on a *grpc.Server that the caller
// makes and serves, with the standard health and reflection services beside it.
//
// It decides gRPC status codes, and that an operator's call comes from this machine;
// nothing about checks, which are the limiter.Service's. Each CheckStream has a
// goroutine that reads and one per request in flight; the stream's handler waits for
// the latter, Close for all.
package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/inflow"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Config is what a Server is made of.
type Config struct {
	// Limiter answers. Required.
	Limiter limiter.Service
	// Guard says who may ask. nil lets everybody in.
	Guard *access.Guard
	// Tracing: callers' traceparent is read.
	Tracing bool
	// Reasons says why the node is not ready; callers of the health service are told in the trailer
	// TrailerReason. May be nil.
	Reasons func() []string
	// InFlight caps the requests of one CheckStream that are being decided; it
	// is not read on before one is answered. 0 means 64.
	InFlight int
	// Unread is how long an answer on a CheckStream may wait until the client reads, before the stream ends. 0 means 10 s.
	Unread time.Duration
	// Admit is asked about each request of a CheckStream; one that it rejects is answered with
	// limiter.ErrBusy. So are calls of Check, and of Methods with Shed, before their message is read. nil admits all.
	Admit func() bool
	// Methods are those of other services on the same port, by full name, "/service/method". Others have only known clients.
	Methods map[string]Method
	// MessageDeadline is how long the message of a unary call may take, from its headers on. 0 means 10 s.
	MessageDeadline time.Duration
	// MaxUnread is the most bytes that are held of messages that are not complete, of all connections. 0 means 128 MiB.
	MaxUnread int
	// Log gets a line when a call is ended because too much of its connection's messages is not complete. Nil logs nothing.
	Log *slog.Logger
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("grpcapi: Limiter is required")
	case c.InFlight < 0:
		return errors.New("grpcapi: InFlight is negative")
	case c.Unread < 0:
		return errors.New("grpcapi: Unread is negative")
	case c.MaxUnread < 0:
		return errors.New("grpcapi: MaxUnread is negative")
	case c.MessageDeadline < 0:
		return errors.New("grpcapi: MessageDeadline is negative")
	}
	return nil
}

// Server is sluice.v1. Make it with New, close it with Close.
type Server struct {
	sluicev1.UnimplementedSluiceServiceServer
	limiter  limiter.Service
	guard    *access.Guard
	inFlight int
	unread   time.Duration
	admit    func() bool
	health   *health.Server
	reasons  func() []string
	tracing  bool
	methods  map[string]Method
	inflow   *inflow.Budget

	// leaving is closed when no more requests are to be taken.
	leaving chan struct{}
	mu      struct {
		sync.Mutex
		left bool
	}
	readers sync.WaitGroup
}

// New returns a Server that says NOT_SERVING until SetReady.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.InFlight == 0 {
		c.InFlight = 64
	}
	if c.Unread == 0 {
		c.Unread = 10 * time.Second
	}
	if c.Admit == nil {
		c.Admit = func() bool { return true }
	}
	if c.MessageDeadline == 0 {
		c.MessageDeadline = messageDeadline
	}
	if c.MaxUnread == 0 {
		c.MaxUnread = maxUnreadOfAll
	}
	budget, err := inflow.New(inflow.Config{
		Port: "grpc", Connection: min(maxUnread, c.MaxUnread), Process: c.MaxUnread, Unknown: maxUnknown, UnknownCalls: maxUnknownCalls, Deadline: c.MessageDeadline, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	s := &Server{
		limiter: c.Limiter, guard: c.Guard, inFlight: c.InFlight, unread: c.Unread, admit: c.Admit, health: health.NewServer(), reasons: c.Reasons, tracing: c.Tracing,
		methods: c.Methods, inflow: budget, leaving: make(chan struct{}),
	}
	s.SetReady(false)
	return s, nil
}

// Register adds sluice.v1, grpc.health.v1 and reflection to g, which must have Options and not
// serve yet. What it returns is for other services of the same port: their calls are bounded as these.
func (s *Server) Register(g *grpc.Server) grpc.ServiceRegistrar {
	r := s.inflow.Registrar(g)
	r.RegisterService(serviceDesc(), s)
	healthv1.RegisterHealthServer(r, &healthService{s.health, s})
	reflection.Register(r)
	return r
}

// healthNames are the services that the health service knows: the whole node, its own API, and the names by which clients of
// envoyproxy/ratelimit ask.
var healthNames = []string{"", sluicev1.SluiceService_ServiceDesc.ServiceName, "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"}

// SetReady sets what the health service says of this node: SERVING or
// NOT_SERVING. Checks are answered either way. After Drain it stays NOT_SERVING.
func (s *Server) SetReady(ready bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		s.health.SetServingStatus(name, status)
	}
}

// Drain rejects new calls with Unavailable, says NOT_SERVING, and ends streams
// once what they have taken is answered. It does not wait.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.left {
		s.mu.left = true
		s.health.Shutdown()
		close(s.leaving)
	}
}

// Shutdown drains, stops g gracefully until ctx ends and by force then, and
// waits until nothing of s is running.
func (s *Server) Shutdown(ctx context.Context, g *grpc.Server) {
	s.Drain()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		// Ends GracefulStop too.
		g.Stop()
		<-stopped
	}
	s.Close()
}

// Close drains and waits until every stream has ended: call it after the
// grpc.Server has been stopped.
func (s *Server) Close() {
	s.Drain()
	s.readers.Wait()
}

// gone reports whether Drain was called.
func (s *Server) gone() bool {
	select {
	case <-s.leaving:
		return true
	default:
		return false
	}
}

// read runs f in a goroutine that Close waits for, unless s is leaving.
func (s *Server) read(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.left {
		return false
	}
	s.readers.Go(f)
	return true
}

// MaxMessage is the default cap on a message, in bytes: 10,000 checks of a few
// hundred bytes each.
const MaxMessage = 4 << 20

// MaxHeaders caps the metadata of a call, in bytes, as HTTP's API caps headers. Clients are told
// when they connect, so that theirs rejects more with a clear error.
const MaxHeaders = 64 << 10

// MaxStreams is the most calls at once on one connection. Clients wait with more.
const MaxStreams = 250

// Options returns ServerOptions, the credentials c, nil for plain TCP, what authenticates calls and bounds their messages, and what ends
// streams that would outlast s: health watches and reflection, which clients keep open for as long as they live.
func (s *Server) Options(maxMessage int, c credentials.TransportCredentials) []grpc.ServerOption {
	options := append(ServerOptions(maxMessage), grpc.InTapHandle(s.tap))
	return append(append(options, s.inflow.Options(c)...), grpc.ChainStreamInterceptor(s.endWithDrain))
}

// HTTPOptions returns what of Options is for a server that is reached by its ServeHTTP alone: connections are the HTTP server's.
func (s *Server) HTTPOptions() []grpc.ServerOption {
	return append(ServerOptions(0), grpc.ChainStreamInterceptor(s.endWithDrain))
}

// endWithDrain ends the context of all streams but CheckStream, which ends by
// itself once everything is answered, when s is drained.
func (s *Server) endWithDrain(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == sluicev1.SluiceService_CheckStream_FullMethodName {
		return handler(srv, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	over := make(chan error, 1)
	if !s.read(func() { over <- handler(srv, &endingStream{stream, ctx}) }) {
		return errLeaving
	}
	select {
	case err := <-over:
		return err
	case <-s.leaving:
		// Health has said NOT_SERVING. A handler that waits for its client in Recv
		// ends when this one has returned, and Close waits for it.
		return errLeaving
	}
}

// endingStream is a stream with a shorter context.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }

// ServerOptions returns the options that a grpc.Server must have that a Server is
// registered with, the codec of its hot calls among them. maxMessage caps a message
// received, in bytes; 0 means MaxMessage. Answers are not capped: a small check can
// have a long answer.
func ServerOptions(maxMessage int) []grpc.ServerOption {
	if maxMessage == 0 {
		maxMessage = MaxMessage
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(MaxHeaders),
		grpc.MaxConcurrentStreams(MaxStreams),
		grpc.ConnectionTimeout(10 * time.Second),
		// Idle clients that ping to keep their connection are welcome, in reason.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// A client that vanished without a word frees its streams within 40 s.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Wide enough that batches do not wait for window updates. A longer message gets more when its length is read.
		grpc.InitialWindowSize(256 << 10),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.NumStreamWorkers(streamWorkers),
		// Stop returns when handlers have, so that what they use may be closed.
		grpc.WaitForHandlers(true),
	}
}

// streamWorkers is how many goroutines wait for calls. One that has served calls has a stack that is large enough; a new
// one grows its own by copying it several times, which takes longer than to decide.
const streamWorkers = 128
