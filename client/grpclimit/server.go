package grpclimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-project/sluice/client"
)

// Checker decides; *client.Client is one.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// Server says what a server's interceptors ask, and makes them.
type Server struct {
	// Checker and Domain are required.
	Checker Checker
	Domain  string
	// Key makes the descriptor of a call. Required. Calls to which it does not apply pass.
	Key Key
	// Cost is how many units a call spends; nil means 1. Calls of cost 0 or less pass.
	Cost func(ctx context.Context, method string) int64
	// EachMessage asks for every message that a stream receives too; otherwise a stream counts once, when
	// it begins.
	EachMessage bool
	// FailClosed refuses calls about which the Checker returned an error, with UNAVAILABLE. Otherwise they pass: the limit is
	// not worth an outage.
	FailClosed bool
}

func (s *Server) validate() error {
	switch {
	case s.Checker == nil:
		return errors.New("grpclimit: Checker is required")
	case s.Domain == "":
		return errors.New("grpclimit: Domain is required")
	case s.Key == nil:
		return errors.New("grpclimit: Key is required")
	}
	return nil
}

// Unary returns an interceptor of unary calls. The error says which field of s is wrong.
func (s Server) Unary() (grpc.UnaryServerInterceptor, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := s.admit(ctx, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}, nil
}

// Stream returns an interceptor of streams. The error says which field of s is wrong.
func (s Server) Stream() (grpc.StreamServerInterceptor, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := s.admit(stream.Context(), info.FullMethod); err != nil {
			return err
		}
		if s.EachMessage {
			stream = &counted{ServerStream: stream, server: &s, method: info.FullMethod}
		}
		return handler(srv, stream)
	}, nil
}

// counted is a stream whose messages are asked for. The first came with the stream.
type counted struct {
	grpc.ServerStream
	server *Server
	method string
	begun  bool
}

func (c *counted) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if !c.begun {
		c.begun = true
		return nil
	}
	return c.server.admit(c.Context(), c.method)
}

// admit returns the status of a call that is not admitted, or nil.
func (s *Server) admit(ctx context.Context, method string) error {
	entries, ok := s.Key(ctx, method)
	if !ok {
		return nil
	}
	check := client.Check{Domain: s.Domain, Descriptor: entries}
	if s.Cost != nil {
		if check.Cost = s.Cost(ctx, method); check.Cost <= 0 {
			return nil
		}
	}
	d, err := s.Checker.Check(ctx, check)
	switch {
	case err != nil && ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil && s.FailClosed:
		return status.Errorf(codes.Unavailable, "the rate limit cannot be asked: %v", err)
	case err != nil || d.Allowed:
		return nil
	}
	return Denial(&d)
}

// Denial returns the status of a denied call: RESOURCE_EXHAUSTED with a QuotaFailure that names the rule and,
// unless it never may, a RetryInfo that says when to come back (google.rpc error details).
func Denial(d *client.Decision) error {
	st := status.New(codes.ResourceExhausted, "the rate limit is exceeded")
	quota := &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: d.Rule, Description: "rate limit"}}}
	with, err := st.WithDetails(quota)
	if d.RetryAfter != client.Never {
		with, err = st.WithDetails(quota, &errdetails.RetryInfo{RetryDelay: durationpb.New(max(d.RetryAfter, time.Millisecond))})
	}
	if err != nil { // of messages that can always be encoded, so never
		return st.Err()
	}
	return with.Err()
}
