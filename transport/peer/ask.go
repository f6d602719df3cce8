package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// MaxQuestions is how many questions of peers a Server answers at a time; it rejects others.
const MaxQuestions = 64

// Ask asks the node at addr a question that people have, and returns its answer. It has a connection of its own, so it
// waits for nothing that nodes say to each other, and nothing waits for it. It fails when ctx ends or the pool is closed.
func (p *Pool) Ask(ctx context.Context, addr string, question message.Body) (message.Body, error) {
	answer, err := p.ask(ctx, addr, question)
	if err != nil {
		return nil, fmt.Errorf("peer %s: %w", addr, err)
	}
	return answer, nil
}

func (p *Pool) ask(ctx context.Context, addr string, question message.Body) (message.Body, error) {
	m, err := encode(&message.Envelope{Body: question})
	if err != nil {
		return nil, err
	}
	frame, err := newControlWriter(p.cfg.MaxLimits).frame([]controlMessage{m})
	if err != nil {
		return nil, err
	}
	of, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	stream, c, err := dial(of, p, addr, peerv1.PeerServiceClient.Ask)
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	defer c.close()
	if err = stream.SendMsg(frame); err == nil {
		err = stream.CloseSend()
	}
	var post peerv1.Post
	if recvErr := stream.RecvMsg(&post); recvErr != nil {
		err = plain(recvErr) // it says more than SendMsg
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	r := controlReader{definitions: definitions{intern: newIntern(p.cfg.MaxLimits)}}
	return r.one(&post)
}

// one reads a frame that has one message.
func (r *controlReader) one(post *peerv1.Post) (message.Body, error) {
	got, skipped, err := r.read(post, nil)
	if err == nil && skipped > 0 {
		err = message.ErrUnknown
	}
	if err == nil && len(got) != 1 {
		err = fmt.Errorf("%d messages; want 1", len(got))
	}
	if err != nil {
		return nil, err
	}
	return got[0].Body, nil
}

// Ask answers the one question of a stream.
func (s service) Ask(stream grpc.BidiStreamingServer[peerv1.Post, peerv1.Post]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream)
	if err != nil {
		return err
	}
	var post peerv1.Post
	if err := stream.RecvMsg(&post); err != nil {
		return err // the peer is gone, or sent what is no frame: gRPC says which
	}
	r := s.reader(hello)
	question, err := r.one(&post)
	if errors.Is(err, message.ErrUnknown) {
		return status.Errorf(codes.Unimplemented, "node %s does not know this question", s.cfg.Name)
	}
	if err != nil {
		return s.malformed(hello, err)
	}
	select {
	case s.questions <- struct{}{}:
		defer func() { <-s.questions }()
	default:
		return status.Errorf(codes.ResourceExhausted, "node %s answers %d questions already", s.cfg.Name, MaxQuestions)
	}
	var answer message.Body
	if s.cfg.Answer != nil {
		answer = s.cfg.Answer(stream.Context(), question)
	}
	if answer == nil {
		return status.Errorf(codes.Unavailable, "node %s has no answer", s.cfg.Name)
	}
	m, err := encode(&message.Envelope{Body: answer})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	frame, err := newControlWriter(s.cfg.MaxLimits).frame([]controlMessage{m})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return stream.SendMsg(frame)
}
