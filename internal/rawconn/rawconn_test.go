package rawconn

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// pair returns both ends of a connection: of this package, or of the net package alone.
func pair(t *testing.T, plain bool) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		from := l
		if !plain {
			from = Listener{l}
		}
		if c, err := from.Accept(); err == nil {
			accepted <- c
		}
	}()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if !plain {
		if a, _, err = Credentials(insecure.NewCredentials()).Clone().ClientHandshake(t.Context(), "", a); err != nil {
			t.Fatal(err)
		}
	}
	b = <-accepted
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// both runs f with connections of this package and with those it stands in for.
func both(t *testing.T, f func(t *testing.T, a, b net.Conn)) {
	for name, plain := range map[string]bool{"raw": false, "net": true} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, plain)
			f(t, a, b)
		})
	}
}

// TestStream: what goes in comes out, both ways at once, in pieces of all sizes, more than the kernel holds.
func TestStream(t *testing.T) {
	both(t, func(t *testing.T, a, b net.Conn) {
		const size = 16 << 20
		var all sync.WaitGroup
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			sent, got := sha256.New(), sha256.New()
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, 2))
				for left := size; left > 0; {
					piece := make([]byte, min(left, 1+random.IntN(200_000)))
					for i := range piece {
						piece[i] = byte(random.Uint32())
					}
					sent.Write(piece)
					if n, err := way[0].Write(piece); n != len(piece) || err != nil {
						t.Errorf("%d of %d bytes written, %v", n, len(piece), err)
						return
					}
					left -= len(piece)
				}
			})
			all.Go(func() {
				if n, err := io.CopyN(got, struct{ io.Reader }{way[1]}, size); err != nil {
					t.Errorf("%d bytes read, %v", n, err)
				}
			})
			defer func() {
				if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
					t.Error("what came out is not what went in")
				}
			}()
		}
		all.Wait()
	})
}

// TestEnds: the ways in which a connection ends, or does not go on, look as they do in the net package.
func TestEnds(t *testing.T) {
	one := make([]byte, 1)
	for name, f := range map[string]struct {
		do   func(a, b net.Conn) error
		want error
	}{
		"the other end is closed": {func(a, b net.Conn) error {
			b.Close()
			_, err := a.Read(one)
			return err
		}, io.EOF},
		"read after Close": {func(a, b net.Conn) error {
			a.Close()
			_, err := a.Read(one)
			return err
		}, net.ErrClosed},
		"write after Close": {func(a, b net.Conn) error {
			a.Close()
			_, err := a.Write(one)
			return err
		}, net.ErrClosed},
		"Close while somebody reads": {func(a, b net.Conn) error {
			time.AfterFunc(20*time.Millisecond, func() { a.Close() })
			_, err := a.Read(one)
			return err
		}, net.ErrClosed},
		"Close while somebody writes": {func(a, b net.Conn) error {
			time.AfterFunc(50*time.Millisecond, func() { a.Close() })
			_, err := a.Write(make([]byte, 64<<20))
			return err
		}, net.ErrClosed},
		"nothing comes in time": {func(a, b net.Conn) error {
			if err := a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				return err
			}
			_, err := a.Read(one)
			return err
		}, os.ErrDeadlineExceeded},
		"nobody takes it in time": {func(a, b net.Conn) error {
			much := make([]byte, 64<<20)
			if err := a.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			n, err := a.Write(much)
			if n == 0 {
				return errors.New("what was taken before the deadline is not counted")
			}
			return err
		}, os.ErrDeadlineExceeded},
		"the other end resets": {func(a, b net.Conn) error {
			if err := b.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
				return err
			}
			b.Close()
			_, err := a.Read(one)
			return err
		}, syscall.ECONNRESET},
		"write to nobody": {func(a, b net.Conn) error {
			b.Close()
			for {
				if _, err := a.Write(one); err != nil {
					return err
				}
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, a, b net.Conn) {
				err := f.do(a, b)
				if f.want == nil { // the kernel has a choice
					if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%v, want a broken pipe or a reset", err)
					}
				} else if !errors.Is(err, f.want) {
					t.Errorf("%v, want %v", err, f.want)
				}
				if err == io.EOF {
					return
				}
				op, ok := errors.AsType[*net.OpError](err)
				if !ok || op.Op != "read" && op.Op != "write" || !strings.Contains(err.Error(), a.RemoteAddr().String()) {
					t.Errorf("%v says neither what was done nor with whom", err)
				}
				if timeout := f.want == os.ErrDeadlineExceeded; ok && op.Timeout() != timeout {
					t.Errorf("%v: Timeout is %v", err, op.Timeout())
				}
			})
		})
	}
}

// TestNothing: no bytes are no reason to wait, nor an end.
func TestNothing(t *testing.T) {
	both(t, func(t *testing.T, a, _ net.Conn) {
		for _, want := range []error{nil, net.ErrClosed} {
			if n, err := a.Read(nil); n != 0 || !errors.Is(err, want) {
				t.Errorf("read nothing: %d, %v; want %v", n, err, want)
			}
			if n, err := a.Write(nil); n != 0 || !errors.Is(err, want) {
				t.Errorf("wrote nothing: %d, %v; want %v", n, err, want)
			}
			a.Close()
		}
	})
}

// TestWritersTakeTurns: what one goroutine writes at once comes in one piece, whoever else writes.
func TestWritersTakeTurns(t *testing.T) {
	both(t, func(t *testing.T, a, b net.Conn) {
		const size = 24 << 20
		var writers sync.WaitGroup
		for _, c := range "xy" {
			writers.Go(func() {
				if n, err := a.Write(bytes.Repeat([]byte{byte(c)}, size)); n != size || err != nil {
					t.Errorf("%d of %d bytes written, %v", n, size, err)
				}
			})
		}
		got := make([]byte, 2*size)
		if n, err := io.ReadFull(b, got); err != nil {
			t.Fatalf("%d bytes read, %v", n, err)
		}
		writers.Wait()
		if first := got[:size]; bytes.Count(first, got[:1]) != size || bytes.Count(got[size:], got[:1]) != 0 {
			t.Error("two pieces are mixed")
		}
	})
}

// lender counts the buffers that were taken, and those that are out.
type lender struct {
	mem.BufferPool
	taken, out atomic.Int64
}

func (l *lender) Get(n int) *[]byte {
	l.taken.Add(1)
	l.out.Add(1)
	return l.BufferPool.Get(n)
}

func (l *lender) Put(b *[]byte) { l.out.Add(-1); l.BufferPool.Put(b) }

// TestReadOnReady: a reader has a buffer once there is something in it, and none at the end.
func TestReadOnReady(t *testing.T) {
	a, b := pair(t, false)
	reader, ok := a.(interface {
		ReadOnReady(int, mem.BufferPool) (*[]byte, int, error)
	})
	if !ok {
		t.Skip("connections are those of the net package here, which gRPC knows")
	}
	pool := &lender{BufferPool: mem.DefaultBufferPool()}
	go func() {
		for deadline := time.Now().Add(10 * time.Second); pool.taken.Load() == 0 || pool.out.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("there is nothing to read, and a buffer stays out")
				break
			}
		}
		if _, err := b.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
	}()
	got, n, err := reader.ReadOnReady(32<<10, pool)
	if err != nil || string((*got)[:n]) != "hello" || len(*got) < n || pool.out.Load() != 1 {
		t.Fatalf("%d bytes, %v, %d buffers are out", n, err, pool.out.Load())
	}
	pool.Put(got)
	b.Close()
	if got, n, err := reader.ReadOnReady(32<<10, pool); got != nil || n != 0 || err != io.EOF || pool.out.Load() != 0 {
		t.Errorf("at the end: %v, %d bytes, %v, %d buffers are out", got, n, err, pool.out.Load())
	}
	a.Close()
	if got, _, err := reader.ReadOnReady(32<<10, pool); got != nil || !errors.Is(err, net.ErrClosed) || pool.out.Load() != 0 {
		t.Errorf("after Close: %v, %v, %d buffers are out", got, err, pool.out.Load())
	}
}

// TestNoAllocation: a connection brings the memory that its calls need.
func TestNoAllocation(t *testing.T) {
	a, b := pair(t, false)
	out, in := []byte("hello"), make([]byte, 5)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.Write(out); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, in); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestOthers(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if wrap(a) != a {
		t.Error("what is no TCP connection is not left alone")
	}
	if c, d := pair(t, false); !wrapped(c) || !wrapped(d) {
		t.Error("a TCP connection is left alone")
	}
}
