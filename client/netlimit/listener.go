// Package netlimit holds listeners and streams of bytes to the limits of a sluice cluster: connections per client
// address, and bytes per anything.
package netlimit

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/key"
	"github.com/sluice-project/sluice/internal/pause"
)

// Checker decides; *client.Client is one.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// Listener accepts connections as the limits of their client's address admit; it closes the others at once. The
// descriptor is (Key, address), IPv6 addresses as the first of their /64. Connections come out of Accept in the order in
// which they are admitted. However slow decisions are, they hold up no connection but their own.
type Listener struct {
	net.Listener
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan net.Conn // admitted, and not accepted yet
	room   chan struct{} // one for each connection that is asked about or ready
	asking chan struct{} // one for each connection that is asked about
	failed chan error
	group  sync.WaitGroup
	once   sync.Once
}

// Config is what a Listener is made of.
type Config struct {
	// Checker and Domain are required.
	Checker Checker
	Domain  string
	// Key of the descriptor's entry; "" means "ip".
	Key string
	// Timeout is how long a decision may take; 0 means a second. A Checker that answers for
	// itself when nobody does, as *client.Client after its own time-out, gets to do so only within it.
	Timeout time.Duration
	// Asking is how many connections may be asked about at a time; 0 means 128. As many may be ready for
	// Accept; what comes while both are used up waits in the system's queue.
	Asking int
	// FailClosed closes connections about which there is no decision: the Checker returned an error or took
	// longer than Timeout, or Asking others had none yet. Otherwise they are accepted: the limit is not worth an
	// outage.
	FailClosed bool
	// Rejected is told of each connection that was closed, nil of none; d is zero where there was no decision. It
	// must not block.
	Rejected func(addr net.Addr, d client.Decision)
}

// Listen returns a Listener on l, which it closes when it is closed. The error says which field of c is wrong.
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
	if c.Key == "" {
		c.Key = "ip"
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.Asking == 0 {
		c.Asking = 128
	}
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

// accept takes connections from the system until the listener fails, and has each asked about in a goroutine of its own.
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
		value, ok := network(c.RemoteAddr())
		if !ok {
			l.ready <- c // has room
			continue
		}
		select {
		case l.asking <- struct{}{}:
			l.group.Go(func() {
				d, err := l.decide(value)
				<-l.asking
				l.settle(c, d, err == nil && d.Allowed || err != nil && !l.config.FailClosed)
			})
		default:
			l.settle(c, client.Decision{}, !l.config.FailClosed)
		}
	}
}

// settle makes c ready, for which it has room, or closes it. It does not block.
func (l *Listener) settle(c net.Conn, d client.Decision, admitted bool) {
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

// decide asks about a connection from the network.
func (l *Listener) decide(value string) (client.Decision, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.config.Timeout)
	defer cancel()
	return l.config.Checker.Check(ctx, client.Check{
		Domain: l.config.Domain, Descriptor: []client.Entry{{Key: l.config.Key, Value: value}},
	})
}

// network returns what a connection from addr is counted as; ok is false for those without an IP address.
func network(addr net.Addr) (value string, ok bool) {
	if addr == nil {
		return "", false
	}
	a, ok := key.Parse(addr.String())
	if !ok {
		return "", false
	}
	return key.Network(a), true
}

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Bytes is what a Reader or Writer spends its bytes of.
type Bytes struct {
	// Waiter and Domain are required.
	Waiter Waiter
	Domain string
	// Descriptor names whose bytes they are. Not empty.
	Descriptor []client.Entry
	// Chunk is how many bytes are asked for at a time, at most; 0 means 32 KiB. Smaller ones are smoother, larger
	// ones ask less often. It becomes smaller by itself where the limit can never admit so much at once.
	Chunk int
}

const defaultChunk = 32 << 10

// spender spends bytes. It is not safe for concurrent use, as readers and writers are not.
type spender struct {
	ctx   context.Context
	bytes Bytes
	chunk int
}

func newSpender(ctx context.Context, b Bytes) spender {
	s := spender{ctx, b, b.Chunk}
	if s.chunk <= 0 {
		s.chunk = defaultChunk
	}
	return s
}

// spend waits until up to n bytes are admitted, and returns how many. A cost that never would be is halved, for
// good.
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

// NewReader returns r, of which each byte is spent. What was read is spent before it is returned, so a Read
// returns after its limit admits it; while it waits, nothing more is read, and whoever sends is slowed
// down. When the limit does not admit bytes that were read, Read returns them with the error.
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

// NewWriter returns w, of which each byte is spent before it is written.
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
