package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/client/limit"
)

// UnaryServer returns an interceptor that checks the unary calls of a server.
func UnaryServer(l limit.Limiter, c Config) grpc.UnaryServerInterceptor {
	limits := open(l, c, false)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if c.InFlight {
			held, release, err := limits.hold(ctx, info.FullMethod)
			defer release()
			if err != nil {
				return nil, err
			}
			return handler(held, req)
		}
		spent, err := limits.admit(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		res, err := handler(ctx, req)
		limits.settle(ctx, spent, err)
		return res, err
	}
}

// StreamServer returns an interceptor that checks the streams of a server.
func StreamServer(l limit.Limiter, c Config) grpc.StreamServerInterceptor {
	limits := open(l, c, false)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		if c.InFlight {
			held, release, err := limits.hold(ctx, info.FullMethod)
			defer release()
			if err != nil {
				return err
			}
			return handler(srv, &heldStream{stream, held})
		}
		spent, err := limits.admit(ctx, info.FullMethod)
		if err != nil {
			return err
		}
		if c.EachMessage {
			stream = &counted{ServerStream: stream, limits: limits, method: info.FullMethod}
		}
		err = handler(srv, stream)
		limits.settle(ctx, spent, err)
		return err
	}
}

// heldStream is a stream that has a slot.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *heldStream) Context() context.Context { return s.ctx }

// counted is a stream whose messages are checked. The check of the stream covers the first.
type counted struct {
	grpc.ServerStream
	limits *limits
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
	_, err := c.limits.admit(c.Context(), c.method)
	return err
}
