package memnet

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const a, b = "10.0.0.1:1", "10.0.0.2:1"

func pair(t *testing.T, n *Network) (*Transport, *Transport) {
	t.Helper()
	ta, err := n.Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := n.Listen(b)
	if err != nil {
		t.Fatal(err)
	}
	return ta, tb
}

// arrived returns the text of the packet that waits, or "".
func arrived(t *Transport) string {
	select {
	case p := <-t.PacketCh():
		return p.From.String() + " " + string(p.Buf)
	default:
		return ""
	}
}

func TestListen(t *testing.T) {
	var n Network
	ta, _ := pair(t, &n)
	if _, err := n.Listen(a); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second listener: %v", err)
	}
	if _, err := n.Listen("nowhere"); err == nil {
		t.Error("a name is taken for an address")
	}
	if ip, port, err := ta.FinalAdvertiseAddr("", 0); err != nil || ip.String() != "10.0.0.1" || port != 1 {
		t.Errorf("FinalAdvertiseAddr = %v, %d, %v", ip, port, err)
	}
	ta.Crash()
	if _, err := n.Listen(a); err != nil {
		t.Errorf("after a crash: %v", err)
	}
}

func TestPackets(t *testing.T) {
	var n Network
	ta, tb := pair(t, &n)
	n.Alias("10.9.9.9:1", b)
	send := func(text, to string) string {
		buf := []byte(text)
		if _, err := ta.WriteTo(buf, to); err != nil {
			t.Fatal(err)
		}
		clear(buf) // the receiver has its own copy
		return arrived(tb)
	}
	if got := send("one", b); got != a+" one" {
		t.Errorf("got %q", got)
	}
	if got := send("two", "10.9.9.9:1"); got != a+" two" {
		t.Errorf("through an alias: %q", got)
	}
	if got := send("three", "10.0.0.3:1"); got != "" {
		t.Errorf("to nobody: %q", got)
	}
	from := netip.MustParseAddrPort(a)
	n.Cut(func(f, _ netip.AddrPort) bool { return f == from })
	if got := send("four", b); got != "" {
		t.Errorf("across a cut: %q", got)
	}
	if _, err := tb.WriteTo([]byte("back"), a); err != nil || arrived(ta) != b+" back" {
		t.Errorf("the open direction: %v", err)
	}
	n.Isolate(a, b)
	if got := send("five", b); got != a+" five" {
		t.Errorf("inside an island: %q", got)
	}
	n.Isolate(b)
	if got := send("six", b); got != "" {
		t.Errorf("to an island: %q", got)
	}
	n.Cut(nil)
	for range 2 * queue {
		if _, err := ta.WriteTo([]byte("more"), b); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(tb.packets); got != queue {
		t.Errorf("%d packets wait, want %d", got, queue)
	}
	ta.Crash()
	if _, err := ta.WriteTo([]byte("x"), b); !errors.Is(err, ErrClosed) {
		t.Errorf("after a crash: %v", err)
	}
}

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		ta, tb := pair(t, &n)
		here, err := ta.DialTimeout(b, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		there := <-tb.StreamCh()
		go func() {
			_, _ = here.Write([]byte("hello"))
			_ = here.Close()
		}()
		if got, err := io.ReadAll(there); err != nil || string(got) != "hello" {
			t.Errorf("got %q, %v", got, err)
		}

		if _, err := ta.DialTimeout("10.0.0.3:1", time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("to nobody: %v", err)
		}
		for _, cut := range []func(f, to netip.AddrPort) bool{
			func(f, _ netip.AddrPort) bool { return f.String() == a },
			func(f, _ netip.AddrPort) bool { return f.String() == b },
		} {
			n.Cut(cut)
			start := time.Now()
			_, err := ta.DialTimeout(b, 3*time.Second)
			var timeout interface{ Timeout() bool }
			if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(start) != 3*time.Second {
				t.Errorf("across a cut: %v after %v", err, time.Since(start))
			}
		}
		go func() {
			time.Sleep(time.Second)
			ta.Crash()
		}()
		if _, err := ta.DialTimeout(b, time.Hour); !errors.Is(err, ErrClosed) {
			t.Errorf("a dial that its own crash ends: %v", err)
		}
	})
}
