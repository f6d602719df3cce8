package grpcapi

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
)

// errLeaving answers what comes after Drain. A stream that ends with it has answered everything that was
// decided; the detail tells it from a connection that broke.
var errLeaving = statusOf(&transport.Error{Code: transport.Unavailable, Message: "this node is leaving; ask another"})

// codeOf is the gRPC code of an error that is about a whole call.
func codeOf(c transport.Code) codes.Code {
	switch c {
	case transport.Invalid, transport.UnknownDomain:
		return codes.InvalidArgument
	case transport.Overloaded:
		return codes.ResourceExhausted
	case transport.Unavailable:
		return codes.Unavailable
	case transport.NotFound:
		return codes.NotFound
	case transport.Refused:
		return codes.FailedPrecondition
	case transport.Forbidden:
		return codes.PermissionDenied
	case transport.Unauthenticated:
		return codes.Unauthenticated
	}
	return codes.Internal
}

// statusOf maps the error of a call; the status carries it as a sluice.v1.Error too.
func statusOf(err error) error {
	e, ok := errors.AsType[*transport.Error](err)
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
func callError(e *transport.Error) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Field, Message: e.Message}
}

// errorAt is e, which is about check i, on the wire.
func errorAt(e *transport.Error, i int) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Path(i), Message: e.Message}
}
