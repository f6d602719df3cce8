package rawconn

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets the options of a new socket.
func (d Dialer) control(_, _ string, c syscall.RawConn) (err error) {
	if d.Unacknowledged == 0 {
		return nil
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Unacknowledged.Milliseconds()))
	})
	if failed != nil {
		return failed
	}
	return os.NewSyscallError("setsockopt", err)
}
