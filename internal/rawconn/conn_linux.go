//go:build !race

package rawconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// wrap returns c with reads and writes of its own, or c itself if it is no TCP connection.
func wrap(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	return &conn{TCPConn: tcp, in: newHalf(raw.Read, syscall.SYS_READ, "read"), out: newHalf(raw.Write, syscall.SYS_WRITE, "write")}
}

// conn is a TCP connection whose system calls the scheduler does not hear of.
type conn struct {
	*net.TCPConn
	in, out *half
}

func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.in.call(b)
	switch {
	case err != nil:
		return 0, c.in.failed(c.TCPConn, err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *conn) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := c.out.call(b[written:])
		if err != nil {
			return written, c.out.failed(c.TCPConn, err)
		}
		written += n
	}
	return written, nil
}

// half is one direction of a conn.
type half struct {
	name string
	trap uintptr
	wait func(func(fd uintptr) bool) error // runs it whenever the socket is ready, until it returns true
	try  func(fd uintptr) bool

	mu    sync.Mutex
	bytes []byte
	n     int
	errno syscall.Errno
}

func newHalf(wait func(func(fd uintptr) bool) error, trap uintptr, name string) *half {
	h := &half{name: name, trap: trap, wait: wait}
	h.try = h.once
	return h
}

// once makes the system call, and reports whether the socket was ready for it.
func (h *half) once(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(h.trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h.bytes))), uintptr(len(h.bytes)))
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		}
		h.n, h.errno = int(n), errno
		return true
	}
}

func (h *half) call(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes = b
	err := h.wait(h.try)
	h.bytes = nil
	if err != nil {
		return 0, err
	}
	if h.errno != 0 {
		return 0, os.NewSyscallError(h.name, h.errno)
	}
	return h.n, nil
}

// failed is err as the net package would say it.
func (h *half) failed(c *net.TCPConn, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return &net.OpError{Op: h.name, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
