package netlimit

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/key"
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
	// Refused is told of each connection that was closed, nil of none; d is zero where there was no decision. It
	// must not block.
	Refused func(addr net.Addr, d client.Decision)
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
				if !pause(l.ctx, 10*time.Millisecond) { // out of file descriptors, mostly
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
	if l.config.Refused != nil && l.ctx.Err() == nil {
		l.config.Refused(c.RemoteAddr(), d)
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

// pause waits for d, and reports false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
