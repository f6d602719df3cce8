// Package listen bounds what unauthenticated clients can hold of a port: the number of connections, how many of them one
// address has, and how long one may stay silent.
//
// A Listener owns a goroutine that accepts and one for each connection without a first byte; Close waits for all of them.
package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds are the limits of a port. All fields are required.
type Bounds struct {
	// Total is the most connections at once, at least 1.
	Total int
	// PerAddress is the most of them that one IPv4 address or one IPv6 network of 64 bits has, at least 1.
	PerAddress int
	// Silence is how long a connection may take for its first byte.
	Silence time.Duration
}

// Validate reports the first invalid field.
func (b Bounds) Validate() error {
	switch {
	case b.Total < 1:
		return fmt.Errorf("listen: Total: %d; want at least 1", b.Total)
	case b.PerAddress < 1:
		return fmt.Errorf("listen: PerAddress: %d; want at least 1", b.PerAddress)
	case b.Silence <= 0:
		return fmt.Errorf("listen: Silence: %v; want a time above 0", b.Silence)
	}
	return nil
}

// Of the places, min(Total/8, mostKept) are kept for addresses with fewer than visit connections, so that health checks, operators
// and metrics get in when clients have taken all others.
const (
	visit    = 4
	mostKept = 64
)

// Stats has counts since New, except for Open.
type Stats struct {
	// Open is the current number of connections, silent ones included.
	Open int
	// Full and Crowded were closed at once: too many in all, or of one address. Silent ones sent nothing in time.
	Full, Crowded, Silent uint64
	// Failed counts failures to accept, most often for lack of a file descriptor. The connection stays in the kernel's queue.
	Failed uint64
}

// Listener is a net.Listener that returns connections once their first byte is there. It must be created with New and closed
// with Close.
type Listener struct {
	net.Listener
	bounds Bounds

	heard chan net.Conn // connections with a first byte
	over  chan struct{} // closed when accepting has ended
	done  chan struct{} // closed by Close
	wg    sync.WaitGroup

	full, crowded, silent, failed atomic.Uint64

	mu struct {
		sync.Mutex
		failed  error
		closed  bool
		open    int
		by      map[netip.Addr]int
		waiting map[*conn]struct{}
	}
}

// New takes l over and begins to accept. It returns an error for invalid bounds, and then does not touch l.
func New(l net.Listener, b Bounds) (*Listener, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	bounded := &Listener{
		Listener: l, bounds: b, heard: make(chan net.Conn), over: make(chan struct{}), done: make(chan struct{}),
	}
	bounded.mu.by = make(map[netip.Addr]int)
	bounded.mu.waiting = make(map[*conn]struct{})
	bounded.wg.Go(bounded.accept)
	return bounded, nil
}

// Accept waits for the next connection with a first byte. After Close, or a permanent failure, it returns the error.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.heard:
		return c, nil
	case <-l.over:
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.mu.failed
	}
}

// Close ends accepting and closes the connections that Accept has not returned, and waits until that is done.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.done)
	}
	for c := range l.mu.waiting {
		c.Conn.Close() // hear gives its place back
	}
	l.mu.Unlock()
	l.wg.Wait()
	return err
}

// Stats returns the listener's counts.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	open := l.mu.open
	l.mu.Unlock()
	return Stats{Open: open, Full: l.full.Load(), Crowded: l.crowded.Load(), Silent: l.silent.Load(), Failed: l.failed.Load()}
}

// accept takes connections until the listener ends.
func (l *Listener) accept() {
	for pause := time.Duration(0); ; {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			pause = 0
			l.admit(c)
		case passing(err):
			l.failed.Add(1)
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-l.done:
			}
		default:
			l.mu.Lock()
			l.mu.failed = err
			l.mu.Unlock()
			close(l.over)
			return
		}
	}
}

// passing reports whether accepting may succeed again after err.
func passing(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && e.Temporary() && !errors.Is(err, net.ErrClosed)
}

// admit lets c in if there is room, and waits for its first byte elsewhere.
func (l *Listener) admit(c net.Conn) {
	from := networkOf(c.RemoteAddr())
	l.mu.Lock()
	switch {
	case l.mu.closed:
	case l.mu.open >= l.bounds.Total:
		l.full.Add(1)
	case l.mu.by[from] >= l.bounds.PerAddress:
		l.crowded.Add(1)
	case l.mu.open >= l.bounds.Total-min(l.bounds.Total/8, mostKept) && l.mu.by[from] >= visit:
		l.full.Add(1)
	default:
		l.mu.open++
		l.mu.by[from]++
		own := &conn{Conn: c, listener: l, from: from}
		l.mu.waiting[own] = struct{}{}
		l.wg.Go(func() { l.hear(own) })
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	c.Close()
}

// hear waits for the first byte of c and hands c over.
func (l *Listener) hear(c *conn) {
	err := c.SetReadDeadline(time.Now().Add(l.bounds.Silence))
	if err == nil {
		_, err = c.Conn.Read(c.first[:])
	}
	c.early = err == nil
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	l.mu.Lock()
	delete(l.mu.waiting, c)
	closed := l.mu.closed
	l.mu.Unlock()
	if err != nil || closed {
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			l.silent.Add(1)
		}
		c.Close()
		return
	}
	select {
	case l.heard <- c:
	case <-l.over:
		c.Close()
	}
}

// release gives the place of a connection from that address back.
func (l *Listener) release(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
	if l.mu.by[from]--; l.mu.by[from] == 0 {
		delete(l.mu.by, from)
	}
}

// networkOf returns what counts as one address: of IPv6 a network, because a client can have 2⁶⁴ addresses.
func networkOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap()
	if addr.Is4() {
		return addr
	}
	network, _ := addr.WithZone("").Prefix(64) // the zero Prefix of an invalid address
	return network.Addr()
}

// conn is a connection whose first byte has been read. One goroutine at a time may read.
type conn struct {
	net.Conn
	listener *Listener
	from     netip.Addr
	closing  sync.Once

	early bool // first has a byte that Read has not returned yet
	first [1]byte
}

func (c *conn) Read(p []byte) (int, error) {
	if !c.early {
		return c.Conn.Read(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	c.early = false
	p[0] = c.first[0]
	return 1, nil
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.closing.Do(func() { c.listener.release(c.from) })
	return err
}
