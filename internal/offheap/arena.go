//go:build unix

// Package offheap hands out pages of memory outside Go's heap. The garbage collector neither scans them nor counts them, so it does
// not let as much garbage gather as they take. They must not have pointers into Go's heap.
package offheap

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// PageBytes is the size of a page.
const PageBytes = 4096

// Page is a page of memory, aligned to its size.
type Page [PageBytes]byte

// chunkBytes is how much memory is mapped at once.
const chunkBytes = 256 * PageBytes

// Arena hands out pages. Their memory is unmapped when the Arena is not reachable any more, so what has pages must keep it. The
// memory of pages that are put back goes to the operating system. Safe for concurrent use.
type Arena struct {
	chunks *chunks
	mu     struct {
		sync.Mutex
		free []*Page
		rest []byte // of the last chunk
	}
}

type chunks struct{ list [][]byte }

// New returns an Arena without pages.
func New() *Arena {
	a := &Arena{chunks: new(chunks)}
	runtime.AddCleanup(a, func(c *chunks) {
		for _, b := range c.list {
			_ = syscall.Munmap(b) // as it was mapped, so it cannot fail
		}
	}, a.chunks)
	return a
}

// Get returns a page of zeros. It panics if there is no memory, as the Go runtime does.
func (a *Arena) Get() *Page {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.mu.free); n > 0 {
		p := a.mu.free[n-1]
		a.mu.free = a.mu.free[:n-1]
		return p
	}
	if len(a.mu.rest) == 0 {
		b, err := syscall.Mmap(-1, 0, chunkBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			panic("offheap: out of memory: " + err.Error())
		}
		a.chunks.list = append(a.chunks.list, b)
		a.mu.rest = b
	}
	p := (*Page)(unsafe.Pointer(unsafe.SliceData(a.mu.rest)))
	a.mu.rest = a.mu.rest[PageBytes:]
	return p
}

// Put takes back a page that Get returned, which is not used any more.
func (a *Arena) Put(p *Page) {
	release(p[:])
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.free = append(a.mu.free, p)
}
