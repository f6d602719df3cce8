package offheap

import (
	"runtime"
	"testing"
	"time"
	"unsafe"
)

func TestPagesAreZeroAndApart(t *testing.T) {
	a := New()
	seen := make(map[*Page]bool)
	var pages []*Page
	for range 3 * 256 {
		p := a.Get()
		if seen[p] || *p != (Page{}) || uintptr(unsafe.Pointer(p))%8 != 0 {
			t.Fatal("a page is used, not zero or not aligned")
		}
		seen[p] = true
		for i := range p {
			p[i] = byte(len(pages))
		}
		pages = append(pages, p)
	}
	for i, p := range pages {
		if p[0] != byte(i) || p[PageBytes-1] != byte(i) {
			t.Fatalf("page %d was overwritten", i)
		}
		a.Put(p)
	}
	for range pages {
		if p := a.Get(); !seen[p] && runtime.GOOS == "linux" || *p != (Page{}) {
			t.Fatal("a page that was put back is not zero, or is not used again")
		}
	}
	runtime.KeepAlive(a)
}

// TestUnmapped: the memory goes with the arena.
func TestUnmapped(t *testing.T) {
	a := New()
	a.Get()
	done := make(chan struct{})
	runtime.AddCleanup(a, func(done chan struct{}) { close(done) }, done)
	a = nil
	for {
		runtime.GC()
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}
