package grpclimit

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/client/limit"
)

// UnaryClient returns an interceptor that sends the unary calls of a client when they are admitted.
func UnaryClient(l limit.Limiter, c Config) grpc.UnaryClientInterceptor {
	limits := open(l, c, true)
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		spent, err := limits.admit(ctx, method)
		if err != nil {
			return err
		}
		err = invoke(ctx, method, req, reply, conn, opts...)
		limits.settle(ctx, spent, err)
		return err
	}
}

// StreamClient returns an interceptor that opens the streams of a client when they are admitted.
func StreamClient(l limit.Limiter, c Config) grpc.StreamClientInterceptor {
	limits := open(l, c, true)
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		spent, err := limits.admit(ctx, method)
		if err != nil {
			return nil, err
		}
		if !c.EachMessage && len(spent) == 0 {
			return open(ctx, desc, conn, method, opts...)
		}
		ctx, cancel := context.WithCancel(ctx)
		stream, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			cancel()
			limits.settle(ctx, spent, err)
			return nil, err
		}
		return &paced{ClientStream: stream, limits: limits, method: method, many: desc.ServerStreams, spent: spent, cancel: cancel}, nil
	}
}

// paced is a stream that waits before it sends. The check of the stream covers the first message.
type paced struct {
	grpc.ClientStream
	limits *limits
	method string
	begun  bool
	many   bool // the server may answer more than once
	spent  []limit.Check
	cancel context.CancelFunc
}

// SendMsg ends the stream when a message is not admitted: gRPC's contract for an error of SendMsg.
func (p *paced) SendMsg(m any) error {
	if p.begun && p.limits.EachMessage {
		if _, err := p.limits.admit(p.Context(), p.method); err != nil {
			p.cancel()
			return err
		}
	}
	p.begun = true
	return p.ClientStream.SendMsg(m)
}

func (p *paced) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err == nil && p.many {
		return nil
	}
	p.cancel() // the stream has ended: this only frees the context
	outcome := err
	if errors.Is(err, io.EOF) {
		outcome = nil
	}
	p.limits.settle(p.Context(), p.spent, outcome)
	p.spent = nil
	return err
}
