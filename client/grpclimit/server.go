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
	"github.com/sluice-project/sluice/client/internal/admit"
)

// Checker decides checks; *client.Client is one. With its method Refund, calls that leave a leaky queue give their place
// back.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// Server configures and makes a server's interceptors.
type Server struct {
	// Checker and Domain are required.
	Checker Checker
	Domain  string
	// Key makes the descriptor of a call. Required. Calls to which it does not apply pass.
	Key Key
	// Cost is how many units a call spends; nil means 1. Calls of cost 0 or less pass.
	Cost func(ctx context.Context, method string) int64
	// EachMessage checks every message that a stream receives too; otherwise a stream is checked once, when it begins.
	EachMessage bool
	// MaxWait is how long a denied call, or message, may wait for the limit, and an admitted one in a leaky queue. One that
	// would wait longer, or beyond the call's deadline, is denied at once; so 0 denies calls that a queue delays. While a
	// message waits, the stream's flow control slows its sender down.
	MaxWait time.Duration
	// FailClosed rejects calls with UNAVAILABLE when the Checker returns an error. Otherwise they pass: the limit is not worth
	// an outage.
	FailClosed bool
}

// guard is a validated Server and its Gate.
type guard struct {
	Server
	limiter *admit.Gate
}

func (s Server) guard() (*guard, error) {
	switch {
	case s.Checker == nil:
		return nil, errors.New("grpclimit: Checker is required")
	case s.Domain == "":
		return nil, errors.New("grpclimit: Domain is required")
	case s.Key == nil:
		return nil, errors.New("grpclimit: Key is required")
	case s.MaxWait < 0:
		return nil, errors.New("grpclimit: MaxWait is negative")
	}
	return &guard{s, admit.New(s.Checker, s.MaxWait)}, nil
}

// Unary returns an interceptor of unary calls. The error names the invalid field of s.
func (s Server) Unary() (grpc.UnaryServerInterceptor, error) {
	g, err := s.guard()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := g.admit(ctx, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}, nil
}

// Stream returns an interceptor of streams. The error names the invalid field of s.
func (s Server) Stream() (grpc.StreamServerInterceptor, error) {
	g, err := s.guard()
	if err != nil {
		return nil, err
	}
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := g.admit(stream.Context(), info.FullMethod); err != nil {
			return err
		}
		if s.EachMessage {
			stream = &counted{ServerStream: stream, guard: g, method: info.FullMethod}
		}
		return handler(srv, stream)
	}, nil
}

// counted is a stream whose messages are checked. The check of the stream covers the first.
type counted struct {
	grpc.ServerStream
	guard  *guard
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
	return c.guard.admit(c.Context(), c.method)
}

// admit returns the status of a call that is not admitted, or nil.
func (g *guard) admit(ctx context.Context, method string) error {
	entries, ok := g.Key(ctx, method)
	if !ok || len(entries) == 0 {
		return nil
	}
	check := client.Check{Domain: g.Domain, Descriptor: entries}
	if g.Cost != nil {
		if check.Cost = g.Cost(ctx, method); check.Cost <= 0 {
			return nil
		}
	}
	d, err := g.limiter.Check(ctx, check)
	switch {
	case err != nil && ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil && g.FailClosed:
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
