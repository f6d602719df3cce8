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

	"google.golang.org/grpc/mem"
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

// maxWrite bounds one system call, for which a processor is nobody else's. gRPC writes half of it at once.
const maxWrite = 64 << 10

func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return c.TCPConn.Read(b)
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	n, err := c.in.callLocked(b)
	return n, c.readError(n, err)
}

// ReadOnReady is Read into a buffer of that size, which it takes from pool once there is something to read. gRPC looks for it, so that
// idle connections have none.
func (c *conn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pool, h.size = pool, size
	n, err := h.callLocked(nil)
	b := h.lent
	h.pool, h.lent = nil, nil
	if err = c.readError(n, err); err != nil && b != nil {
		pool.Put(b)
		b = nil
	}
	return b, n, err
}

// readError is what a Read returns that got n bytes, or err.
func (c *conn) readError(n int, err error) error {
	switch {
	case err != nil:
		return c.in.failed(c.TCPConn, err)
	case n == 0:
		return io.EOF
	}
	return nil
}

func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return c.TCPConn.Write(b)
	}
	c.out.mu.Lock() // to the end, so that what others write comes before or after it
	defer c.out.mu.Unlock()
	written := 0
	for written < len(b) {
		n, err := c.out.callLocked(b[written:min(len(b), written+maxWrite)])
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
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

	mu sync.Mutex
	// Of the call under way: its bytes, or where they come from, and what has become of it.
	bytes []byte
	pool  mem.BufferPool
	size  int
	lent  *[]byte
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
	if h.pool != nil {
		h.lent = h.pool.Get(h.size)
		h.bytes = *h.lent
	}
	for {
		n, _, errno := syscall.RawSyscall(h.trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h.bytes))), uintptr(len(h.bytes)))
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			if h.pool != nil {
				h.pool.Put(h.lent)
				h.lent = nil
			}
			return false
		}
		h.n, h.errno = int(n), errno
		return true
	}
}

func (h *half) callLocked(b []byte) (int, error) {
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
