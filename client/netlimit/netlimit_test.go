package netlimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/leaktest"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// checker is a Limiter that is one function.
type checker func(ctx context.Context, c limit.Check) (limit.Decision, error)

func (f checker) Check(ctx context.Context, c limit.Check) (limit.Decision, error) { return f(ctx, c) }

func (f checker) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	all, err := f.CheckEach(ctx, checks...)
	return limit.NewBatch(all), err
}

func (f checker) CheckEach(ctx context.Context, checks ...limit.Check) (all []limit.Decision, err error) {
	for _, c := range checks {
		d, e := f(ctx, c)
		all, err = append(all, d), errors.Join(err, e)
	}
	return all, err
}

// edge is a Config of a key.
func edge() Config { return Config{Domain: "edge", Keys: []Key{IP()}} }

func listen(t *testing.T, c Config, f checker) *Listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	l := NewListener(f, inner, c)
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	do(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestListener: connections over the limit are closed, the others come out of Accept.
func TestListener(t *testing.T) {
	var mu sync.Mutex
	left, asked := 2, []limit.Check{}
	denied := make(chan string, 9)
	c := edge()
	c.Keys = append(c.Keys, Value("port", "7460"))
	c.Amount = func(net.Conn) int64 { return 2 }
	c.Denied = func(c net.Conn, d limit.Decision) {
		if d.Allowed {
			t.Errorf("denied by %+v", d)
		}
		io.WriteString(c, "busy")
		denied <- c.RemoteAddr().String()
	}
	l := listen(t, c, func(_ context.Context, c limit.Check) (limit.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, c)
		if c.Descriptor[0].Key == "ip" {
			left--
		}
		return limit.Decision{Allowed: left >= 0}, nil
	})
	for range 2 {
		dial(t, l)
		c, err := l.Accept()
		do(t, err)
		defer c.Close()
	}
	over := dial(t, l)
	if got, err := io.ReadAll(over); err != nil || string(got) != "busy" {
		t.Errorf("a connection over the limit reads %q, %v", got, err)
	}
	if got := <-denied; got != over.LocalAddr().String() {
		t.Errorf("denied %s, want %s", got, over.LocalAddr())
	}
	if asked[0].Domain != "edge" || asked[0].Amount != 2 || asked[0].Descriptor[0] != (limit.Entry{Key: "ip", Value: "127.0.0.1"}) || asked[1].Descriptor[0].Key != "port" {
		t.Errorf("asked %+v", asked)
	}
}

// TestListenerSlow: one limit that takes long holds up no other connection, and Close ends all.
func TestListenerSlow(t *testing.T) {
	first := make(chan struct{}, 1)
	first <- struct{}{}
	slow := make(chan struct{})
	l := listen(t, edge(), func(ctx context.Context, _ limit.Check) (limit.Decision, error) {
		select {
		case <-first:
			close(slow)
			<-ctx.Done()
			return limit.Decision{}, ctx.Err()
		default:
			return limit.Decision{Allowed: true}, nil
		}
	})
	dial(t, l)
	<-slow
	quick := dial(t, l)
	c, err := l.Accept()
	do(t, err)
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

// TestListenerError: a connection that could not be decided is accepted, unless Failed says otherwise.
func TestListenerError(t *testing.T) {
	forbidden := func(context.Context, limit.Check) (limit.Decision, error) {
		return limit.Decision{}, limit.ErrForbidden
	}
	l := listen(t, edge(), forbidden)
	dial(t, l)
	accepted, err := l.Accept()
	do(t, err)
	accepted.Close()
	late := func(ctx context.Context, _ limit.Check) (limit.Decision, error) {
		<-ctx.Done()
		return limit.Decision{}, ctx.Err()
	}
	for name, c := range map[string]struct {
		f       checker
		timeout time.Duration
		want    error
	}{"an error": {forbidden, time.Minute, limit.ErrForbidden}, "no answer": {late, time.Millisecond, context.DeadlineExceeded}} {
		config, failed := edge(), make(chan error, 1)
		config.Timeout = c.timeout
		config.Failed = func(_ context.Context, err error) bool { failed <- err; return false }
		l = listen(t, config, c.f)
		if _, err := dial(t, l).Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a connection without a decision was answered", name)
		}
		if err := <-failed; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestListenerPolicy: a client answers by its failure policy before the Timeout, and is obeyed.
func TestListenerPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		config := Config{Domain: "edge", Keys: []Key{Value("listener", "smtp")}, Timeout: 300 * time.Millisecond}
		config.Failed = func(_ context.Context, err error) bool { t.Errorf("failed: %v", err); return true }
		denied := make(chan limit.Decision, 1)
		config.Denied = func(_ net.Conn, d limit.Decision) { denied <- d }
		l := NewListener(checker(func(ctx context.Context, _ limit.Check) (limit.Decision, error) {
			deadline, ok := ctx.Deadline()
			if !ok {
				t.Error("no deadline")
			}
			pause.For(ctx, time.Until(deadline)-10*time.Millisecond) // as a client whose nodes do not answer
			return limit.Decision{Source: limit.SourceFailClosed, Verdict: limit.VerdictDenied, RetryAfter: time.Second, Degraded: limit.ErrUnavailable}, ctx.Err()
		}), pipe, config)
		defer l.Close()
		began := time.Now()
		here, there := net.Pipe()
		pipe.conns <- there
		if _, err := here.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read %v", err)
		}
		if d := <-denied; d.Source != limit.SourceFailClosed || time.Since(began) != 290*time.Millisecond {
			t.Errorf("%+v after %v", d, time.Since(began))
		}
	})
}

// TestListenerWaits: a connection waits as long as it may, and Timeout does not count that.
func TestListenerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		asked := 0
		l := NewListener(checker(func(context.Context, limit.Check) (limit.Decision, error) {
			asked++
			return limit.Decision{Allowed: asked > 1, Verdict: limit.VerdictDenied, RetryAfter: 4 * time.Second}, nil
		}), pipe, Config{Domain: "edge", Keys: []Key{Value("listener", "smtp")}, MaxWait: 5 * time.Second})
		defer l.Close()
		began := time.Now()
		_, there := net.Pipe()
		pipe.conns <- there
		c, err := l.Accept()
		if took := time.Since(began); err != nil || took < 4*time.Second || took > 5*time.Second {
			t.Fatalf("%v after %v", err, took)
		}
		c.Close()
	})
}

// TestSkip: a connection that is skipped, or of amount 0, or to which no key applies, is not checked.
func TestSkip(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"skipped":  func(c *Config) { c.Skip = func(net.Conn) bool { return true } },
		"amount 0": func(c *Config) { c.Amount = func(net.Conn) int64 { return 0 } },
		"no key":   func(c *Config) { c.Keys = []Key{From("none", func(net.Conn) string { return "" })} },
	} {
		c := edge()
		change(&c)
		l := listen(t, c, func(context.Context, limit.Check) (limit.Decision, error) {
			t.Errorf("%s: checked", name)
			return limit.Decision{}, nil
		})
		dial(t, l)
		accepted, err := l.Accept()
		do(t, err)
		accepted.Close()
	}
}

// TestKeys: what each makes of a connection.
func TestKeys(t *testing.T) {
	port := From("port", func(c net.Conn) string { return strings.TrimPrefix(c.LocalAddr().String(), "127.0.0.1:") })
	none := From("none", func(net.Conn) string { return "" })
	for want, k := range map[string]Key{
		"[{ip 2001:db8::}]": IP(), "[{remote_address 2001:db8::}]": IP().As("remote_address"), "[{port 25}]": First(none, port),
		"[{a b} {port 25}]": Join(Value("a", "b"), port), "[]": Join(port, none),
	} {
		if got, ok := k(conn{}); fmt.Sprint(got) != want || ok != (want != "[]") {
			t.Errorf("%v, %v, want %s", got, ok, want)
		}
	}
	here, _ := net.Pipe()
	if got, ok := IP()(here); ok {
		t.Errorf("of a pipe: %v", got)
	}
}

// conn is a connection of addresses.
type conn struct{ net.Conn }

func (conn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 25} }
func (conn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 9}
}

// TestListenerHangs: while no decision comes at all, connections are accepted as fast as ever, and no more are
// asked about than may be.
func TestListenerHangs(t *testing.T) {
	var asked atomic.Int32
	c := edge()
	c.Asking, c.Timeout = 2, time.Hour
	l := listen(t, c, func(ctx context.Context, _ limit.Check) (limit.Decision, error) {
		asked.Add(1)
		<-ctx.Done()
		return limit.Decision{}, ctx.Err()
	})
	for range 2 {
		dial(t, l) // never decided
	}
	for range 20 {
		dial(t, l)
		c, err := l.Accept()
		do(t, err)
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
		l := NewListener(checker(func(context.Context, limit.Check) (limit.Decision, error) {
			return limit.Decision{Allowed: true}, nil
		}), pipe, Config{Domain: "edge", Keys: []Key{IP()}, Asking: 2})
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
		do(t, err)
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
	l := NewListener(checker(nil), pipe, edge())
	close(pipe.closed)
	for range 2 {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	pipe.closed = make(chan struct{})
	l.Close()
}

// TestConfig: a wrong field is named, by Validate and in a panic.
func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Domain": func(c *Config) { c.Domain = "" }, "Keys": func(c *Config) { c.Keys = nil }, "Timeout": func(c *Config) { c.Timeout = -1 },
		"Asking": func(c *Config) { c.Asking = -1 }, "MaxWait": func(c *Config) { c.MaxWait = -1 },
	} {
		c := edge()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %s, want %s", got, want)
				}
			}()
			NewListener(checker(nil), &pipes{}, c)
		}()
	}
}

// counter is one of l.
func counter(l checker) limit.Key { return limit.NewKey(l, "d", "tenant", "acme") }

// bucket can admit so many bytes at once, and has as many as one wants.
type bucket struct {
	burst int64
	asked int
	spent int64
}

func (b *bucket) check(_ context.Context, c limit.Check) (limit.Decision, error) {
	b.asked++
	if c.Amount > b.burst {
		return limit.Decision{Verdict: limit.VerdictNever}, nil
	}
	b.spent += c.Amount
	return limit.Decision{Allowed: true}, nil
}

// TestChunk: chunks that are larger than the limit can admit become smaller, and are not tried again.
func TestChunk(t *testing.T) {
	const size = 100_000
	b := &bucket{burst: 1000}
	got, err := io.ReadAll(NewReader(t.Context(), strings.NewReader(strings.Repeat("x", size)), Bytes{Key: counter(b.check)}))
	if err != nil || len(got) != size || b.spent != size || b.asked > size/500+10 {
		t.Errorf("%d bytes, %v, %d spent in %d", len(got), err, b.spent, b.asked)
	}
	b = &bucket{burst: 1000}
	n, err := NewWriter(t.Context(), io.Discard, Bytes{Key: counter(b.check)}).Write(make([]byte, size))
	if err != nil || n != size || b.spent != size || b.asked > size/500+10 {
		t.Errorf("%d bytes, %v, %d spent in %d", n, err, b.spent, b.asked)
	}
	b = &bucket{}
	if n, err := NewWriter(t.Context(), io.Discard, Bytes{Key: counter(b.check)}).Write(make([]byte, 9)); !errors.Is(err, limit.ErrNever) || n != 0 {
		t.Errorf("a limit of nothing: %d, %v", n, err)
	}
}

// budget admits so many bytes.
type budget struct {
	left    int64
	amounts []int64
}

func (b *budget) check(_ context.Context, c limit.Check) (limit.Decision, error) {
	b.amounts = append(b.amounts, c.Amount)
	if b.left -= c.Amount; b.left < 0 {
		return limit.Decision{}, limit.ErrForbidden
	}
	return limit.Decision{Allowed: true}, nil
}

// TestReader: every byte is spent, in chunks.
func TestReader(t *testing.T) {
	b := &budget{left: 100}
	r := NewReader(t.Context(), strings.NewReader(strings.Repeat("x", 25)), Bytes{Key: counter(b.check), Chunk: 10})
	got, err := io.ReadAll(r)
	if err != nil || len(got) != 25 || b.left != 75 || len(b.amounts) != 3 {
		t.Errorf("%d bytes, %v, amounts %v", len(got), err, b.amounts)
	}
	b = &budget{left: 15}
	got, err = io.ReadAll(NewReader(t.Context(), strings.NewReader(strings.Repeat("x", 25)), Bytes{Key: counter(b.check), Chunk: 10}))
	if !errors.Is(err, limit.ErrForbidden) || len(got) != 20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestWriter: what is not admitted is not written.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	b := &budget{left: 25}
	n, err := NewWriter(t.Context(), &out, Bytes{Key: counter(b.check), Chunk: 10}).Write(make([]byte, 25))
	if err != nil || n != 25 || out.Len() != 25 {
		t.Errorf("%d, %v", n, err)
	}
	out.Reset()
	b = &budget{left: 15}
	n, err = NewWriter(t.Context(), &out, Bytes{Key: counter(b.check), Chunk: 10}).Write(make([]byte, 25))
	if !errors.Is(err, limit.ErrForbidden) || n != 10 || out.Len() != 10 {
		t.Errorf("%d, %v, %d written", n, err, out.Len())
	}
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
