//go:build unix

package bucket

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena hands out pages of memory that the garbage collector knows nothing of: it neither scans them nor counts them, and so does
// not let as much garbage gather as they take. Pages come in chunks, and the memory of those given back goes to the
// operating system. It is safe for concurrent use.
type arena struct {
	mu struct {
		sync.Mutex
		free []*page
		rest []byte // of the last chunk
	}
	chunks *chunks
}

// chunks are the mappings of an arena, unmapped when nobody has the arena any more.
type chunks struct{ list [][]byte }

const chunkBytes = 256 * pageBytes

func newArena() *arena {
	a := &arena{chunks: new(chunks)}
	runtime.AddCleanup(a, func(c *chunks) {
		for _, b := range c.list {
			_ = unix.Munmap(b) // as it was mapped, so it cannot fail
		}
	}, a.chunks)
	return a
}

// get returns a page of zeros.
func (a *arena) get() *page {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.mu.free); n > 0 {
		p := a.mu.free[n-1]
		a.mu.free = a.mu.free[:n-1]
		return p
	}
	if len(a.mu.rest) == 0 {
		b, err := unix.Mmap(-1, 0, chunkBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			panic("bucket: no memory for counters: " + err.Error()) // as Go does where its own heap cannot grow
		}
		a.chunks.list = append(a.chunks.list, b)
		a.mu.rest = b
	}
	p := (*page)(unsafe.Pointer(unsafe.SliceData(a.mu.rest)))
	a.mu.rest = a.mu.rest[pageBytes:]
	return p
}

// put takes p back.
func (a *arena) put(p *page) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(p)), pageBytes)
	release(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.free = append(a.mu.free, p)
}
