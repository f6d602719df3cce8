package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// open connects to the link's address and exchanges hellos, within DialTimeout. Nothing
// is sent before the peer's hello has come, so that a refused node has charged nothing.
func (l *link) open() (*session, error) {
	p := l.pool
	conn, err := grpc.NewClient("passthrough:///"+l.addr, p.dial...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(p.ctx)
	s := &session{link: l, conn: conn, cancel: cancel, done: ctx.Done(), wake: make(chan struct{}, 1)}
	late := time.AfterFunc(p.cfg.DialTimeout, cancel)
	err = s.greet(ctx)
	if !late.Stop() && p.ctx.Err() == nil {
		err = fmt.Errorf("no hello within %v", p.cfg.DialTimeout)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// greet opens the stream and exchanges hellos.
func (s *session) greet(ctx context.Context) error {
	cfg := &s.link.pool.cfg
	stream, err := peerv1.NewPeerServiceClient(s.conn).Exchange(ctx)
	if err != nil {
		return plain(err)
	}
	if err := stream.Send(&peerv1.Request{Hello: cfg.hello()}); err != nil {
		// The stream is over; Recv says why.
		if _, why := stream.Recv(); why != nil {
			err = why
		}
		return plain(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		return plain(err)
	}
	if err := cfg.welcome(reply.GetHello()); err != nil {
		return err
	}
	s.stream, s.peer = stream, reply.Hello.Name
	return nil
}

// plain returns err as text that a person can read, without gRPC's frame.
func plain(err error) error {
	if st, ok := status.FromError(err); ok {
		return errors.New(st.Message())
	}
	return err
}
