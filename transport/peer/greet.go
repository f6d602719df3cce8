package peer

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

const (
	// greetTimeout is how long a connection may take to become one, and then a
	// stream to say hello. Longer than peers wait: they give up first.
	greetTimeout = 5 * time.Second
	// maxGreeting is the most bytes of a greeting. It comes from whoever reaches
	// the port, so it may not be larger than a hello.
	maxGreeting = 4 << 10
	// refusalEvery is how often the same refusal is logged: those who are refused
	// keep trying.
	refusalEvery = 10 * time.Second
)

// admit waits for the hello of a new stream's peer and answers it. The error is
// the stream's status.
func (s service) admit(stream grpc.ServerStream) (*peerv1.Hello, error) {
	hello, err := s.greet(stream)
	if err != nil {
		s.stats.refused.Add(1)
		if s.refusals.isNews(err.Error()) {
			s.cfg.Log.Warn("peer refused", "name", clip(hello.GetName()), "error", err)
		}
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("node %s refuses: %v", s.cfg.Name, err))
	}
	return hello, nil
}

// greet waits for the peer's hello and answers it. The hello is returned for the
// log also when it does not fit.
func (s service) greet(stream grpc.ServerStream) (*peerv1.Hello, error) {
	type first struct {
		greeting *peerv1.Greeting
		err      error
	}
	// The goroutine ends with the stream, which ends when its method returns.
	got := make(chan first, 1)
	go func() {
		f := first{greeting: new(peerv1.Greeting)}
		f.err = stream.RecvMsg(f.greeting)
		got <- f
	}()
	late := time.NewTimer(greetTimeout)
	defer late.Stop()
	select {
	case f := <-got:
		if f.err != nil {
			return nil, fmt.Errorf("%w (%w)", errNoHello, f.err)
		}
		hello := f.greeting.GetHello()
		if err := s.cfg.welcome(stream.Context(), hello); err != nil {
			return hello, err
		}
		return hello, stream.SendMsg(&peerv1.Greeting{Hello: s.cfg.hello()})
	case <-late.C:
		return nil, fmt.Errorf("%w: nothing came within %v", errNoHello, greetTimeout)
	}
}

// refusals remembers what was logged last.
type refusals struct {
	mu struct {
		sync.Mutex
		last string
		at   time.Time
	}
}

func (r *refusals) isNews(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if text == r.mu.last && now.Sub(r.mu.at) < refusalEvery {
		return false
	}
	r.mu.last, r.mu.at = text, now
	return true
}
