package peer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// MaxRequests is the most requests of peers that a Server answers at a time, MaxTurns the most of them that wait for a turn; it rejects
// others.
const (
	MaxRequests = 64
	MaxTurns    = 1024
)

// Query sends a request to the node at addr and returns the response. It uses a connection of its own, so it does not wait for
// control messages, nor they for it. It fails when ctx ends or the pool is closed.
func (p *Pool) Query(ctx context.Context, addr string, request message.Body) (message.Body, error) {
	t, err := p.Talk(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return t.Ask(ctx, request)
}

// Talk has a connection for requests to one node, which answers them one after the other. It must be closed.
type Talk struct {
	connection
	ends   context.CancelFunc
	pool   *Pool
	addr   string
	stream grpc.BidiStreamingClient[peerv1.MessageFrame, peerv1.MessageFrame]
}

// Talk connects to the node at addr. It fails when ctx ends or the pool is closed.
func (p *Pool) Talk(ctx context.Context, addr string) (*Talk, error) {
	of, cancel := context.WithCancel(p.ctx) // ends with the connection
	t, stop := &Talk{pool: p, addr: addr, ends: cancel}, context.AfterFunc(ctx, cancel)
	defer stop()
	var err error
	if t.stream, t.connection, err = dial(of, p, addr, peerv1.PeerServiceClient.Query); err != nil {
		cancel()
		return nil, t.failure(ctx, err)
	}
	return t, nil
}

// Peer returns the node's name and boot ID.
func (t *Talk) Peer() message.Peer { return message.Peer{Name: t.hello.Name, Boot: t.hello.Boot} }

// Ask sends a request and returns the response. After an error, only Close may be called.
func (t *Talk) Ask(ctx context.Context, request message.Body) (message.Body, error) {
	sent := t.Send(ctx, request)
	if sent != nil && !errors.Is(sent, io.EOF) {
		return nil, sent
	}
	answer, err := t.Receive(ctx)
	if err == nil {
		err = sent
	}
	return answer, err
}

// Send sends a request without waiting for the response, of which Receive returns the oldest. After an error only Receive, which says why,
// and Close may be called.
func (t *Talk) Send(ctx context.Context, request message.Body) error {
	defer context.AfterFunc(ctx, t.cancel)()
	frame, err := t.pool.cfg.frameOf(request)
	if err == nil {
		err = t.stream.SendMsg(frame) // io.EOF if the connection has failed
	}
	if err != nil {
		return t.failure(ctx, err)
	}
	return nil
}

// Receive waits for the response to the oldest request that has none. It may be called while Send is. After an error, only Close may be
// called.
func (t *Talk) Receive(ctx context.Context) (message.Body, error) {
	defer context.AfterFunc(ctx, t.cancel)()
	var post peerv1.MessageFrame
	if err := t.stream.RecvMsg(&post); err != nil {
		return nil, t.failure(ctx, withoutPrefix(err))
	}
	r := controlReader{definitions: definitions{intern: limiter.NewInterner(t.pool.cfg.MaxLimits)}}
	return r.readOne(&post)
}

// Close closes the connection.
func (t *Talk) Close() {
	t.close()
	t.ends()
}

func (t *Talk) failure(ctx context.Context, err error) error {
	return fmt.Errorf("peer %s: %w", t.addr, errors.Join(err, ctx.Err()))
}

// frameOf returns a frame with body as its only message, for a stream of its own.
func (c *Config) frameOf(body message.Body) (*peerv1.MessageFrame, error) {
	m, err := encode(&message.Envelope{Body: body})
	if err != nil {
		return nil, err
	}
	return newControlWriter(c.MaxLimits).frame([]controlMessage{m})
}

// readOne reads a frame that has one message.
func (r *controlReader) readOne(post *peerv1.MessageFrame) (message.Body, error) {
	got, skipped, err := r.read(post, nil)
	switch {
	case err != nil:
		return nil, err
	case skipped > 0:
		return nil, message.ErrUnknown
	case len(got) != 1:
		return nil, fmt.Errorf("%d messages; want 1", len(got))
	}
	return got[0].Body, nil
}

// Query answers the requests of a stream, one after the other.
func (s service) Query(stream grpc.BidiStreamingServer[peerv1.MessageFrame, peerv1.MessageFrame]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream, true)
	if err != nil {
		return err
	}
	for {
		var post peerv1.MessageFrame
		if err := stream.RecvMsg(&post); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err // the peer is gone, or sent something that is not a frame
		}
		frame, err := s.respond(stream.Context(), hello, &post)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(frame); err != nil {
			return err
		}
	}
}

// respond answers one request. The error is the stream's status.
func (s service) respond(ctx context.Context, hello *peerv1.Hello, post *peerv1.MessageFrame) (*peerv1.MessageFrame, error) {
	r := s.reader(hello)
	request, err := r.readOne(post)
	if errors.Is(err, message.ErrUnknown) {
		return nil, status.Errorf(codes.Unimplemented, "node %s does not know this request", s.cfg.Name)
	}
	if err == nil {
		err = s.cfg.checkRequest(hello.Region, request)
	}
	if err != nil {
		return nil, s.malformed(hello, err)
	}
	running := s.requests
	if _, waits := request.(*message.TurnRequest); waits {
		running = s.turns
	}
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "node %s answers %d requests already", s.cfg.Name, cap(running))
	}
	var answer message.Body
	if s.cfg.Answer != nil {
		answer = s.cfg.Answer(ctx, request)
	}
	if answer == nil {
		return nil, status.Errorf(codes.Unavailable, "node %s has no answer", s.cfg.Name)
	}
	frame, err := s.cfg.frameOf(answer)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return frame, nil
}
