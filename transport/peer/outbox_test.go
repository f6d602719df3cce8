package peer

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

func heartbeat(n int64) message.Envelope {
	return message.Envelope{Body: &message.Heartbeat{Sent: n}}
}

func transferBatch(n uint64, bytes int) message.Envelope {
	return message.Envelope{Body: &message.TransferBatch{
		N: n, Parts: []message.Part{{Kind: message.InitialSync, Bytes: bytes}}, Image: bucket.Image{Data: make([]byte, bytes)},
	}}
}

// numbers returns the numbers of heartbeats, and of transfer batches with a minus.
func numbers(list []message.Envelope) []int64 {
	var ns []int64
	for _, e := range list {
		switch b := e.Body.(type) {
		case *message.Heartbeat:
			ns = append(ns, b.Sent)
		case *message.TransferBatch:
			ns = append(ns, -int64(b.N))
		}
	}
	return ns
}

func wantNumbers(t *testing.T, got []message.Envelope, want ...int64) {
	t.Helper()
	if ns := numbers(got); !slices.Equal(ns, want) {
		t.Errorf("got %v, want %v", ns, want)
	}
}

// held is a way to dial that waits until it is opened.
func held(c *Config) (open func()) {
	dial, gate := c.Dial, make(chan struct{})
	c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		select {
		case <-gate:
			return dial(ctx, addr)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() { close(gate) }
}

// TestCopies: a copy arrives by a second connection while the first carries nothing.
func TestCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		network.serveControl(t, "b:1", box)
		c := network.config("a")
		dial, first := c.Dial, make(chan struct{}, 1)
		first <- struct{}{}
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			select {
			case <-first:
				<-ctx.Done()
				return nil, ctx.Err()
			default:
				return dial(ctx, addr)
			}
		}
		pool := open(t, c)
		pool.Post("b:1", heartbeat(1))
		synctest.Wait()
		both := heartbeat(2)
		both.Copy = true
		pool.Post("b:1", both)
		synctest.Wait()
		wantNumbers(t, box.all(), 2)
	})
}

// TestControlOrder: what waits for a connection is delivered in order, control before transfer batches.
func TestControlOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		network.serveControl(t, "b:1", box)
		c := network.config("a")
		pass := held(&c)
		pool := open(t, c)
		for i := range int64(3) {
			pool.Post("b:1", transferBatch(uint64(i)+1, 200<<10)) // each fills a frame
			pool.Post("b:1", heartbeat(i+1))
		}
		synctest.Wait()
		if len(box) != 0 {
			t.Fatal("delivered without a connection")
		}
		start := time.Now()
		pass()
		synctest.Wait()
		wantNumbers(t, box.all(), 1, 2, 3, -1, -2, -3)
		pool.Post("b:1", transferBatch(4, 1))
		synctest.Wait()
		wantNumbers(t, box.all(), -4)
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v: something waits for a timer", took)
		}
		if s := pool.Stats(); s.Posted != 7 || s.Dropped != 0 || s.Dialled != 1 || s.Peers != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestControlWaitsForCompany: what is patient goes with the next message, in order, or by itself after a while.
func TestControlWaitsForCompany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, box, pool := controlPair(t)
		patient := func(n int64) message.Envelope {
			e := heartbeat(n)
			e.Patient = true
			return e
		}
		pool.Post("b:1", patient(1)) // a connection is made for it, and it goes at once
		synctest.Wait()
		wantNumbers(t, box.all(), 1)

		pool.Post("b:1", patient(2))
		time.Sleep(batchDelay - time.Millisecond)
		synctest.Wait()
		wantNumbers(t, box.all())
		pool.Post("b:1", heartbeat(3))
		synctest.Wait()
		wantNumbers(t, box.all(), 2, 3)

		pool.Post("b:1", patient(4))
		pool.Post("b:1", transferBatch(5, 1))
		synctest.Wait()
		wantNumbers(t, box.all(), 4, -5)

		pool.Post("b:1", patient(6))
		pool.Post("b:1", patient(7)) // two are company
		synctest.Wait()
		wantNumbers(t, box.all(), 6, 7)
		if w, err := pool.linksTo("b:1"); err != nil || w.control.batchTimer.Stop() {
			t.Errorf("somebody is woken later, though all has left; %v", err)
		}

		pool.Post("b:1", patient(8))
		start := time.Now()
		wantNumbers(t, []message.Envelope{<-box}, 8)
		if took := time.Since(start); took != batchDelay {
			t.Errorf("it waited %v, want %v", took, batchDelay)
		}
	})
}

// slow is a queue of control messages that, against the rules, waits.
type slow struct {
	inbox
	opened chan struct{}
}

func (s slow) Deliver(e message.Envelope) {
	<-s.opened
	s.inbox.Deliver(e)
}

// TestHeartbeatsOvertake: on a connection that takes no more, transfer batches pile up, and a
// heartbeat goes before them all as soon as there is room.
func TestHeartbeatsOvertake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), slow{newInbox(), make(chan struct{})}
		network.serveControl(t, "b:1", box)
		pool := open(t, network.config("a"))
		const transferBatches = 45
		for n := range uint64(transferBatches) {
			pool.Post("b:1", transferBatch(n+1, 250<<10))
			synctest.Wait()
		}
		way, err := pool.linksTo("b:1")
		if err != nil {
			t.Fatal(err)
		}
		way.control.mu.Lock()
		waiting := len(way.control.mu.bulk.list)
		way.control.mu.Unlock()
		if waiting < 5 {
			t.Fatalf("%d transfer batches wait: the test shows nothing", waiting)
		}
		pool.Post("b:1", heartbeat(1))
		close(box.opened)
		synctest.Wait()
		got := numbers(box.all())
		if len(got) != transferBatches+1 || got[transferBatches-waiting] != 1 {
			t.Errorf("got %v, want the heartbeat before the last %d transfer batches", got, waiting)
		}
	})
}

// TestControlDrops: each queue is bounded in messages and bytes, and the other goes on.
func TestControlDrops(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, box := newNetwork(), newInbox()
		network.serveControl(t, "b:1", box)
		c := network.config("a")
		pass := held(&c)
		pool := open(t, c)
		for n := range uint64(4) {
			pool.Post("b:1", transferBatch(n+1, 3<<20)) // the third is too much, and so is the fourth
		}
		for n := range int64(maxWaiting) + 5 {
			pool.Post("b:1", heartbeat(n+1))
		}
		pool.Post("b:1", transferBatch(5, 1<<20))
		if s := pool.Stats(); s.Dropped != 2+5 {
			t.Errorf("dropped %d, want 7", s.Dropped)
		}
		pass()
		synctest.Wait()
		got := box.all()
		if len(got) != maxWaiting+3 {
			t.Fatalf("%d messages came, want %d", len(got), maxWaiting+3)
		}
		wantNumbers(t, got[maxWaiting-1:], maxWaiting, -1, -2, -5)
		pool.Post("b:1", heartbeat(1))
		synctest.Wait()
		wantNumbers(t, box.all(), 1)
	})
}

// TestLargeMessageGoesAlone: a message of any size goes into an empty queue, and nothing behind it.
func TestLargeMessageGoesAlone(t *testing.T) {
	var q controlMessages
	push := func(n uint64, bytes int) bool {
		e := transferBatch(n, bytes)
		m, err := encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		return q.push(m)
	}
	if !push(1, maxWaitingBytes+1) {
		t.Fatal("a large message does not go into an empty queue")
	}
	if push(2, 1) {
		t.Error("a queue that is full takes more")
	}
	if got := takeFrame(nil, new(controlMessages), &q); len(got) != 1 || q.bytes != 0 || !push(3, 1) {
		t.Errorf("%d messages taken, %d bytes left", len(got), q.bytes)
	}
}
