package peer

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// TestAbandon: a caller that leaves takes its slices with it.
func TestAbandon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newGate()
		_, _, pool := pair(t, b)

		type leaver struct {
			replies [1]check.Reply
			err     chan error
			leave   context.CancelFunc
		}
		var leavers [3]leaver
		for i := range leavers {
			l := &leavers[i]
			var ctx context.Context
			ctx, l.leave = context.WithCancel(t.Context())
			l.err = make(chan error, 1)
			go func() {
				records := costing(int64(i + 1))
				err := pool.Call(ctx, "b:1", records, l.replies[:])
				// These are the caller's again: nobody may read or write them now.
				records[0].Cost = -1
				l.replies[0].Remaining = -1
				l.err <- err
			}()
			if i == 0 {
				<-b.arrived
			}
			synctest.Wait()
		}
		if s := pool.Stats(); s.Frames != 2 || s.Waiting != 1 {
			t.Fatalf("want two sent and one waiting: %+v", s)
		}
		for i, want := range []error{check.ErrAmbiguous, check.ErrAmbiguous, check.ErrUnsent} {
			leavers[i].leave()
			if err := <-leavers[i].err; !errors.Is(err, want) || !errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v, want %v", i+1, err, want)
			}
		}
		if s := pool.Stats(); s.Waiting != 0 || s.Abandoned != 3 {
			t.Errorf("nothing should wait any more: %+v", s)
		}
		// The answers to nobody come, and those to others still find their way.
		other := make(chan error)
		go func() { other <- ask(t.Context(), pool, "b:1", 99) }()
		for range 2 {
			b.pass <- 1
			<-b.arrived
		}
		b.pass <- 1
		if err := <-other; err != nil {
			t.Error(err)
		}
		for i := range leavers {
			if got := leavers[i].replies[0].Remaining; got != -1 {
				t.Errorf("call %d: a late answer wrote %d into the caller's replies", i+1, got)
			}
		}
		if s := pool.Stats(); s.Records != 3 {
			t.Errorf("the waiting record was sent although its caller had left: %+v", s)
		}
	})
}

func TestEndedContext(t *testing.T) {
	network := newNetwork()
	pool := open(t, network.config("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ask(ctx, pool, "b:1", 1); !errors.Is(err, check.ErrUnsent) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// twice is a context that is asked once whether it has ended before it has.
type twice struct {
	context.Context
	asked int
}

func (c *twice) Err() error {
	if c.asked++; c.asked > 1 {
		return context.Canceled
	}
	return nil
}

// TestHalfSent: of a call whose first frame was answered and whose second never left,
// the answers stand and the error is about the rest.
func TestHalfSent(t *testing.T) {
	_, _, pool := pair(t, handlerFunc(echo))
	records := costing(make([]int64, maxGather+1)...)
	replies := make([]check.Reply, len(records))
	replies[maxGather].Status = check.Decided // left from another call
	err := pool.Call(&twice{Context: t.Context()}, "b:1", records, replies)
	if !errors.Is(err, check.ErrUnsent) || errors.Is(err, check.ErrAmbiguous) {
		t.Errorf("got %v, want it unsent", err)
	}
	for i := range replies {
		if answered := replies[i].Status != 0; answered != (i < maxGather) {
			t.Fatalf("record %d: answered is %v", i, answered)
		}
	}
	if s := pool.Stats(); s.Records != maxGather {
		t.Errorf("%+v: the test shows nothing", s)
	}
}

// TestLeftBeforeSent: a call whose caller leaves between queue and frame is not in
// the frame.
func TestLeftBeforeSent(t *testing.T) {
	s := &session{link: &link{}}
	gone, here := &call{records: costing(1, 2)}, &call{records: costing(3)}
	if inTime, sent := gone.abandon(); !inTime || sent {
		t.Fatalf("in time %v, sent %v", inTime, sent)
	}
	s.link.pool = &Pool{}
	s.link.mu.waiting.push(gone)
	s.link.mu.waiting.push(here)
	f := &frame{}
	s.beginFrame(f)
	s.gather(f)
	if f.records != 1 || len(f.calls) != 1 || f.calls[0] != here || len(s.request.KeyLo) != 1 || s.request.Cost[0] != 3 {
		t.Errorf("the frame has %d records: %v", f.records, &s.request)
	}
}

// clogged is a connection whose writes can be made to hang.
type clogged struct {
	net.Conn
	mu     sync.Mutex
	closed chan struct{}
	once   sync.Once
	clog   bool
}

func (c *clogged) Write(b []byte) (int, error) {
	c.mu.Lock()
	clog := c.clog
	c.mu.Unlock()
	if clog {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *clogged) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// stop makes writes hang from now on.
func (c *clogged) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clog = true
}

// TestClogged: a caller is never kept beyond its context by a connection that takes
// no more bytes.
func TestClogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		config := network.config("a")
		var conn *clogged
		config.Dial = network.through(func(c net.Conn) net.Conn {
			conn = &clogged{Conn: c, closed: make(chan struct{})}
			return conn
		})
		pool := open(t, config)
		if err := ask(t.Context(), pool, "b:1", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		conn.stop()
		start := time.Now()
		results := make(chan error)
		records := costing(slices.Repeat([]int64{math.MaxInt64}, maxGather)...) // more bytes than gRPC buffers
		for range 4 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				results <- pool.Call(ctx, "b:1", records, make([]check.Reply, len(records)))
			}()
			synctest.Wait()
		}
		for range 4 {
			if err := <-results; !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("callers were kept for %v", took)
		}
	})
}
