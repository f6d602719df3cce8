//go:build !unix

package offheap

import (
	"sync"
	"unsafe"
)

// Arena hands out pages of one size, from Go's heap here.
type Arena struct {
	page int
	mu   struct {
		sync.Mutex
		used map[unsafe.Pointer][]byte
	}
}

// New returns an Arena of pages of so many bytes, a power of two from 4096 to 16 MiB.
func New(page int, _ bool) *Arena {
	a := &Arena{page: page}
	a.mu.used = make(map[unsafe.Pointer][]byte)
	return a
}

// Get returns a page of zeros, aligned to its size.
func (a *Arena) Get() unsafe.Pointer {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := make([]byte, 2*a.page)
	p := unsafe.Pointer(unsafe.SliceData(b[-uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(a.page-1):]))
	a.mu.used[p] = b // a page is kept though only its address is known
	return p
}

// Put takes back a page that Get returned, which is not used any more.
func (a *Arena) Put(p unsafe.Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.used, p)
}

// Bytes returns the size of the pages in use that Go's heap does not count: none.
func (a *Arena) Bytes() int64 { return 0 }
