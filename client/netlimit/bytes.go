package netlimit

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-project/sluice/client"
)

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
