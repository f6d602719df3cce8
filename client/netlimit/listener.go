// Package netlimit applies the limits of a sluice cluster to listeners and streams of bytes: connections per client
// address, and bytes per descriptor.
package netlimit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/key"
	"github.com/sluice-project/sluice/internal/leaf/pause"
)

// Checker decides; *client.Client is one.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// Listener accepts connections as the limits of their client's address admit, and closes the others at once. The
// descriptor is (Key, address), IPv6 addresses as the first of their /64. Accept returns connections in the order in which
// they are admitted. A slow decision delays only its own connection.
type Listener struct {
	net.Listener
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan net.Conn // admitted, and not accepted yet
	room   chan struct{} // one for each connection that is being checked or ready
	asking chan struct{} // one for each connection that is being checked
	failed chan error
	group  sync.WaitGroup
	once   sync.Once
}

// Config configures a Listener.
type Config struct {
	// Checker and Domain are required.
	Checker Checker
	Domain  string
	// Key of the descriptor's entry; "" means "ip".
	Key string
	// Timeout is how long a decision may take; 0 means a second. The FailurePolicy of a *client.Client applies only if
	// the client's own time-out is shorter.
	Timeout time.Duration
	// Asking is how many connections may be checked at a time; 0 means 128. As many may be ready for Accept; further ones
	// wait in the system's queue.
	Asking int
	// FailClosed closes connections without a decision: the Checker returned an error or took longer than Timeout, or Asking
	// others were being checked. Otherwise they are accepted: the limit is not worth an outage.
	FailClosed bool
	// Rejected, if not nil, is called for each closed connection; d is zero without a decision. It must not block.
	Rejected func(addr net.Addr, d client.Decision)
}

// Listen returns a Listener on l, which its Close closes. The error names the invalid field of c.
func Listen(l net.Listener, c Config) (*Listener, error) {
	switch {
	case l == nil:
		return nil, errors.New("netlimit: the listener is nil")
	case c.Checker == nil:
		return nil, errors.New("netlimit: Checker is required")
	case c.Domain == "":
		return nil, errors.New("netlimit: Domain is required")
	case c.Timeout < 0 || c.Asking < 0:
		return nil, errors.New("netlimit: Timeout and Asking may not be negative")
	}
	c.Key, c.Timeout, c.Asking = cmp.Or(c.Key, "ip"), cmp.Or(c.Timeout, time.Second), cmp.Or(c.Asking, 128)
	n := &Listener{
		Listener: l, config: c, failed: make(chan error, 1), asking: make(chan struct{}, c.Asking),
		ready: make(chan net.Conn, 2*c.Asking), room: make(chan struct{}, 2*c.Asking),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.group.Go(n.accept)
	return n, nil
}

// Accept returns the next connection that was admitted.
func (l *Listener) Accept() (net.Conn, error) {
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	select {
	case c := <-l.ready:
		<-l.room
		return c, nil
	case err := <-l.failed:
		l.failed <- err // for the next caller
		return nil, err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the listener, and connections that Accept has not returned, and waits for the Listener's goroutines.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		l.cancel()
		err = l.Listener.Close()
		l.group.Wait()
		for {
			select {
			case c := <-l.ready:
				c.Close()
			default:
				return
			}
		}
	})
	return err
}

// accept accepts connections until the listener fails, and checks each in a goroutine of its own.
func (l *Listener) accept() {
	for {
		select {
		case l.room <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.room
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				if !pause.For(l.ctx, 10*time.Millisecond) { // out of file descriptors, mostly
					return
				}
				continue
			}
			l.failed <- err
			return
		}
		var ip netip.Addr
		ok := false
		if addr := c.RemoteAddr(); addr != nil {
			ip, ok = key.Parse(addr.String())
		}
		if !ok { // no IP address
			l.ready <- c // has room
			continue
		}
		select {
		case l.asking <- struct{}{}:
			l.group.Go(func() {
				d, err := l.decide(key.Network(ip))
				<-l.asking
				l.admitOrClose(c, d, err == nil && d.Allowed || err != nil && !l.config.FailClosed)
			})
		default:
			l.admitOrClose(c, client.Decision{}, !l.config.FailClosed)
		}
	}
}

// admitOrClose makes c ready or closes it. It does not block, since room was reserved.
func (l *Listener) admitOrClose(c net.Conn, d client.Decision, admitted bool) {
	if admitted && l.ctx.Err() == nil {
		l.ready <- c
		return
	}
	c.Close()
	<-l.room
	if l.config.Rejected != nil && l.ctx.Err() == nil {
		l.config.Rejected(c.RemoteAddr(), d)
	}
}

// decide checks a connection from a network.
func (l *Listener) decide(value string) (client.Decision, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.config.Timeout)
	defer cancel()
	return l.config.Checker.Check(ctx, client.Check{
		Domain: l.config.Domain, Descriptor: []client.Entry{{Key: l.config.Key, Value: value}},
	})
}

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Bytes configures a Reader or Writer.
type Bytes struct {
	// Waiter and Domain are required.
	Waiter Waiter
	Domain string
	// Descriptor of the checks. Not empty.
	Descriptor []client.Entry
	// Chunk is the most bytes of one check; 0 means 32 KiB. Smaller chunks are smoother, larger ones need fewer checks. It
	// shrinks when the limit can never admit so much at once.
	Chunk int
}

// spender spends bytes. It is not safe for concurrent use.
type spender struct {
	ctx   context.Context
	bytes Bytes
	chunk int
}

func newSpender(ctx context.Context, b Bytes) spender {
	s := spender{ctx, b, b.Chunk}
	if s.chunk <= 0 {
		s.chunk = 32 << 10
	}
	return s
}

// spend waits until up to n bytes are admitted, and returns how many. It halves chunks that can never be admitted.
func (s *spender) spend(n int) (int, error) {
	for {
		n = min(n, s.chunk)
		_, err := s.bytes.Waiter.Wait(s.ctx, client.Check{Domain: s.bytes.Domain, Descriptor: s.bytes.Descriptor, Cost: int64(n)})
		if !errors.Is(err, client.ErrNever) || n == 1 {
			return n, err
		}
		s.chunk = n / 2
	}
}

// NewReader returns a reader of r that spends each byte. Read returns when the limit has admitted the bytes that it read;
// while it waits, it reads nothing more, which slows the sender down. When the limit does not admit them, Read returns
// them with the error.
func NewReader(ctx context.Context, r io.Reader, b Bytes) io.Reader {
	return &reader{r, newSpender(ctx, b)}
}

type reader struct {
	r     io.Reader
	spent spender
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) > r.spent.chunk {
		p = p[:r.spent.chunk]
	}
	n, err := r.r.Read(p)
	for left := n; left > 0; {
		part, e := r.spent.spend(left)
		if e != nil {
			return n, e
		}
		left -= part
	}
	return n, err
}

// NewWriter returns a writer to w that spends each byte before it writes it.
func NewWriter(ctx context.Context, w io.Writer, b Bytes) io.Writer {
	return &writer{w, newSpender(ctx, b)}
}

type writer struct {
	w     io.Writer
	spent spender
}

func (w *writer) Write(p []byte) (done int, err error) {
	for len(p) > 0 {
		part, err := w.spent.spend(len(p))
		if err != nil {
			return done, err
		}
		n, err := w.w.Write(p[:part])
		done += n
		if err != nil {
			return done, err
		}
		p = p[part:]
	}
	return done, nil
}
