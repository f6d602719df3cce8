package longwire

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// echoes runs a server that sends back what it gets, until the end of the stream, and returns its address.
func echoes(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(struct{ io.Writer }{conn}, conn)
			})
		}
	})
	return l.Addr().String()
}

func newWire(t testing.TB, c Config) *Wire {
	t.Helper()
	c.Listen, c.Target = "127.0.0.1:0", echoes(t)
	w, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func dialWire(t testing.TB, w *Wire) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", w.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// trip sends n bytes and waits for all of them.
func trip(t testing.TB, conn net.Conn, n int) time.Duration {
	t.Helper()
	began, sent, got := time.Now(), bytes.Repeat([]byte("wide area "), n/10+1)[:n], make([]byte, n)
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := conn.Write(sent); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%v, or other bytes", err)
	}
	sending.Wait()
	return time.Since(began)
}

func TestWireDelays(t *testing.T) {
	const delay = 30 * time.Millisecond
	w := newWire(t, Config{Delay: delay})
	began := time.Now() // the wire may accept before dialWire returns
	conn := dialWire(t, w)
	trip(t, conn, 10)
	if first := time.Since(began); first < 4*delay {
		t.Errorf("opening a connection and its first round trip took %v, which are two round trips", first)
	}
	fastest := time.Hour
	for end := time.Now().Add(time.Minute); fastest > 4*delay && time.Now().Before(end); { // unless the process does not run
		took := trip(t, conn, 100_000)
		if took < 2*delay {
			t.Errorf("a round trip took %v", took)
		}
		fastest = min(fastest, took)
	}
	if fastest > 4*delay {
		t.Errorf("the fastest round trip took %v", fastest)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
}

// TestWireCut: bytes wait in the direction that is cut, and arrive afterwards.
func TestWireCut(t *testing.T) {
	for _, cut := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		w := newWire(t, Config{})
		conn := dialWire(t, w)
		trip(t, conn, 10)
		w.Cut(cut[0], cut[1])
		if _, err := conn.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := conn.Read(make([]byte, 10)); n > 0 || err == nil {
			t.Errorf("%v: %d bytes came back", cut, n)
		}
		_ = conn.SetReadDeadline(time.Time{})
		w.Cut(false, false)
		if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
			t.Errorf("%v: %v", cut, err)
		}
	}
}

// BenchmarkWire is the ceiling of a wire: bytes of one connection, and round trips of 100 bytes of many.
func BenchmarkWire(b *testing.B) {
	for _, delay := range []time.Duration{0, 25 * time.Millisecond, 75 * time.Millisecond, 150 * time.Millisecond} {
		b.Run(fmt.Sprintf("bytes/%v", delay), func(b *testing.B) {
			conn := dialWire(b, newWire(b, Config{Delay: delay}))
			const n = 1 << 20
			b.SetBytes(n)
			chunk := make([]byte, n)
			var sending sync.WaitGroup
			sending.Go(func() {
				for range b.N {
					if _, err := conn.Write(chunk); err != nil {
						return
					}
				}
			})
			if _, err := io.CopyN(io.Discard, conn, int64(n)*int64(b.N)); err != nil {
				b.Fatal(err)
			}
			sending.Wait()
		})
	}
	for _, conns := range []int{1, 64} {
		b.Run(fmt.Sprintf("trips/%d-connections", conns), func(b *testing.B) {
			w := newWire(b, Config{})
			work := make(chan struct{})
			var all sync.WaitGroup
			for range conns {
				conn := dialWire(b, w)
				all.Go(func() {
					for range work {
						trip(b, conn, 100)
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
		})
	}
}
