package inflow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// SmallMessage is the most bytes of a message whose memory is not looked at: that of a check.
	SmallMessage = 128
	// littleMemory is the most memory of a message that is not counted: that of a few checks, and
	// of the call itself.
	littleMemory = 16 << 10
	// SmallBody is the most bytes of a body of an HTTP request that is not counted before it is
	// decoded.
	SmallBody = 4 << 10
)

const (
	// mostDecoded is the most memory of one message, and of those of one connection: with what is
	// held of incomplete messages, a connection takes less than 64 MiB.
	mostDecoded = 32 << 20
	// briefMemory is the most memory of a message that does not wait for room behind larger ones.
	briefMemory = 1 << 20
	// memoryWait is how long a message waits for room, and mostWaiting how many do.
	memoryWait  = 20 * time.Second
	mostWaiting = 1024
)

// Memory bounds the memory of decoded messages and of bodies of HTTP requests, until their calls
// end. A nil Memory bounds nothing. It is safe for concurrent use.
type Memory struct {
	most         int64 // of one message
	small, large pool
	bodies       pool
}

// NewMemory returns a Memory for a process that may take limit bytes in all: it gives large
// messages an eighth of them, or a fifth for one that is alone, small ones a sixteenth, and bodies
// of HTTP requests a thirty-second, or what one takes.
func NewMemory(limit int64) *Memory {
	return &Memory{
		most: min(limit/5, mostDecoded), large: newPool(min(limit/8, 256<<20)), small: newPool(min(limit/16, 64<<20)),
		bodies: newPool(min(limit/32, 64<<20)),
	}
}

// ErrNoMemory is the error of a message that found no room in time. Nothing of it was read.
var ErrNoMemory = errors.New("other calls take all memory that this node has for messages; nothing was charged; send it again later, or send less at once")

// TooLarge is the error of a message that takes more memory than any may.
type TooLarge struct {
	// Field is the first field that does not fit, "" if it is not known.
	Field string
	Most  int64
}

func (e *TooLarge) Error() string {
	text := fmt.Sprintf("the message has so many elements that it would take more than %d MiB of memory, the most for one message; split the call", e.Most>>20)
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	return text
}

// Take waits for n bytes. field is where a message of more than Most bytes exceeds them. The error
// is a *TooLarge, ErrNoMemory, or that of ctx.
func (m *Memory) Take(ctx context.Context, n int64, field string) (Held, error) {
	if m == nil {
		return Held{}, nil
	}
	return m.take(ctx, n, field, nil)
}

// take is Take for a call of a connection, if c is not nil.
func (m *Memory) take(ctx context.Context, n int64, field string, c *pool) (Held, error) {
	if n <= littleMemory {
		return Held{}, nil
	}
	if n > m.most {
		return Held{}, &TooLarge{field, m.most}
	}
	if n <= briefMemory {
		return m.from(ctx, &m.small, nil, n)
	}
	return m.from(ctx, &m.large, c, n)
}

// from takes n bytes of p, and of c if it is not nil.
func (m *Memory) from(ctx context.Context, p, c *pool, n int64) (Held, error) {
	// A connection waits for itself first, so that it keeps nothing from others meanwhile.
	if c != nil && !c.take(ctx, n) {
		return Held{}, noMemory(ctx)
	}
	if !p.take(ctx, n) {
		if c != nil {
			c.give(n)
		}
		return Held{}, noMemory(ctx)
	}
	return Held{p, c, n}, nil
}

// noMemory is the error of a message that waited until ctx has ended, or for too long.
func noMemory(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrNoMemory
}

// Body waits for the n bytes of the body of an HTTP request, before it is read. The error is as of
// Take.
func (m *Memory) Body(ctx context.Context, n int64) (Held, error) {
	if m == nil || n <= SmallBody {
		return Held{}, nil
	}
	return m.from(ctx, &m.bodies, nil, n)
}

// Held is memory that was taken. The zero value is none.
type Held struct {
	of, conn *pool // conn is nil if it is of no connection
	n        int64
}

// Release gives it back, once.
func (h *Held) Release() {
	if h.n == 0 {
		return
	}
	h.of.give(h.n)
	if h.conn != nil {
		h.conn.give(h.n)
	}
	*h = Held{}
}

// pool is a number of bytes to take, first come, first served. One that wants more than there are
// gets them when nothing is taken.
type pool struct {
	size  int64
	mu    sync.Mutex
	free  int64
	queue []*waiter // in order; those that have gone have n 0
}

type waiter struct {
	n     int64
	ready chan struct{}
}

func newPool(size int64) pool { return pool{size: size, free: size} }

// hasLocked reports whether n bytes may be taken.
func (p *pool) hasLocked(n int64) bool { return n <= p.free || p.free == p.size }

// try takes n bytes if they are free and none waits.
func (p *pool) try(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 || !p.hasLocked(n) {
		return false
	}
	p.free -= n
	return true
}

// take waits for n bytes until ctx ends or for memoryWait, and reports whether it has them.
func (p *pool) take(ctx context.Context, n int64) bool {
	if p.try(n) {
		return true
	}
	w := &waiter{n, make(chan struct{})}
	p.mu.Lock()
	if len(p.queue) >= mostWaiting {
		p.mu.Unlock()
		return false
	}
	p.queue = append(p.queue, w)
	p.serveLocked()
	p.mu.Unlock()
	late := time.NewTimer(memoryWait)
	defer late.Stop()
	select {
	case <-w.ready:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.ready: // meanwhile
		return true
	default:
	}
	w.n = 0
	p.serveLocked() // it may have been first
	return false
}

// give gives n bytes back.
func (p *pool) give(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += n
	p.serveLocked()
}

// serveLocked gives bytes to those that wait first.
func (p *pool) serveLocked() {
	for len(p.queue) > 0 {
		w := p.queue[0]
		if !p.hasLocked(w.n) {
			return
		}
		p.free -= w.n
		if w.n > 0 {
			close(w.ready)
		}
		p.queue[0], p.queue = nil, p.queue[1:]
	}
}
