package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open listens on loopback with b.
func open(t *testing.T, b Bounds) *Listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	l, err := New(inner, b)
	do(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from an address and says text.
func dial(t *testing.T, l *Listener, from, text string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", l.Addr().String())
	do(t, err)
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

func accept(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	do(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// hungUp waits until the other side has closed c.
func hungUp(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection is still open: %v", err)
	}
}

func waitOpen(t *testing.T, l *Listener, want int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for l.Stats().Open != want {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want %d", l.Stats().Open, want)
		}
		time.Sleep(time.Millisecond)
	}
}

var wideBounds = Bounds{Total: 100, PerAddress: 100, Silence: time.Minute}

func TestBytesArriveWhole(t *testing.T) {
	l := open(t, wideBounds)
	dial(t, l, "127.0.0.1", "hello").(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(accept(t, l))
	if err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
}

// pipes is a listener in memory, whose connections are what is sent to it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error { close(p); return nil }

func (p pipes) Addr() net.Addr { return nil }

func TestSilentOnesAreNotGivenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := make(pipes)
		l, err := New(inner, wideBounds)
		do(t, err)
		defer l.Close()
		come := func() net.Conn {
			theirs, ours := net.Pipe()
			t.Cleanup(func() { theirs.Close() })
			inner <- ours
			return theirs
		}
		began, silent := time.Now(), come()
		_, err = silent.Read(make([]byte, 1))
		if took := time.Since(began); err == nil || took != wideBounds.Silence {
			t.Errorf("after %v: %v; want it closed after %v", took, err, wideBounds.Silence)
		}
		synctest.Wait()
		if s := l.Stats(); s != (Stats{Silent: 1}) {
			t.Errorf("stats are %+v", s)
		}
		// The deadline is that of the first byte alone.
		c := come()
		if _, err := io.WriteString(c, "a"); err != nil {
			t.Fatal(err)
		}
		server := accept(t, l)
		time.Sleep(3 * wideBounds.Silence)
		go io.WriteString(c, "b") // waits until it is read
		if _, err := io.ReadFull(server, make([]byte, 2)); err != nil {
			t.Errorf("a connection that has said something ended: %v", err)
		}
	})
}

func TestNoMoreThanThat(t *testing.T) {
	l := open(t, Bounds{Total: 3, PerAddress: 2, Silence: time.Minute})
	first := dial(t, l, "127.0.0.2", "x")
	server := accept(t, l)
	dial(t, l, "127.0.0.2", "") // a silent one counts
	waitOpen(t, l, 2)
	hungUp(t, dial(t, l, "127.0.0.2", ""))
	dial(t, l, "127.0.0.3", "x")
	accept(t, l)
	hungUp(t, dial(t, l, "127.0.0.4", ""))
	if s := l.Stats(); s != (Stats{Open: 3, Full: 1, Crowded: 1}) {
		t.Errorf("stats are %+v", s)
	}
	// A closed connection frees its place once.
	first.Close()
	server.Close()
	server.Close()
	waitOpen(t, l, 2)
	dial(t, l, "127.0.0.2", "x")
	accept(t, l)
}

func TestCloseEndsWhoIsWaitedFor(t *testing.T) {
	l := open(t, wideBounds)
	silent := dial(t, l, "127.0.0.1", "")
	waiting := dial(t, l, "127.0.0.1", "x") // nobody accepts it
	waitOpen(t, l, 2)
	do(t, l.Close())
	hungUp(t, silent)
	hungUp(t, waiting)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if n := l.Stats().Open; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// failing is a listener that has no descriptor left for a while.
type failing struct {
	net.Listener
	times int
}

type noDescriptor struct{}

func (noDescriptor) Error() string   { return "too many open files" }
func (noDescriptor) Temporary() bool { return true }
func (noDescriptor) Timeout() bool   { return false }

func (f *failing) Accept() (net.Conn, error) {
	if f.times > 0 {
		f.times--
		return nil, noDescriptor{}
	}
	return f.Listener.Accept()
}

func TestAcceptingGoesOnWhenItCan(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	l, err := New(&failing{inner, 3}, wideBounds)
	do(t, err)
	defer l.Close()
	dial(t, l, "127.0.0.1", "x")
	accept(t, l)
}

func TestNetworks(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{"192.0.2.1", "::ffff:192.0.2.1"},
		{"2001:db8::1", "2001:db8::ffff:0:0:2"},
	} {
		if networkOf(&net.TCPAddr{IP: net.ParseIP(c.a)}) != networkOf(&net.TCPAddr{IP: net.ParseIP(c.b)}) {
			t.Errorf("%s and %s do not count as one", c.a, c.b)
		}
	}
	if networkOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}) == networkOf(&net.TCPAddr{IP: net.ParseIP("2001:db8:0:1::1")}) {
		t.Error("two networks count as one")
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		bounds Bounds
		field  string
	}{
		{Bounds{0, 1, 1}, "Total"}, {Bounds{1, 0, 1}, "PerAddress"}, {Bounds{1, 1, 0}, "Silence"},
	} {
		if _, err := New(nil, c.bounds); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: %v", c.bounds, err)
		}
	}
}

// The last places are for addresses that have few connections.
func TestPlacesAreKept(t *testing.T) {
	l := open(t, Bounds{Total: 16, PerAddress: 100, Silence: time.Minute})
	for range 14 {
		dial(t, l, "127.0.0.2", "x")
	}
	waitOpen(t, l, 14)
	hungUp(t, dial(t, l, "127.0.0.2", "x"))
	dial(t, l, "127.0.0.3", "x")
	dial(t, l, "127.0.0.4", "x")
	waitOpen(t, l, 16)
	hungUp(t, dial(t, l, "127.0.0.5", "x"))
	if s := l.Stats(); s.Full != 2 {
		t.Errorf("%+v, want 2 for want of places", s)
	}
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
