package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// TestLost: what was sent is ambiguous, what was not is unsent, and the next call
// gets a new connection at once.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(s *Server, conn net.Conn, p *Pool)
	}{
		{"server closes", func(s *Server, _ net.Conn, _ *Pool) { s.Close() }},
		{"connection breaks", func(_ *Server, conn net.Conn, _ *Pool) { conn.Close() }},
		{"the peer is silent", func(_ *Server, _ net.Conn, p *Pool) { p.HangUp("b:1") }},
		{"no longer a member", func(_ *Server, _ net.Conn, p *Pool) { p.Retain([]string{"c:1"}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network, b := newNetwork(), newGate()
				server, _ := network.serve(t, "b:1", network.config("b"), b)
				config := network.config("a")
				var conn net.Conn
				config.Dial = network.through(func(c net.Conn) net.Conn {
					conn = c
					return conn
				})
				pool := open(t, config)
				results := make([]chan error, 5)
				for i := range results {
					results[i] = make(chan error, 1)
					go func() { results[i] <- ask(t.Context(), pool, "b:1", 1) }()
					if i == 0 {
						<-b.arrived
					}
					synctest.Wait()
				}
				go c.cut(server, conn, pool)
				for i, result := range results {
					want := check.ErrAmbiguous
					if i >= freeInFlight {
						want = check.ErrUnsent
					}
					if err := <-result; !errors.Is(err, want) || !strings.Contains(err.Error(), "b:1") {
						t.Errorf("call %d: %v; want %v, with the address", i+1, err, want)
					}
				}
				b.open()
				synctest.Wait()
				start := time.Now()
				network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
				if err := ask(t.Context(), pool, "b:1", 1); err != nil {
					t.Errorf("after the loss: %v", err)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("the first attempt after a loss waited %v", took)
				}
			})
		})
	}
}

// TestUnreachable: an address that rejects fails calls at once, is tried again ever
// more seldom, and serves as soon as an attempt succeeds.
func TestUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		pool := open(t, network.config("a"))
		start := time.Now()
		attempts := func() uint64 { return pool.Stats().Failed }
		for time.Since(start) < 3*time.Second {
			if err := ask(t.Context(), pool, "b:1", 1); !errors.Is(err, check.ErrUnsent) || !strings.Contains(err.Error(), "connection refused") {
				t.Fatalf("got %v", err)
			}
			time.Sleep(time.Millisecond) // the bubble's
		}
		// At 0, 10, 30, 70, 150, 310, 630, 1270 and 2270 ms.
		if n := attempts(); n != 9 {
			t.Errorf("%d attempts in 3 s, want 9", n)
		}
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		time.Sleep(lastBackoff)
		if err := ask(t.Context(), pool, "b:1", 1); err != nil {
			t.Error(err)
		}
	})
}

// silent accepts connections, or hangs in dialing, and never says a word.
type silent struct {
	network *network
	dialing bool
}

func (s silent) dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr != "silent:1" {
		return s.network.dial(ctx, addr)
	}
	if s.dialing {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		for b := make([]byte, 1024); ; {
			if _, err := there.Read(b); err != nil {
				return
			}
		}
	}()
	return here, nil
}

// TestSilent: a peer that says nothing costs DialTimeout, and costs others nothing.
func TestSilent(t *testing.T) {
	for _, dialing := range []bool{false, true} {
		t.Run(fmt.Sprintf("dialing=%v", dialing), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network := newNetwork()
				network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
				config := network.config("a")
				config.Dial = silent{network, dialing}.dial
				pool := open(t, config)
				start := time.Now()
				result := make(chan error)
				go func() { result <- ask(t.Context(), pool, "silent:1", 1) }()
				synctest.Wait()
				if err := ask(t.Context(), pool, "b:1", 1); err != nil || time.Since(start) != 0 {
					t.Errorf("another peer meanwhile: %v after %v", err, time.Since(start))
				}
				if err := <-result; !errors.Is(err, check.ErrUnsent) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(start); took != pool.cfg.DialTimeout {
					t.Errorf("it took %v, want %v", took, pool.cfg.DialTimeout)
				}
			})
		})
	}
}

// TestStalled: a peer that accepts and never answers is given up by the first call
// that gives up after stallTimeout.
func TestStalled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newGate()
		_, _, pool := pair(t, b)
		start := time.Now()
		for pool.Stats().Broken == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			err := ask(ctx, pool, "b:1", 1)
			cancel()
			if err == nil {
				t.Fatal("an answer from nowhere")
			}
			if time.Since(start) > time.Minute {
				t.Fatal("the stream is never given up")
			}
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("given up after %v, want at the first call that ends after %v", took, stallTimeout)
		}
		b.open()
		if err := ask(t.Context(), pool, "b:1", 1); err != nil {
			t.Errorf("on a new stream: %v", err)
		}
	})
}

// TestClose: it ends calls in every state, and can come twice.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, b := newNetwork(), newGate()
		network.serve(t, "b:1", network.config("b"), b)
		config := network.config("a")
		config.Dial = silent{network, true}.dial
		pool := open(t, config)
		var calls sync.WaitGroup
		failing := func(addr string) {
			calls.Go(func() {
				if err := ask(t.Context(), pool, addr, 1); err == nil {
					t.Errorf("a call to %s survived Close", addr)
				}
			})
			synctest.Wait()
		}
		failing("silent:1")
		for range 4 {
			failing("b:1")
		}
		start := time.Now()
		pool.Close()
		calls.Wait()
		pool.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("closing took %v", took)
		}
		if err := ask(t.Context(), pool, "b:1", 1); !errors.Is(err, check.ErrUnsent) {
			t.Errorf("after Close: %v", err)
		}
		b.open()
	})
}

// TestRetain: what is retained is not touched.
func TestRetain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		c, _ := network.serve(t, "c:1", network.config("c"), handlerFunc(echo))
		pool := open(t, network.config("a"))
		for _, addr := range []string{"b:1", "c:1"} {
			if err := ask(t.Context(), pool, addr, 1); err != nil {
				t.Fatal(err)
			}
		}
		pool.Retain([]string{"b:1", "d:1"})
		synctest.Wait()
		if s := pool.Stats(); s.Peers != 1 || s.Broken != 0 {
			t.Errorf("after letting go of one: %+v", s)
		}
		if n := c.Stats().Streams; n != 0 {
			t.Errorf("c still has %d streams", n)
		}
		if err := ask(t.Context(), pool, "b:1", 1); err != nil || pool.Stats().Dialled != 2 {
			t.Errorf("the other: %v, %+v", err, pool.Stats())
		}
	})
}
