package peer

import (
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestControlUnreachable: a failed attempt drops what waits, and is repeated with control messages
// that comes 200 ms later at the latest.
func TestControlUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		pool := open(t, network.config("a"))
		start := time.Now()
		posted := uint64(0)
		for time.Since(start) < time.Second {
			pool.Post("b:1", heartbeat(1))
			posted++
			time.Sleep(time.Millisecond) // the bubble's
		}
		// At 0, 10, 30, 70, 150, 310, 510, 710 and 910 ms.
		if s := pool.Stats(); s.Failed != 9 || s.Dropped != posted || s.Posted != 0 {
			t.Errorf("%d posted, %+v; want 9 attempts and all dropped", posted, s)
		}
		network.serveControl(t, "b:1", box)
		served := time.Now()
		for len(box) == 0 && time.Since(served) < time.Second {
			pool.Post("b:1", heartbeat(1))
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(served); took > lastControlBackoff {
			t.Errorf("control messages came %v after the peer", took)
		}
	})
}

// TestControlReconnects: after a loss control messages goes on with the next message, and a peer
// that loses connections at once is not worn out.
func TestControlReconnects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		_, stop := network.serveControl(t, "b:1", box)
		pool := open(t, network.config("a"))
		pool.Post("b:1", heartbeat(1))
		time.Sleep(lastControlBackoff)
		stop()
		synctest.Wait()
		_, stop = network.serveControl(t, "b:1", box)
		pool.Post("b:1", heartbeat(2))
		synctest.Wait() // at once
		wantNumbers(t, box.all(), 1, 2)
		if s := pool.Stats(); s.Dialled != 2 || s.Broken != 1 || s.Dropped != 0 {
			t.Errorf("%+v", s)
		}
		stop() // too soon
		synctest.Wait()
		network.serveControl(t, "b:1", box)
		pool.Post("b:1", heartbeat(3))
		synctest.Wait()
		time.Sleep(firstBackoff)
		pool.Post("b:1", heartbeat(4))
		synctest.Wait()
		wantNumbers(t, box.all(), 4)
		if s := pool.Stats(); s.Dialled != 3 || s.Broken != 2 || s.Dropped != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestControlLoss: control messages that waits while a connection is lost goes over the next one.
func TestControlLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		network.serveControl(t, "b:1", box)
		c := network.config("a")
		var conn *clogged
		c.Dial = network.through(func(raw net.Conn) net.Conn {
			conn = &clogged{Conn: raw, closed: make(chan struct{})}
			return conn
		})
		pool := open(t, c)
		pool.Post("b:1", heartbeat(1))
		time.Sleep(lastControlBackoff)
		synctest.Wait()
		first := conn
		first.stop()
		for n := range uint64(4) {
			pool.Post("b:1", transferBatch(n+1, 250<<10))
			synctest.Wait()
		}
		pool.Post("b:1", heartbeat(2))
		synctest.Wait()
		wantNumbers(t, box.all(), 1)
		first.Close()
		synctest.Wait()
		// One frame was on its way; gRPC had another's bytes in its hands.
		got := numbers(box.all())
		if len(got) < 2 || got[0] != 2 || got[len(got)-1] != -4 {
			t.Errorf("got %v, want the heartbeat and the last transfer batches", got)
		}
		if s := pool.Stats(); s.Dialled != 2 || s.Broken != 1 || s.Dropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestControlRejected: a node that does not fit gets no control messages through, and both sides say
// why once, not at every attempt.
func TestControlRejected(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		var logs, serverLogs lines
		b := network.config("b")
		b.ControlQueue, b.Log = box, slog.New(slog.NewTextHandler(&serverLogs, nil))
		server, _ := network.serve(t, "b:1", b, handlerFunc(echo))
		c := network.config("a")
		c.Placement, c.Log = 8, slog.New(slog.NewTextHandler(&logs, nil))
		pool := open(t, c)
		for range 20 {
			pool.Post("b:1", heartbeat(1))
			time.Sleep(50 * time.Millisecond)
		}
		if s := server.Stats(); s.Rejected != pool.Stats().Failed || s.Rejected < 5 || s.Delivered != 0 {
			t.Errorf("%+v, %+v", s, pool.Stats())
		}
		for _, j := range []*lines{&logs, &serverLogs} {
			if all, n := j.with("\n"), j.with("placement"); all != 1 || n != 1 {
				t.Errorf("%d lines, %d about placements", all, n)
			}
		}
	})
}

// TestUnsendableIsLoggedRarely: a message that no frame takes is dropped alone, and the log has one line in 10 s of such.
func TestUnsendableIsLoggedRarely(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		network.serveControl(t, "b:1", box)
		var logs lines
		c := network.config("a")
		c.Log = slog.New(slog.NewTextHandler(&logs, nil))
		pool := open(t, c)
		for i := range int64(100) { // 1 s apart
			pool.Post("b:1", message.Envelope{Body: &message.TransferBatch{Image: bucket.Image{Limits: make([]*bucket.Limits, message.MaxSets+1)}}})
			pool.Post("b:1", heartbeat(i))
			time.Sleep(time.Second)
		}
		if n := len(numbers(box.all())); n != 100 {
			t.Errorf("%d heartbeats of 100 came", n)
		}
		if n := logs.with("a message cannot be sent"); n != int(100*time.Second/logEvery) || logs.with("\n") != n {
			t.Errorf("%d lines of %d", n, logs.with("\n"))
		}
		if s := pool.Stats(); s.Dropped != 100 {
			t.Errorf("%+v", s)
		}
	})
}

// TestControlEnds: Retain and Close end control messages in every state, and drop what waits.
func TestControlEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*Pool)
	}{
		{"retain", func(p *Pool) { p.Retain(nil) }},
		{"close", func(p *Pool) { p.Close(); p.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network, box := newNetwork(), newInbox()
				server, _ := network.serveControl(t, "b:1", box)
				config := network.config("a")
				config.Dial = silent{network, true}.dial
				pool := open(t, config)
				pool.Post("b:1", heartbeat(1))
				pool.Post("silent:1", heartbeat(2))
				pool.Post("nobody:1", heartbeat(3))
				synctest.Wait()
				if s := server.Stats(); s.Streams != 1 {
					t.Errorf("%+v", s)
				}
				start := time.Now()
				c.end(pool)
				synctest.Wait()
				if s := server.Stats(); s.Streams != 0 || time.Since(start) != 0 {
					t.Errorf("after %v: %+v", time.Since(start), s)
				}
				if s := pool.Stats(); s.Posted != 1 || s.Dropped != 2 || s.Broken != 0 {
					t.Errorf("%+v", s)
				}
				pool.Post("b:1", heartbeat(4))
				synctest.Wait()
				if got, closed := len(box.all()) == 2, c.name == "close"; got == closed {
					t.Errorf("control messages afterwards: %v", got)
				}
			})
		})
	}
}

// TestNoControlQueue: a server without a queue of control messages lets control messages fall.
func TestNoControlQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, server, pool := pair(t, handlerFunc(echo))
		pool.Post("b:1", heartbeat(1))
		synctest.Wait()
		if s := server.Stats(); s.Delivered != 0 || s.Streams != 1 || pool.Stats().Posted != 1 {
			t.Errorf("%+v, %+v", s, pool.Stats())
		}
	})
}
