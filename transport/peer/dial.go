package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/inflow"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connection is a gRPC connection for one stream to a peer, so that no stream waits for the windows of another.
type connection struct {
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   <-chan struct{} // of the stream's context
	peer   string          // the name in the peer's hello
	hello  *peerv1.Hello   // the peer's
}

// minConnectTimeout is the least connectTimeout: the round-trip time may have grown.
const minConnectTimeout = 500 * time.Millisecond

// connectTimeout is how long an attempt to connect to addr waits for an answer: DialTimeout, or less if the last successful attempt
// was much faster, because checks wait meanwhile.
func (p *Pool) connectTimeout(addr string) time.Duration {
	if took, known := p.dialTimes.Load(addr); known {
		return min(max(4*took.(time.Duration), minConnectTimeout), p.cfg.DialTimeout)
	}
	return p.cfg.DialTimeout
}

// stallTimeout is the age of an unanswered frame at which a call that gives up also closes the stream.
const stallTimeout = 2 * time.Second

// stallAfter is stallTimeout, or longer if connecting to addr took long.
func (p *Pool) stallAfter(addr string) time.Duration {
	if took, known := p.dialTimes.Load(addr); known {
		return max(stallTimeout, min(5*took.(time.Duration), 5*time.Second))
	}
	return stallTimeout
}

// dial connects to addr, begins a stream that ends with ctx, and exchanges hellos and proofs, within connectTimeout. No frame is sent
// before the peer's proof has come, so a rejected node has charged nothing.
func dial[S grpc.ClientStream](
	ctx context.Context, p *Pool, addr string,
	begin func(peerv1.PeerServiceClient, context.Context, ...grpc.CallOption) (S, error),
) (stream S, c connection, err error) {
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	c.cancel, c.done = cancel, ctx.Done()
	timeout, start := p.connectTimeout(addr), time.Now()
	region, host := splitRegion(addr)
	late := time.AfterFunc(timeout, cancel)
	tcp := func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := p.cfg.Dial(ctx, addr)
		// The other three round trips take three times as long, even if the network was faster at the last attempt.
		if took := time.Since(start); err == nil && 4*took > timeout && late.Stop() {
			late.Reset(min(4*took, p.cfg.DialTimeout-took))
		}
		if err == nil && region != "" {
			conn = countedConn{conn, p.Traffic(region)}
		}
		return conn, err
	}
	c.conn, err = grpc.NewClient("passthrough:///"+host, append(slices.Clip(p.dial), grpc.WithContextDialer(tcp))...)
	if err != nil {
		late.Stop()
		cancel()
		return stream, c, err
	}
	if stream, err = begin(peerv1.NewPeerServiceClient(c.conn), ctx); err != nil {
		err = withoutPrefix(err)
	} else if c.hello, err = p.cfg.greet(stream, region); err == nil {
		c.peer = c.hello.Name
	}
	if !late.Stop() && parent.Err() == nil {
		err = fmt.Errorf("no hello within %v", time.Since(start).Round(time.Millisecond))
	}
	if err != nil {
		c.close()
	} else {
		p.dialTimes.Store(addr, time.Since(start))
	}
	return stream, c, err
}

func (c *connection) close() {
	c.cancel()
	c.conn.Close()
}

// greet exchanges hellos and proofs with a node of the region, which is empty for one of this cluster, and returns its hello.
func (c *Config) greet(stream grpc.ClientStream, region string) (*peerv1.Hello, error) {
	own := c.hello()
	first, err := exchangeGreeting(stream, &peerv1.Greeting{Hello: own})
	if errors.Is(err, errSelf) && region != "" {
		err = rejection{&RegionError{Want: region, Got: c.Region, Name: c.Name, Boot: c.Boot}}
	}
	if err != nil {
		return nil, err
	}
	if err := c.checkRegion(region, first.Hello); err != nil {
		return nil, rejection{err}
	}
	if err := c.checkHello(stream.Context(), first.Hello); err != nil {
		return nil, rejection{err}
	}
	said := transcript{dialer: own, accepter: first.Hello}
	second, err := exchangeGreeting(stream, &peerv1.Greeting{Proof: c.prove(dialer, said)})
	if err != nil {
		return nil, err
	}
	if err := c.verify(accepter, said, second.Proof); err != nil {
		return nil, rejection{err}
	}
	return first.Hello, nil
}

// ErrRejected is wrapped by the errors of dialing a node that was reached: one of the two has rejected the other.
var ErrRejected = errors.New("rejected")

// rejection is an error that wraps ErrRejected, and does not say so.
type rejection struct{ error }

func (r rejection) Unwrap() []error { return []error{r.error, ErrRejected} }

// exchangeGreeting sends a frame of a greeting and returns the answer.
func exchangeGreeting(stream grpc.ClientStream, m *peerv1.Greeting) (*peerv1.Greeting, error) {
	// If the stream is over, RecvMsg says why.
	sent, got := stream.SendMsg(m), new(peerv1.Greeting)
	if err := stream.RecvMsg(got); err != nil {
		if status.Code(err) == codes.FailedPrecondition { // see admit
			if err = withoutPrefix(err); strings.HasSuffix(err.Error(), errSelf.Error()) {
				err = errSelf // it was this process that answered
			}
			return nil, rejection{err}
		}
		return nil, withoutPrefix(err)
	}
	if sent != nil {
		return nil, withoutPrefix(sent)
	}
	return got, nil
}

// withoutPrefix returns err without gRPC's prefix.
func withoutPrefix(err error) error {
	if st, ok := status.FromError(err); ok {
		return errors.New(st.Message())
	}
	return err
}

const (
	// greetTimeout bounds the handshake of a connection, and then the hello and proof of a stream. Peers give up earlier.
	greetTimeout = 5 * time.Second
	// maxGreeting is the most bytes of a greeting, which unauthenticated clients can send.
	maxGreeting = 4 << 10
	// logEvery is the least time between two log lines of one kind about errors of peers.
	logEvery = 10 * time.Second
)

// admit waits for the hello and proof of a new stream's peer and answers them. The error is the stream's status. linked says that
// nodes of other regions may have such a stream.
func (s service) admit(stream grpc.ServerStream, linked bool) (*peerv1.Hello, error) {
	hello, err := s.greet(stream, linked)
	if err == nil {
		return hello, nil
	}
	switch gone := stream.Context().Err(); { // it has hung up, for example since it waited for too long
	case errors.Is(err, errHungUp):
		return nil, status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, errNoProof) && gone != nil:
		return nil, status.FromContextError(gone).Err()
	}
	s.stats.rejected.Add(1)
	kind := "rejected"
	if errors.Is(err, errNoHello) {
		kind = "no hello" // an unauthenticated client, which must not silence lines about nodes
	}
	if s.quiet.Allow(time.Now(), kind) {
		s.cfg.Log.Warn("peer rejected", "name", clip(hello.GetName()), "error", err, "total", s.stats.rejected.Load())
	}
	return nil, status.Errorf(codes.FailedPrecondition, "node %s rejects: %v", s.cfg.Name, err)
}

// greet waits for the peer's hello and answers it, then for its proof and answers that. This side proves last: a peer without
// the secret gets nothing that was made with it. A rejected hello is returned, too, for the log.
func (s service) greet(stream grpc.ServerStream, linked bool) (*peerv1.Hello, error) {
	late := time.NewTimer(greetTimeout)
	defer late.Stop()
	next := func(missing error) (*peerv1.Greeting, error) {
		m, got := new(peerv1.Greeting), make(chan error, 1)
		go func() { got <- stream.RecvMsg(m) }() // ends with the stream, which ends when its method returns
		select {
		case err := <-got:
			if err != nil {
				return nil, fmt.Errorf("%w (%w)", missing, err)
			}
			return m, nil
		case <-late.C:
			return nil, fmt.Errorf("%w: nothing came within %v", missing, greetTimeout)
		}
	}
	first, err := next(errNoHello)
	if err != nil {
		return nil, err
	}
	hello, own := first.GetHello(), s.cfg.hello()
	if err := s.cfg.checkHello(stream.Context(), hello); err != nil {
		return hello, err
	}
	if err := s.cfg.admitRegion(linked, hello); err != nil {
		return hello, err
	}
	if err := stream.SendMsg(&peerv1.Greeting{Hello: own}); err != nil {
		return hello, fmt.Errorf("%w: %w", errHungUp, err)
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
	if err := stream.SendMsg(&peerv1.Greeting{Proof: s.cfg.prove(accepter, said)}); err != nil {
		return hello, fmt.Errorf("%w: %w", errHungUp, err)
	}
	return hello, nil
}
