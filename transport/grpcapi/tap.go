package grpcapi

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-project/sluice/transport"
)

// busyRetry is when a caller that was turned away may come back.
const busyRetry = time.Second

// errBusy turns a call away, as transport.ErrBusy and with the time to wait.
var errBusy = func() error {
	st := status.New(codes.ResourceExhausted, transport.ErrBusy.Message)
	with, err := st.WithDetails(callError(transport.ErrBusy), &errdetails.RetryInfo{RetryDelay: durationpb.New(busyRetry)})
	if err != nil {
		return st.Err()
	}
	return with.Err()
}()

// Tap returns an option that turns calls of methods (by full name, "/service/method") away while admit says so: before
// their message is read, and before they have a goroutine. All other methods pass.
func Tap(admit func() bool, methods ...string) grpc.ServerOption {
	shed := make(map[string]bool, len(methods))
	for _, m := range methods {
		shed[m] = true
	}
	return grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
		if shed[call.FullMethodName] && !admit() {
			return nil, errBusy
		}
		return ctx, nil
	})
}
