package grpcapi

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// errLeaving answers what comes after Drain. A stream that ends with it has answered everything that was
// decided; the detail tells it from a connection that broke.
var errLeaving = statusOf(&limiter.Error{Code: limiter.Unavailable, Message: "this node is leaving; ask another"})

// codeOf is the gRPC code of an error that is about a whole call.
func codeOf(c limiter.Code) codes.Code {
	switch c {
	case limiter.Invalid, limiter.UnknownDomain:
		return codes.InvalidArgument
	case limiter.Overloaded:
		return codes.ResourceExhausted
	case limiter.Unavailable:
		return codes.Unavailable
	case limiter.NotFound:
		return codes.NotFound
	case limiter.Refused:
		return codes.FailedPrecondition
	case limiter.Forbidden:
		return codes.PermissionDenied
	case limiter.Unauthenticated:
		return codes.Unauthenticated
	}
	return codes.Internal
}

// statusOf maps the error of a call; the status carries it as a sluice.v1.Error too.
func statusOf(err error) error {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return status.Error(codes.Internal, err.Error())
	}
	st := status.New(codeOf(e.Code), e.Error())
	if with, err := st.WithDetails(callError(e)); err == nil {
		st = with
	}
	return st.Err()
}

// callError is e, which is about a whole call, on the wire.
func callError(e *limiter.Error) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Field, Message: e.Message}
}

// errorAt is e, which is about check i, on the wire.
func errorAt(e *limiter.Error, i int) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Path(i), Message: e.Message}
}
