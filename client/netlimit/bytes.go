package netlimit

import (
	"context"
	"io"

	"github.com/sluice-project/sluice/client"
)

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Bytes is what a Reader or Writer spends its bytes of.
type Bytes struct {
	Waiter Waiter
	Domain string
	// Descriptor names whose bytes they are. Its limit must admit Chunk at once.
	Descriptor []client.Entry
	// Chunk is how many bytes are asked for at a time, at most; 0 means 32 KiB. Smaller ones are smoother, larger
	// ones ask less often.
	Chunk int
}

const defaultChunk = 32 << 10

func (b *Bytes) chunk() int {
	if b.Chunk <= 0 {
		return defaultChunk
	}
	return b.Chunk
}

// spend waits until n bytes are admitted.
func (b *Bytes) spend(ctx context.Context, n int) error {
	_, err := b.Waiter.Wait(ctx, client.Check{Domain: b.Domain, Descriptor: b.Descriptor, Cost: int64(n)})
	return err
}

// NewReader returns r, of which each byte is spent. What was read is spent before it is returned, so a Read
// returns after its limit admits it; while it waits, nothing more is read, and whoever sends is slowed
// down. When the limit does not admit bytes that were read, Read returns them with the error.
func NewReader(ctx context.Context, r io.Reader, b Bytes) io.Reader { return &reader{ctx, r, b} }

type reader struct {
	ctx   context.Context
	r     io.Reader
	bytes Bytes
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) > r.bytes.chunk() {
		p = p[:r.bytes.chunk()]
	}
	n, err := r.r.Read(p)
	if n > 0 {
		if e := r.bytes.spend(r.ctx, n); e != nil {
			return n, e
		}
	}
	return n, err
}

// NewWriter returns w, of which each byte is spent before it is written.
func NewWriter(ctx context.Context, w io.Writer, b Bytes) io.Writer { return &writer{ctx, w, b} }

type writer struct {
	ctx   context.Context
	w     io.Writer
	bytes Bytes
}

func (w *writer) Write(p []byte) (done int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), w.bytes.chunk())]
		if err := w.bytes.spend(w.ctx, len(part)); err != nil {
			return done, err
		}
		n, err := w.w.Write(part)
		done += n
		if err != nil {
			return done, err
		}
		p = p[len(part):]
	}
	return done, nil
}
