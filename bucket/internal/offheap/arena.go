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

// Arena hands out pages of one size. Their memory is unmapped when the Arena is not reachable any more, so what has pages must keep
// it. The memory of pages that are put back goes to the operating system. Safe for concurrent use.
type Arena struct {
	page   int
	huge   bool
	chunks *chunks
	mu     struct {
		sync.Mutex
		free []unsafe.Pointer
		rest []byte // of the last chunk
		used int
		// holes is how many pages are free in each huge page that has a free one. The system must not make it whole again.
		holes map[uintptr]int
	}
}

type chunks struct{ list [][]byte }

const (
	// chunkBytes is how much memory is mapped at once. It is used from its beginning on, so the rest takes none.
	chunkBytes = 16 << 20
	hugeBytes  = 2 << 20 // of a huge page, which chunks are aligned to
)

// New returns an Arena of pages of so many bytes, a power of two from 4096 to 16 MiB. With huge it uses the operating system's huge
// pages, so beyond the first 2 MiB it takes memory in steps of as much.
func New(page int, huge bool) *Arena {
	a := &Arena{page: page, huge: huge, chunks: new(chunks)}
	a.mu.holes = make(map[uintptr]int)
	runtime.AddCleanup(a, func(c *chunks) {
		for _, b := range c.list {
			_ = syscall.Munmap(b) // as it was mapped, so it cannot fail
		}
	}, a.chunks)
	return a
}

// Get returns a page of zeros, aligned to its size, at most 2 MiB. Without memory the process ends, as the Go runtime does.
func (a *Arena) Get() unsafe.Pointer {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.used++
	if n := len(a.mu.free); n > 0 {
		p := a.mu.free[n-1]
		a.mu.free = a.mu.free[:n-1]
		if around := hugePage(p); a.huge {
			if a.mu.holes[addr(around)]--; a.mu.holes[addr(around)] == 0 {
				delete(a.mu.holes, addr(around))
				preferHuge(around, true)
			}
		}
		return p
	}
	if len(a.mu.rest) < a.page {
		b, err := syscall.Mmap(-1, 0, chunkBytes+hugeBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			go func() { panic("offheap: out of memory: " + err.Error()) }() // nobody can recover from it, and leave locks behind
			select {}
		}
		a.chunks.list = append(a.chunks.list, b)
		a.mu.rest = b[-addr(b)&(hugeBytes-1):][:chunkBytes]
		if preferHuge(a.mu.rest, a.huge); len(a.chunks.list) == 1 {
			preferHuge(a.mu.rest[:hugeBytes], false) // so that few pages take little
		}
	}
	p := unsafe.Pointer(unsafe.SliceData(a.mu.rest))
	a.mu.rest = a.mu.rest[a.page:]
	return p
}

// Put takes back a page that Get returned, which is not used any more.
func (a *Arena) Put(p unsafe.Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if around := hugePage(p); a.huge {
		if a.mu.holes[addr(around)]++; a.mu.holes[addr(around)] == 1 {
			preferHuge(around, false)
		}
	}
	release(unsafe.Slice((*byte)(p), a.page))
	a.mu.used--
	a.mu.free = append(a.mu.free, p)
}

// hugePage returns the memory of the huge page around p.
func hugePage(p unsafe.Pointer) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(p, -int(uintptr(p)&(hugeBytes-1)))), hugeBytes)
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Bytes returns the size of the pages in use.
func (a *Arena) Bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(a.mu.used) * int64(a.page)
}
