package peer

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPatience: nodes that are far apart have time to connect; where it was fast before, one that is heard no more
// is given up sooner.
func TestPatience(t *testing.T) {
	for _, c := range []struct {
		name string
		way  time.Duration
		lost time.Duration
	}{
		{"near", 0, 500 * time.Millisecond},
		{"far", 200 * time.Millisecond, 2400 * time.Millisecond},
		{"very far", 400 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network := newNetwork()
				_, stop := network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
				var gone atomic.Bool
				config := network.config("a")
				config.DialTimeout = 0
				config.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
					if gone.Load() {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(3 * c.way) // what the handshakes would take
					return network.dial(ctx, addr)
				}
				pool := open(t, config)
				start := time.Now()
				if err := ask(t.Context(), pool, "b:1", 1); err != nil {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				gone.Store(true)
				stop()
				synctest.Wait()
				start = time.Now()
				for {
					if err := ask(t.Context(), pool, "b:1", 1); err == nil {
						t.Fatal("an answer from nowhere")
					}
					if time.Since(start) > 0 {
						break
					}
				}
				if took := time.Since(start); took != c.lost {
					t.Errorf("given up after %v, want %v", took, c.lost)
				}
			})
		})
	}
}

// TestSlowerThanBefore: where the network has become slow since the last attempt to connect, the next one has the time that it needs.
func TestSlowerThanBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		_, stop := network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		var far atomic.Bool
		config := network.config("a")
		config.DialTimeout = 0
		config.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if !far.Load() {
				return network.dial(ctx, addr)
			}
			time.Sleep(farRTT)
			return network.through(newFarConn)(ctx, addr)
		}
		pool := open(t, config)
		if err := ask(t.Context(), pool, "b:1", 1); err != nil {
			t.Fatal(err)
		}
		far.Store(true)
		stop()
		synctest.Wait()
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for ask(ctx, pool, "b:1", 1) != nil {
			if ctx.Err() != nil {
				t.Fatal("never connected")
			}
			time.Sleep(10 * time.Millisecond)
		}
		pool.Close()
		time.Sleep(time.Minute) // gRPC's connections end by themselves
	})
}
