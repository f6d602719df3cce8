// Package grpclimit applies the limits of a sluice cluster to gRPC servers and clients in Go, by interceptors: a
// server's reject with RESOURCE_EXHAUSTED, and a client's wait.
//
// Keys make the descriptors, of the peer's address, metadata, or the method. Package client decides the checks, also
// when no node answers.
package grpclimit

import (
	"context"
	"errors"

	"github.com/sluice-project/sluice/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Client configures and makes a client's interceptors. They send calls when they are admitted; one that is never
// admitted, or not before its deadline, fails with RESOURCE_EXHAUSTED.
type Client struct {
	// Waiter and Domain are required.
	Waiter Waiter
	Domain string
	// Key makes the descriptor of a call. Required. Calls to which it does not apply are sent at once.
	Key Key
	// Cost is how many units a call spends; nil means 1.
	Cost func(ctx context.Context, method string) int64
	// EachMessage waits for every message that a stream sends too.
	EachMessage bool
}

func (c *Client) validate() error {
	switch {
	case c.Waiter == nil:
		return errors.New("grpclimit: Waiter is required")
	case c.Domain == "":
		return errors.New("grpclimit: Domain is required")
	case c.Key == nil:
		return errors.New("grpclimit: Key is required")
	}
	return nil
}

// Unary returns an interceptor of unary calls. The error names the invalid field of c.
func (c Client) Unary() (grpc.UnaryClientInterceptor, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := c.wait(ctx, method); err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}, nil
}

// Stream returns an interceptor of streams. The error names the invalid field of c.
func (c Client) Stream() (grpc.StreamClientInterceptor, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := c.wait(ctx, method); err != nil {
			return nil, err
		}
		if !c.EachMessage {
			return open(ctx, desc, conn, method, opts...)
		}
		ctx, cancel := context.WithCancel(ctx)
		stream, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			cancel()
			return nil, err
		}
		return &paced{ClientStream: stream, client: &c, method: method, many: desc.ServerStreams, cancel: cancel}, nil
	}, nil
}

// paced is a stream that waits before it sends. The check of the stream covers the first message.
type paced struct {
	grpc.ClientStream
	client *Client
	method string
	begun  bool
	many   bool // the server may answer more than once
	cancel context.CancelFunc
}

// SendMsg ends the stream when a message is not admitted: gRPC's contract for an error of SendMsg.
func (p *paced) SendMsg(m any) error {
	if p.begun {
		if err := p.client.wait(p.Context(), p.method); err != nil {
			p.cancel()
			return err
		}
	}
	p.begun = true
	return p.ClientStream.SendMsg(m)
}

func (p *paced) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err != nil || !p.many {
		p.cancel() // the stream has ended: this only frees the context
	}
	return err
}

// wait returns the status of a call that is not sent, or nil.
func (c *Client) wait(ctx context.Context, method string) error {
	entries, ok := c.Key(context.WithValue(ctx, outgoing{}, true), method)
	if !ok || len(entries) == 0 {
		return nil
	}
	check := client.Check{Domain: c.Domain, Descriptor: entries}
	if c.Cost != nil {
		if check.Cost = c.Cost(ctx, method); check.Cost <= 0 {
			return nil
		}
	}
	_, err := c.Waiter.Wait(ctx, check)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrNever), errors.Is(err, client.ErrWouldExceedDeadline):
		return status.Error(codes.ResourceExhausted, err.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}
