package netlimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/leaf/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type checker func(ctx context.Context, c client.Check) (client.Decision, error)

func (f checker) Check(ctx context.Context, c client.Check) (client.Decision, error) {
	return f(ctx, c)
}

func listen(t *testing.T, c Config) *Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := Listen(l, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestListener: connections over the limit are closed, the others come out of Accept.
func TestListener(t *testing.T) {
	var mu sync.Mutex
	left, asked := 2, client.Check{}
	rejected := make(chan string, 9)
	l := listen(t, Config{Domain: "edge", Rejected: func(a net.Addr, _ client.Decision) { rejected <- a.String() }, Checker: checker(func(_ context.Context, c client.Check) (client.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = c
		left--
		return client.Decision{Allowed: left >= 0}, nil
	})})
	for range 2 {
		dial(t, l)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	over := dial(t, l)
	if _, err := over.Read(make([]byte, 1)); err == nil {
		t.Error("a connection over the limit was answered")
	}
	if got := <-rejected; got != over.LocalAddr().String() {
		t.Errorf("rejected %s, want %s", got, over.LocalAddr())
	}
	if asked.Domain != "edge" || asked.Descriptor[0] != client.KV("ip", "127.0.0.1") {
		t.Errorf("asked %+v", asked)
	}
}

// TestListenerSlow: one limit that takes long holds up no other connection, and Close ends all.
func TestListenerSlow(t *testing.T) {
	first := make(chan struct{}, 1)
	first <- struct{}{}
	slow := make(chan struct{})
	l := listen(t, Config{Domain: "edge", Checker: checker(func(ctx context.Context, _ client.Check) (client.Decision, error) {
		select {
		case <-first:
			close(slow)
			<-ctx.Done()
			return client.Decision{}, ctx.Err()
		default:
			return client.Decision{Allowed: true}, nil
		}
	})})
	dial(t, l)
	<-slow
	quick := dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.RemoteAddr().String() != quick.LocalAddr().String() {
		t.Errorf("accepted %s, want the quick one", c.RemoteAddr())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestListenerError: who cannot be asked admits, unless the limit's owner says otherwise.
func TestListenerError(t *testing.T) {
	failing := checker(func(context.Context, client.Check) (client.Decision, error) {
		return client.Decision{}, client.ErrClosed
	})
	l := listen(t, Config{Domain: "edge", Checker: failing})
	dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l = listen(t, Config{Domain: "edge", Checker: failing, FailClosed: true})
	if _, err := dial(t, l).Read(make([]byte, 1)); err == nil {
		t.Error("a connection without a decision was answered")
	}
}

// TestListenerHangs: while no decision comes at all, connections are accepted as fast as ever, and no more are
// asked about than may be.
func TestListenerHangs(t *testing.T) {
	var asked atomic.Int32
	l := listen(t, Config{Domain: "edge", Asking: 2, Timeout: time.Hour, Checker: checker(func(ctx context.Context, _ client.Check) (client.Decision, error) {
		asked.Add(1)
		<-ctx.Done()
		return client.Decision{}, ctx.Err()
	})})
	for range 2 {
		dial(t, l) // never decided
	}
	for range 20 {
		dial(t, l)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if n := asked.Load(); n > 2 {
		t.Errorf("%d asked at once", n)
	}
}

// TestListenerFull: who does not accept leaves connections to the system's queue; Close closes what was ready.
func TestListenerFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		l, err := Listen(pipe, Config{Domain: "edge", Asking: 2, Checker: checker(func(context.Context, client.Check) (client.Decision, error) {
			return client.Decision{Allowed: true}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		var ours []net.Conn
		taken := func() bool {
			here, there := net.Pipe()
			ours = append(ours, here)
			synctest.Wait()
			select {
			case pipe.conns <- there:
				return true
			default:
				there.Close()
				return false
			}
		}
		for i := range 4 {
			if !taken() {
				t.Fatalf("connection %d was not taken", i)
			}
		}
		if taken() {
			t.Error("a fifth connection was taken, without a call of Accept")
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if !taken() {
			t.Error("there is room again, and no connection was taken")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range ours {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection outlived its listener")
			}
		}
	})
}

// pipes is a listener of whatever is put into it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return nil }

// TestListenerFails: when the listener below ends, Accept says why, as often as it is asked.
func TestListenerFails(t *testing.T) {
	pipe := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	l, err := Listen(pipe, Config{Domain: "edge", Checker: checker(nil)})
	if err != nil {
		t.Fatal(err)
	}
	close(pipe.closed)
	for range 2 {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	pipe.closed = make(chan struct{})
	l.Close()
}

func TestListenRequires(t *testing.T) {
	ok := checker(func(context.Context, client.Check) (client.Decision, error) { return client.Decision{}, nil })
	for want, c := range map[string]Config{"Checker": {Domain: "d"}, "Domain": {Checker: ok}, "Timeout": {Domain: "d", Checker: ok, Timeout: -1}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(l, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		l.Close()
	}
	if _, err := Listen(nil, Config{}); err == nil {
		t.Error("no listener was accepted")
	}
}

// bucket can admit so many bytes at once, and has as many as one wants.
type bucket struct {
	burst int64
	asked int
	spent int64
}

func (b *bucket) Wait(_ context.Context, c client.Check) (client.Decision, error) {
	b.asked++
	if c.Cost > b.burst {
		return client.Decision{RetryAfter: client.Never}, client.ErrNever
	}
	b.spent += c.Cost
	return client.Decision{Allowed: true}, nil
}

// TestChunk: chunks that are larger than the limit can admit become smaller, and are not tried again.
func TestChunk(t *testing.T) {
	const size = 100_000
	b := &bucket{burst: 1000}
	got, err := io.ReadAll(NewReader(t.Context(), strings.NewReader(strings.Repeat("x", size)), Bytes{Waiter: b, Domain: "d"}))
	if err != nil || len(got) != size || b.spent != size || b.asked > size/500+10 {
		t.Errorf("%d bytes, %v, %d spent in %d", len(got), err, b.spent, b.asked)
	}
	b = &bucket{burst: 1000}
	n, err := NewWriter(t.Context(), io.Discard, Bytes{Waiter: b, Domain: "d"}).Write(make([]byte, size))
	if err != nil || n != size || b.spent != size || b.asked > size/500+10 {
		t.Errorf("%d bytes, %v, %d spent in %d", n, err, b.spent, b.asked)
	}
	b = &bucket{}
	if n, err := NewWriter(t.Context(), io.Discard, Bytes{Waiter: b, Domain: "d"}).Write(make([]byte, 9)); !errors.Is(err, client.ErrNever) || n != 0 {
		t.Errorf("a limit of nothing: %d, %v", n, err)
	}
}

// budget admits so many bytes.
type budget struct {
	left  int64
	costs []int64
}

func (b *budget) Wait(_ context.Context, c client.Check) (client.Decision, error) {
	b.costs = append(b.costs, c.Cost)
	if b.left -= c.Cost; b.left < 0 {
		return client.Decision{}, client.ErrWouldExceedDeadline
	}
	return client.Decision{Allowed: true}, nil
}

// TestReader: every byte is spent, in chunks.
func TestReader(t *testing.T) {
	b := &budget{left: 100}
	r := NewReader(t.Context(), strings.NewReader(strings.Repeat("x", 25)), Bytes{Waiter: b, Domain: "d", Chunk: 10})
	got, err := io.ReadAll(r)
	if err != nil || len(got) != 25 || b.left != 75 || len(b.costs) != 3 {
		t.Errorf("%d bytes, %v, costs %v", len(got), err, b.costs)
	}
	b = &budget{left: 15}
	got, err = io.ReadAll(NewReader(t.Context(), strings.NewReader(strings.Repeat("x", 25)), Bytes{Waiter: b, Domain: "d", Chunk: 10}))
	if !errors.Is(err, client.ErrWouldExceedDeadline) || len(got) != 20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestWriter: what is not admitted is not written.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	b := &budget{left: 25}
	n, err := NewWriter(t.Context(), &out, Bytes{Waiter: b, Domain: "d", Chunk: 10}).Write(make([]byte, 25))
	if err != nil || n != 25 || out.Len() != 25 {
		t.Errorf("%d, %v", n, err)
	}
	out.Reset()
	b = &budget{left: 15}
	n, err = NewWriter(t.Context(), &out, Bytes{Waiter: b, Domain: "d", Chunk: 10}).Write(make([]byte, 25))
	if !errors.Is(err, client.ErrWouldExceedDeadline) || n != 10 || out.Len() != 10 {
		t.Errorf("%d, %v, %d written", n, err, out.Len())
	}
}
