package rawconn

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnacknowledged: the option is the socket's.
func TestUnacknowledged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, want := range []time.Duration{0, 3 * time.Second} {
		c, err := Dialer{Unacknowledged: want}.Dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); failed != nil || err != nil {
			t.Fatal(failed, err)
		}
		if time.Duration(got)*time.Millisecond != want {
			t.Errorf("%d ms, want %v", got, want)
		}
		c.Close()
	}
}
