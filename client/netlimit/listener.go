package netlimit

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-project/sluice/client"
)

// Checker decides; *client.Client is one.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// Listener accepts connections as the limits of their client's address admit; it closes the others at once. The
// descriptor is (Key, address), IPv6 addresses as their /64. While one connection's limit is being asked, others are
// accepted, at most Asking at a time. Connections come out of Accept in the order in which they are admitted.
type Listener struct {
	net.Listener
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	out    chan net.Conn
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
	// Timeout is how long a decision may take before the connection is accepted without; 0 means a second.
	Timeout time.Duration
	// Asking is how many connections may wait for a decision; more wait in the system's queue. 0 means 128.
	Asking int
	// Refused is told of each connection that was closed, nil of none. It must not keep the address's
	// memory, nor block.
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
	n := &Listener{Listener: l, config: c, out: make(chan net.Conn), failed: make(chan error, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.group.Go(n.accept)
	return n, nil
}

// Accept returns the next connection that was admitted.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.out:
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
	})
	return err
}

func (l *Listener) accept() {
	room := make(chan struct{}, l.config.Asking)
	for {
		select {
		case room <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.Listener.Accept()
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				<-room
				if !pause(l.ctx, 10*time.Millisecond) { // out of file descriptors, mostly
					return
				}
				continue
			}
			l.failed <- err
			return
		}
		l.group.Go(func() {
			defer func() { <-room }()
			l.admit(c)
		})
	}
}

// admit hands c to Accept, or closes it.
func (l *Listener) admit(c net.Conn) {
	if d, ok := l.decide(c.RemoteAddr()); !ok {
		c.Close()
		if l.config.Refused != nil {
			l.config.Refused(c.RemoteAddr(), d)
		}
		return
	}
	select {
	case l.out <- c:
	case <-l.ctx.Done():
		c.Close()
	}
}

// decide reports whether a connection from addr is admitted. An error of the Checker admits it.
func (l *Listener) decide(addr net.Addr) (client.Decision, bool) {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return client.Decision{}, true // no IP address
	}
	a := at.Addr().Unmap().WithZone("")
	value := a.String()
	if a.Is6() {
		prefix, _ := a.Prefix(64) // fails for no IPv6 address
		value = prefix.String()
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.config.Timeout)
	defer cancel()
	d, err := l.config.Checker.Check(ctx, client.Check{Domain: l.config.Domain, Descriptor: []client.Entry{{Key: l.config.Key, Value: value}}})
	return d, err != nil || d.Allowed
}

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
