package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// maxStreams bounds the streams of one connection. A Pool uses one.
const maxStreams = 16

// Bytes that streams may send before their hello: those of one connection, and all.
const (
	maxUnknown      = 256 << 10
	maxUnknownOfAll = 16 << 20
)

// Server answers the frames of other nodes by a check.Handler and delivers their control messages to a ControlQueue. It must be
// closed with Close.
type Server struct {
	cfg     Config
	handler check.Handler
	grpc    *grpc.Server
	intern  *limiter.Interner
	inflow  *inflow.Budget
	quiet   *loglimit.Limiter
	stats   struct {
		streams                                          atomic.Int64
		records, delivered, skipped, rejected, malformed atomic.Uint64
	}
	requests, turns chan struct{} // have a value for each request in progress
}

// ServerStats has counts since NewServer, except for Streams.
type ServerStats struct {
	// Streams are open now.
	Streams int64
	// Records were answered.
	Records uint64
	// Delivered are messages given to the ControlQueue, Skipped those of a kind that this node does not know.
	Delivered, Skipped uint64
	// Rejected are streams whose hello was not accepted, Malformed those that ended because of an invalid frame.
	Rejected, Malformed uint64
	// Unread is the memory of streams before their hello.
	Unread inflow.Stats
}

// NewServer returns a server that lets h decide.
func NewServer(c Config, h check.Handler) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if h == nil {
		return nil, errors.New("peer: a server needs a handler")
	}
	c = c.withDefaults()
	budget, err := inflow.New(inflow.Config{
		Port: "peer", Connection: maxUnknown, Process: maxUnknownOfAll, Unknown: maxGreeting + 5, UnknownCalls: maxStreams,
		Deadline: greetTimeout, TrustKnown: true, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: c, handler: h, intern: limiter.NewInterner(c.MaxLimits), inflow: budget,
		quiet: loglimit.New(logEvery), requests: make(chan struct{}, MaxRequests), turns: make(chan struct{}, MaxTurns),
	}
	s.grpc = grpc.NewServer(append(budget.Options(c.Credentials),
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			return budget.Begin(ctx, call.FullMethodName, false)
		}),
		grpc.ForceServerCodecV2(newFrameCodec()),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxFrameBytes),
		grpc.MaxSendMsgSize(maxFrameBytes),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ConnectionTimeout(greetTimeout),
		grpc.MaxHeaderListSize(16<<10),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: time.Minute, // a connection without a stream
			Time:              keepaliveTime, Timeout: keepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2}),
	)...)
	peerv1.RegisterPeerServiceServer(budget.Registrar(s.grpc), service{Server: s})
	return s, nil
}

// Serve accepts peers on l until Close, and then returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("peer server on %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all streams and waits for their goroutines. Unanswered frames are ambiguous to their senders.
func (s *Server) Close() { s.grpc.Stop() }

// Stats returns the server's counts.
func (s *Server) Stats() ServerStats {
	return ServerStats{
		Streams:   s.stats.streams.Load(),
		Records:   s.stats.records.Load(),
		Delivered: s.stats.delivered.Load(), Skipped: s.stats.skipped.Load(),
		Rejected: s.stats.rejected.Load(), Malformed: s.stats.malformed.Load(), Unread: s.inflow.Stats(),
	}
}

// service keeps the generated interface off the Server.
type service struct {
	peerv1.UnimplementedPeerServiceServer
	*Server
}

// Exchange serves one stream and decides its frames in order. A frame whose replies have to wait for a replica or another node
// does so in a goroutine of its own, while the next one is decided; replies go out in the order of the frames.
func (s service) Exchange(stream grpc.BidiStreamingServer[peerv1.Request, peerv1.Reply]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream, true)
	if err != nil {
		return err
	}
	linked := !s.cfg.ownRegion(hello.Region)
	defs := &definitions{intern: s.intern}
	newExchange := func() *exchange {
		return &exchange{server: s.Server, from: hello.Boot, fromName: hello.Name, definitions: defs}
	}
	x, idle := newExchange(), make(chan *exchange, maxUnconfirmed)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	made, sent := 1, make(chan struct{}) // sent is closed when all frames before have been answered
	close(sent)
	for {
		if err := stream.RecvMsg(&x.request); err != nil {
			return err // the peer is gone, or sent something that is not a frame
		}
		err := x.read()
		if err == nil && linked {
			err = checkLinked(hello.Region, x.records)
		}
		if err != nil {
			return s.malformed(hello, err)
		}
		if !x.waits() {
			x.serve()
			<-sent
			if err := stream.SendMsg(&x.reply); err != nil {
				return err
			}
			continue
		}
		before, own := sent, x
		answered := make(chan struct{})
		sent = answered
		waiting.Go(func() {
			own.serve()
			<-before
			_ = stream.SendMsg(&own.reply) // if it fails the stream is over, as RecvMsg says
			close(answered)
			idle <- own
		})
		if made < maxUnconfirmed {
			made++
			x = newExchange()
		} else {
			x = <-idle
		}
	}
}

// maxUnconfirmed is the most frames of a stream that wait for replicas.
const maxUnconfirmed = maxInFlight

// malformed returns the status of a stream that ends because of a frame.
func (s service) malformed(hello *peerv1.Hello, err error) error {
	s.stats.malformed.Add(1)
	if s.quiet.Allow(time.Now(), "malformed") {
		s.cfg.Log.Warn("peer sent a malformed frame", "name", hello.Name, "error", err, "total", s.stats.malformed.Load())
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// exchange is the memory in which a frame is decoded, decided and answered.
type exchange struct {
	server      *Server
	from        string // boot id
	fromName    string
	definitions *definitions // of the stream

	request peerv1.Request
	reply   peerv1.Reply
	records []check.Record
	replies []check.Reply
	traced  []traced
}

func (x *exchange) read() error {
	m := &x.request
	if m.Hello != nil {
		return errSecondHello
	}
	if err := x.definitions.define(m.Define); err != nil {
		return fmt.Errorf("frame %d: %w", m.Seq, err)
	}
	clear(x.records) // they refer to limits of the last frame
	records, err := readRequest(m, x.definitions, x.records[:0])
	if err == nil {
		x.records = records
	}
	return err
}

// waits reports whether a reply has to wait for a replica or another node.
func (x *exchange) waits() bool {
	return slices.ContainsFunc(x.records, func(r check.Record) bool { return r.Sync || r.Relay })
}

// serve decides records and encodes reply.
func (x *exchange) serve() {
	m, records := &x.request, x.records
	x.replies = slices.Grow(x.replies[:0], len(records))[:len(records)]
	clear(x.replies)
	x.startSpans()
	x.server.handler.Serve(x.from, records, x.replies)
	x.endSpans()
	resetReply(&x.reply)
	x.reply.Seq = m.Seq
	writeReply(&x.reply, x.server.cfg.Name, x.replies)
	x.server.stats.records.Add(uint64(len(records)))
}

// ControlQueue takes messages from other nodes.
type ControlQueue interface {
	// Deliver must not block: meanwhile the sender's other messages wait. It may keep the message. Messages of one peer come
	// one after the other, those of different peers concurrently.
	Deliver(message.Envelope)
}

// Control serves one stream. Its goroutine delivers in order.
func (s service) Control(stream grpc.BidiStreamingServer[peerv1.MessageFrame, peerv1.Greeting]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream, false)
	if err != nil {
		return err
	}
	r := s.reader(hello)
	var post peerv1.MessageFrame
	var got []message.Envelope
	for {
		if err := stream.RecvMsg(&post); err != nil {
			return err // the peer is gone, or sent something that is not a frame
		}
		var skipped int
		if got, skipped, err = r.read(&post, got[:0]); err != nil {
			return s.malformed(hello, err)
		}
		s.stats.skipped.Add(uint64(skipped))
		if s.cfg.ControlQueue != nil {
			s.stats.delivered.Add(uint64(len(got)))
			for _, e := range got {
				s.cfg.ControlQueue.Deliver(e)
			}
		}
		// Nothing of this frame is kept while the next one is awaited.
		clear(got)
		resetMessages(&post)
	}
}

// reader returns a reader of the frames of a stream that hello began.
func (s service) reader(hello *peerv1.Hello) controlReader {
	return controlReader{from: message.Peer{Name: hello.Name, Boot: hello.Boot}, definitions: definitions{intern: s.intern}}
}
