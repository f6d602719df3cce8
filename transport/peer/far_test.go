package peer

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// farConn is a connection on which what is written arrives a round trip later.
type farConn struct {
	net.Conn
	under sync.WaitGroup
	sent  chan chunk
	ended sync.Once
}

type chunk struct {
	data []byte
	at   time.Time
}

func newFarConn(c net.Conn) net.Conn {
	f := &farConn{Conn: c, sent: make(chan chunk, 1<<16)}
	f.under.Go(func() {
		for s := range f.sent {
			time.Sleep(time.Until(s.at))
			if _, err := c.Write(s.data); err != nil {
				return
			}
		}
	})
	return f
}

const farRTT = 400 * time.Millisecond

func (f *farConn) Write(b []byte) (int, error) {
	defer func() { _ = recover() }() // closed meanwhile
	f.sent <- chunk{append([]byte(nil), b...), time.Now().Add(farRTT)}
	return len(b), nil
}

func (f *farConn) Close() error {
	err := f.Conn.Close()
	f.ended.Do(func() { close(f.sent) })
	f.under.Wait()
	return err
}

// TestFar: at a round trip of 400 ms, records that come one by one wait for at most half a round trip and 20 ms more than
// one, those that need a replica as far away for a round trip more, and four frames are under way.
func TestFar(t *testing.T) {
	for _, c := range []struct {
		name    string
		records func(...int64) []check.Record
		replica time.Duration
		most    time.Duration
	}{
		{"async", costing, 0, farRTT*3/2 + 20*time.Millisecond},
		{"sync", syncing, farRTT, farRTT*5/2 + 20*time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network := newNetwork()
				network.serve(t, "b:1", network.config("b"), handlerFunc(func(from string, records []check.Record, replies []check.Reply) {
					time.Sleep(c.replica)
					echo(from, records, replies)
				}))
				config := network.config("a")
				config.Dial = network.through(newFarConn)
				pool := open(t, config)
				call := func(i int64) time.Duration {
					start := time.Now()
					if err := pool.Call(t.Context(), "b:1", c.records(i), make([]check.Reply, 1)); err != nil {
						t.Error(err)
					}
					return time.Since(start)
				}
				call(0) // connects
				var calls sync.WaitGroup
				for i := range int64(600) {
					calls.Go(func() {
						if took := call(i); took > c.most {
							t.Errorf("call %d took %v, want at most %v", i, took, c.most)
						}
					})
					time.Sleep(3 * time.Millisecond)
				}
				calls.Wait()
				// Four in a round trip are what BBR lets out while it measures one.
				if frames := pool.Stats().Frames; frames > 600*3/100+10 {
					t.Errorf("%d frames for 1.8 s of calls, want one each 100 ms", frames)
				}
			})
		})
	}
}
