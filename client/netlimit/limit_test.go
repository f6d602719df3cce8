package netlimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-project/sluice/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	refused := make(chan string, 9)
	l := listen(t, Config{Domain: "edge", Refused: func(a net.Addr, _ client.Decision) { refused <- a.String() }, Checker: checker(func(_ context.Context, c client.Check) (client.Decision, error) {
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
	if got := <-refused; got != over.LocalAddr().String() {
		t.Errorf("refused %s, want %s", got, over.LocalAddr())
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

// TestListenerError: who cannot be asked admits.
func TestListenerError(t *testing.T) {
	l := listen(t, Config{Domain: "edge", Checker: checker(func(context.Context, client.Check) (client.Decision, error) {
		return client.Decision{}, client.ErrClosed
	})})
	dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
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
