package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// MaxMessage is the default cap on a message, in bytes: 10,000 checks of a few
// hundred bytes each.
const MaxMessage = 4 << 20

// MaxHeaders caps the metadata of a call, in bytes, as HTTP's door caps headers. Clients are told
// when they connect, so that theirs refuses more with a clear error.
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
