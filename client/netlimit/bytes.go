package netlimit

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/sluicecluster/sluice/client/limit"
)

// Bytes configures a reader or writer.
type Bytes struct {
	// Key is the counter of the bytes. Required.
	Key limit.Key
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
	return spender{ctx, b, cmp.Or(max(b.Chunk, 0), 32<<10)}
}

// spend waits until up to n bytes are admitted, and returns how many. It halves chunks that can never be admitted.
func (s *spender) spend(n int) (int, error) {
	for {
		n = min(n, s.chunk)
		err := s.bytes.Key.WaitN(s.ctx, int64(n))
		if !errors.Is(err, limit.ErrNever) || n == 1 {
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
