package audit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// failure is why an attempt gave no answer.
type failure uint8

const (
	// none: there is an answer.
	none failure = iota
	// unsent: the call never left; nothing was charged.
	unsent
	// refused: the node answered UNAVAILABLE; it decides nothing then.
	refused
	// ambiguous: the call was sent, and may have been processed.
	ambiguous
	// final: another node would say the same.
	final
)

// fate is how far a call came, which its status does not tell: UNAVAILABLE may mean that the node
// could not be reached, refused, or was lost while it decided. gRPC's reading goroutine
// may still write it when the call has returned.
type fate struct{ sent, answered atomic.Bool }

type fateKey struct{}

// watcher notes the fate of each call whose context has one.
type watcher struct{}

func (watcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
	f, ok := ctx.Value(fateKey{}).(*fate)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.Begin:
		// Again when gRPC itself repeats a call that the node has certainly not processed.
		f.sent.Store(false)
	case *stats.OutPayload:
		f.sent.Store(true)
	case *stats.InTrailer:
		f.answered.Store(true)
	}
}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watcher) HandleConn(context.Context, stats.ConnStats)                       {}

// judge says what err, of a call with this fate, means for its checks, and names the kind of error.
func (f *fate) judge(err error) (failure, string) {
	code := status.Code(err)
	switch {
	case code == codes.OK:
		return none, ""
	case !f.sent.Load() && !f.answered.Load():
		return unsent, "unsent"
	case code == codes.Unavailable && f.answered.Load():
		return refused, "unavailable"
	case code == codes.Unavailable:
		return ambiguous, "connection lost"
	case code == codes.DeadlineExceeded:
		return ambiguous, "deadline exceeded"
	case code == codes.ResourceExhausted && f.answered.Load():
		return final, "overloaded"
	}
	switch code {
	case codes.Canceled, codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss:
		return ambiguous, code.String()
	}
	return final, code.String()
}
