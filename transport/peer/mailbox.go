package peer

import (
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Mailbox takes messages from other nodes.
type Mailbox interface {
	// Deliver must not block: while it runs, all else that the sender posted
	// waits. The message is the Mailbox's. Messages of one peer come one after the
	// other, those of different peers at the same time.
	Deliver(message.Envelope)
}

// Mail serves one stream. Its goroutine delivers in order.
func (s service) Mail(stream grpc.BidiStreamingServer[peerv1.Post, peerv1.Greeting]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream)
	if err != nil {
		return err
	}
	r := letterReader{
		from:        message.Peer{Name: hello.Name, Boot: hello.Boot},
		definitions: definitions{intern: s.intern},
	}
	var post peerv1.Post
	var got []message.Envelope
	for {
		if err := stream.RecvMsg(&post); err != nil {
			return err // the peer is gone, or sent what is no frame: gRPC says which
		}
		var skipped int
		got, skipped, err = r.read(&post, got[:0])
		if err != nil {
			return s.malformed(hello, err)
		}
		s.stats.skipped.Add(uint64(skipped))
		if s.cfg.Mailbox != nil {
			s.stats.delivered.Add(uint64(len(got)))
			for _, e := range got {
				s.cfg.Mailbox.Deliver(e)
			}
		}
		// Nothing of this frame is kept while the next one is awaited.
		clear(got)
		cutPost(&post)
	}
}
