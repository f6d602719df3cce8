package grpcapi

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// MaxMessage is the default cap on a message, in bytes: 10,000 checks of a few
// hundred bytes each.
const MaxMessage = 4 << 20

// ServerOptions returns the options that a grpc.Server must have that a Server is
// registered with, the codec of its hot calls among them. maxMessage caps a message received, in bytes; 0 means MaxMessage. Answers
// are not capped: a small check can have a long answer.
func ServerOptions(maxMessage int) []grpc.ServerOption {
	if maxMessage == 0 {
		maxMessage = MaxMessage
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(4096),
		grpc.ConnectionTimeout(10 * time.Second),
		// Idle clients that ping to keep their connection are welcome, in reason.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// A client that vanished without a word frees its streams within 40 s.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Wide enough that batches do not wait for window updates.
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
		// Stop returns when handlers have, so that what they use may be closed.
		grpc.WaitForHandlers(true),
	}
}
