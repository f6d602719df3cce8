package peer

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/internal/inflow"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

const (
	// greetTimeout is how long a connection may take to become one, and then a
	// stream to say hello. Longer than peers wait: they give up first.
	greetTimeout = 5 * time.Second
	// maxGreeting is the most bytes of a greeting. It comes from whoever reaches
	// the port, so it may not be larger than a hello and a proof.
	maxGreeting = 4 << 10
	// logEvery is how often there is a line about what others do wrong, of each kind: those who are refused keep trying.
	logEvery = 10 * time.Second
)

// admit waits for the hello of a new stream's peer and answers it. The error is
// the stream's status.
func (s service) admit(stream grpc.ServerStream) (*peerv1.Hello, error) {
	hello, err := s.greet(stream)
	if err != nil {
		s.stats.refused.Add(1)
		kind := "refused"
		if errors.Is(err, errNoHello) {
			kind = "no hello" // from whoever tries the port, and no reason to keep quiet about nodes
		}
		if s.quiet.Allow(time.Now(), kind) {
			s.cfg.Log.Warn("peer refused", "name", clip(hello.GetName()), "error", err, "total", s.stats.refused.Load())
		}
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("node %s refuses: %v", s.cfg.Name, err))
	}
	return hello, nil
}

// greet waits for the peer's hello and answers it, then for its proof and answers that. This side proves last: a
// caller that does not know the secret gets nothing that was made with it. The hello is returned for the
// log also when it does not fit.
func (s service) greet(stream grpc.ServerStream) (*peerv1.Hello, error) {
	type frame struct {
		greeting *peerv1.Greeting
		err      error
	}
	// The goroutine ends with the stream, which ends when its method returns.
	got := make(chan frame, 2)
	go func() {
		for range cap(got) {
			f := frame{greeting: new(peerv1.Greeting)}
			f.err = stream.RecvMsg(f.greeting)
			got <- f
			if f.err != nil {
				return
			}
		}
	}()
	late := time.NewTimer(greetTimeout)
	defer late.Stop()
	next := func(missing error) (*peerv1.Greeting, error) {
		select {
		case f := <-got:
			if f.err != nil {
				return nil, fmt.Errorf("%w (%w)", missing, f.err)
			}
			return f.greeting, nil
		case <-late.C:
			return nil, fmt.Errorf("%w: nothing came within %v", missing, greetTimeout)
		}
	}
	first, err := next(errNoHello)
	if err != nil {
		return nil, err
	}
	hello, own := first.GetHello(), s.cfg.hello()
	if err := s.cfg.welcome(stream.Context(), hello); err != nil {
		return hello, err
	}
	if err := stream.SendMsg(&peerv1.Greeting{Hello: own}); err != nil {
		return hello, err
	}
	second, err := next(errNoProof)
	if err != nil {
		return hello, err
	}
	said := transcript{dialer: hello, accepter: own}
	if err := s.cfg.verify(dialer, said, second.GetProof()); err != nil {
		return hello, err
	}
	inflow.Known(stream.Context())
	return hello, stream.SendMsg(&peerv1.Greeting{Proof: s.cfg.prove(accepter, said)})
}
