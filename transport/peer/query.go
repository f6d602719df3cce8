package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/limiter"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// MaxRequests is the most requests of peers that a Server answers at a time, MaxTurns the most of them that wait for a turn; it rejects
// others.
const (
	MaxRequests = 64
	MaxTurns    = 1024
)

// Query sends a request to the node at addr and returns the response. It uses a connection of its own, so it does not wait for
// control messages, nor they for it. It fails when ctx ends or the pool is closed.
func (p *Pool) Query(ctx context.Context, addr string, request message.Body) (answer message.Body, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("peer %s: %w", addr, err)
		}
	}()
	frame, err := p.cfg.frameOf(request)
	if err != nil {
		return nil, err
	}
	of, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	stream, c, err := dial(of, p, addr, peerv1.PeerServiceClient.Query)
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	defer c.close()
	if err = stream.SendMsg(frame); err == nil {
		err = stream.CloseSend()
	}
	var post peerv1.MessageFrame
	if recvErr := stream.RecvMsg(&post); recvErr != nil {
		err = withoutPrefix(recvErr) // it says more than SendMsg
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	r := controlReader{definitions: definitions{intern: limiter.NewInterner(p.cfg.MaxLimits)}}
	return r.readOne(&post)
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

// Query answers the one request of a stream.
func (s service) Query(stream grpc.BidiStreamingServer[peerv1.MessageFrame, peerv1.MessageFrame]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream)
	if err != nil {
		return err
	}
	var post peerv1.MessageFrame
	if err := stream.RecvMsg(&post); err != nil {
		return err // the peer is gone, or sent something that is not a frame
	}
	r := s.reader(hello)
	request, err := r.readOne(&post)
	if errors.Is(err, message.ErrUnknown) {
		return status.Errorf(codes.Unimplemented, "node %s does not know this request", s.cfg.Name)
	}
	if err != nil {
		return s.malformed(hello, err)
	}
	running := s.requests
	if _, waits := request.(*message.TurnRequest); waits {
		running = s.turns
	}
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	default:
		return status.Errorf(codes.ResourceExhausted, "node %s answers %d requests already", s.cfg.Name, cap(running))
	}
	var answer message.Body
	if s.cfg.Answer != nil {
		answer = s.cfg.Answer(stream.Context(), request)
	}
	if answer == nil {
		return status.Errorf(codes.Unavailable, "node %s has no answer", s.cfg.Name)
	}
	frame, err := s.cfg.frameOf(answer)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return stream.SendMsg(frame)
}
