// Package longwire puts a wide area between two ends on one machine, for tests and the demo.
package longwire

import (
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// underWay is the most pieces, each of at most maxPiece bytes, under way in one direction of a connection.
	underWay = 4096
	maxPiece = 16 << 10
)

// Config says what a Wire is like.
type Config struct {
	// Listen and Target are addresses of TCP; port 0 of Listen picks a free one.
	Listen, Target string
	// Delay is that of one direction.
	Delay time.Duration
}

// Wire is a long wire between two ends on one machine, a TCP proxy in this process: it needs no root. Connections are accepted
// at once, and the first bytes to the target wait for the three packets that would open the connection. It must be closed.
type Wire struct {
	c         Config
	listener  net.Listener
	running   sync.WaitGroup
	mu        sync.Mutex
	cut       [2]bool
	recovered chan struct{} // closed and replaced when the cuts change
	conns     map[net.Conn]bool
	closed    chan struct{}
}

// The directions of a Wire.
const (
	toTarget = iota
	fromTarget
)

// New returns a wire that carries connections.
func New(c Config) (*Wire, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, err
	}
	w := &Wire{c: c, listener: l, recovered: make(chan struct{}), conns: map[net.Conn]bool{}, closed: make(chan struct{})}
	w.running.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				w.running.Go(func() { w.connect(conn) })
			}
		}
	})
	return w, nil
}

// Addr is where the wire begins.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Cut makes bytes in a direction wait until a Cut without it. Connections live on, as they do in a network that loses packets.
func (w *Wire) Cut(to, from bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = [2]bool{to, from}
	close(w.recovered)
	w.recovered = make(chan struct{})
}

// Close ends all connections.
func (w *Wire) Close() {
	w.mu.Lock()
	close(w.closed)
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.listener.Close()
	w.running.Wait()
}

// keep notes a connection for Close; false if the wire is closed.
func (w *Wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
		c.Close()
		return false
	default:
		w.conns[c] = true
		return true
	}
}

// connect carries one connection until both of its directions have ended.
func (w *Wire) connect(near net.Conn) {
	opened := time.Now().Add(3 * w.c.Delay)
	far, err := net.Dial("tcp", w.c.Target)
	if err != nil {
		near.Close()
		return
	}
	if w.keep(near) && w.keep(far) {
		var both sync.WaitGroup
		both.Go(func() { w.carry(far, near, toTarget, opened) })
		both.Go(func() { w.carry(near, far, fromTarget, time.Time{}) })
		both.Wait()
	}
	near.Close()
	far.Close()
	w.mu.Lock()
	delete(w.conns, near)
	delete(w.conns, far)
	w.mu.Unlock()
}

// piece is bytes under way; none is the end of the stream.
type piece struct {
	due   time.Time
	bytes []byte
}

// carry carries bytes of one direction, none before opened.
func (w *Wire) carry(to, from net.Conn, direction int, opened time.Time) {
	under, stop := make(chan piece, underWay), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		buf, due := make([]byte, maxPiece), opened
		for {
			n, err := from.Read(buf)
			if t := time.Now().Add(w.c.Delay); t.After(due) {
				due = t
			}
			next := []piece{{due, append([]byte(nil), buf[:n]...)}, {due: due}}
			if n == 0 {
				next = next[1:]
			} else if err == nil {
				next = next[:1]
			}
			for _, p := range next {
				select {
				case under <- p:
				case <-stop:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range under {
		if !w.wait(p.due, direction) {
			break
		}
		if p.bytes == nil {
			_ = to.(*net.TCPConn).CloseWrite() // the other direction may go on
			break
		}
		if _, err := to.Write(p.bytes); err != nil {
			from.Close() // as a reset would
			break
		}
	}
	close(stop)
	reading.Wait()
}

// wait waits until due, and while the direction is cut. It returns false when the wire is closed.
func (w *Wire) wait(due time.Time, direction int) bool {
	if left := time.Until(due); left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.closed:
			return false
		}
	}
	for {
		w.mu.Lock()
		cut, recovered := w.cut[direction], w.recovered
		w.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-recovered:
		case <-w.closed:
			return false
		}
	}
}
