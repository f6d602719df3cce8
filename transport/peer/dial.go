package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/inflow"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connection is what a stream to a peer that has been greeted needs: each has a
// gRPC connection of its own, so that none waits for another's windows.
type connection struct {
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   <-chan struct{} // of the stream's context
	peer   string          // the name in the peer's hello
}

// shortest is the least time that an attempt to connect has until something is heard: longer than a round trip may become at once.
const shortest = 500 * time.Millisecond

// patience is how long an attempt to connect to addr may take until the address answers: DialTimeout, or, where the last one that went well
// was much faster, less, since nobody is there if nothing is heard, and checks wait.
func (p *Pool) patience(addr string) time.Duration {
	took, known := p.hellos.Load(addr)
	if !known {
		return p.cfg.DialTimeout
	}
	return min(max(4*took.(time.Duration), shortest), p.cfg.DialTimeout)
}

// stallAfter is the age of an unanswered frame at which the stream to addr is given up: StallTimeout, or longer where connecting
// took long, as far away.
func (p *Pool) stallAfter(addr string) time.Duration {
	took, known := p.hellos.Load(addr)
	if !known {
		return p.cfg.StallTimeout
	}
	return max(p.cfg.StallTimeout, min(5*took.(time.Duration), 5*time.Second))
}

// dial connects to addr, begins a stream that ends with ctx, and exchanges hellos and proofs, as long as patience lasts. No frame
// is sent before the peer's proof has come, so that a rejected node has charged nothing.
func dial[S grpc.ClientStream](
	ctx context.Context, p *Pool, addr string,
	begin func(peerv1.PeerServiceClient, context.Context, ...grpc.CallOption) (S, error),
) (stream S, c connection, err error) {
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	c.cancel, c.done = cancel, ctx.Done()
	patience, start := p.patience(addr), time.Now()
	late := time.AfterFunc(patience, cancel)
	tcp := func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := p.cfg.Dial(ctx, addr)
		// The other three round trips take three times as long, though the network was faster when the last attempt went well.
		if took := time.Since(start); err == nil && 4*took > patience && late.Stop() {
			late.Reset(min(4*took, p.cfg.DialTimeout-took))
		}
		return conn, err
	}
	c.conn, err = grpc.NewClient("passthrough:///"+addr, append(slices.Clip(p.dial), grpc.WithContextDialer(tcp))...)
	if err != nil {
		late.Stop()
		cancel()
		return stream, c, err
	}
	if stream, err = begin(peerv1.NewPeerServiceClient(c.conn), ctx); err != nil {
		err = plain(err)
	} else {
		c.peer, err = p.cfg.greet(stream)
	}
	if !late.Stop() && parent.Err() == nil {
		err = fmt.Errorf("no hello within %v", time.Since(start).Round(time.Millisecond))
	}
	if err != nil {
		c.close()
	} else {
		p.hellos.Store(addr, time.Since(start))
	}
	return stream, c, err
}

// close frees the connection.
func (c *connection) close() {
	c.cancel()
	c.conn.Close()
}

// greet exchanges hellos and proofs, and returns the name of the peer.
func (c *Config) greet(stream grpc.ClientStream) (name string, err error) {
	own := c.hello()
	first, err := say(stream, &peerv1.Greeting{Hello: own})
	if err != nil {
		return "", err
	}
	if err := c.welcome(stream.Context(), first.Hello); err != nil {
		return "", err
	}
	said := transcript{dialer: own, accepter: first.Hello}
	second, err := say(stream, &peerv1.Greeting{Proof: c.prove(dialer, said)})
	if err != nil {
		return "", err
	}
	return first.Hello.Name, c.verify(accepter, said, second.Proof)
}

// say sends one frame of a greeting and waits for the answer.
func say(stream grpc.ClientStream, m *peerv1.Greeting) (*peerv1.Greeting, error) {
	// If the stream is over, RecvMsg says why.
	sent, got := stream.SendMsg(m), new(peerv1.Greeting)
	if err := stream.RecvMsg(got); err != nil {
		return nil, plain(err)
	}
	if sent != nil {
		return nil, plain(sent)
	}
	return got, nil
}

// plain returns err as text that a person can read, without gRPC's frame.
func plain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	return errors.New(st.Message())
}

const (
	// greetTimeout is how long a connection may take to become one, and then a
	// stream to say hello. Longer than peers wait: they give up first.
	greetTimeout = 5 * time.Second
	// maxGreeting is the most bytes of a greeting. It comes from whoever reaches
	// the port, so it may not be larger than a hello and a proof.
	maxGreeting = 4 << 10
	// logEvery is how often there is a line about what others do wrong, of each kind: those who are rejected keep trying.
	logEvery = 10 * time.Second
)

// admit waits for the hello of a new stream's peer and answers it. The error is
// the stream's status.
func (s service) admit(stream grpc.ServerStream) (*peerv1.Hello, error) {
	hello, err := s.greet(stream)
	if err != nil {
		s.stats.rejected.Add(1)
		kind := "rejected"
		if errors.Is(err, errNoHello) {
			kind = "no hello" // from whoever tries the port, and no reason to keep quiet about nodes
		}
		if s.quiet.Allow(time.Now(), kind) {
			s.cfg.Log.Warn("peer rejected", "name", clip(hello.GetName()), "error", err, "total", s.stats.rejected.Load())
		}
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("node %s rejects: %v", s.cfg.Name, err))
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
