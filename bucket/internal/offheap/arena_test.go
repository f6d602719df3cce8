package offheap

import (
	"runtime"
	"testing"
	"time"
	"unsafe"
)

func TestPagesAreZeroAndApart(t *testing.T) {
	for _, size := range []int{4096, 32 << 10} {
		a := New(size, size == 4096)
		zero := make([]byte, size)
		seen := make(map[unsafe.Pointer]bool)
		var pages []unsafe.Pointer
		for i := range 24 << 20 / size {
			p := a.Get()
			b := unsafe.Slice((*byte)(p), size)
			if seen[p] || string(b) != string(zero) || uintptr(p)%uintptr(size) != 0 {
				t.Fatal("a page is used, not zero or not aligned")
			}
			seen[p] = true
			for j := range b {
				b[j] = byte(i)
			}
			pages = append(pages, p)
		}
		if got := a.Bytes(); runtime.GOOS == "linux" && got != int64(len(pages)*size) {
			t.Errorf("%d bytes in use, want %d", got, len(pages)*size)
		}
		for i, p := range pages {
			if b := unsafe.Slice((*byte)(p), size); b[0] != byte(i) || b[size-1] != byte(i) {
				t.Fatalf("page %d was overwritten", i)
			}
			a.Put(p)
		}
		for range pages {
			p := a.Get()
			if !seen[p] && runtime.GOOS == "linux" || string(unsafe.Slice((*byte)(p), size)) != string(zero) {
				t.Fatal("a page that was put back is not zero, or is not used again")
			}
		}
		runtime.KeepAlive(a)
	}
}

// TestUnmapped: the memory goes with the arena.
func TestUnmapped(t *testing.T) {
	a := New(4096, true)
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
