package offheap

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// flagsOf returns the flags of the mapping that p is in (proc(5), VmFlags).
func flagsOf(t *testing.T, p unsafe.Pointer) []string {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= uintptr(p) && uintptr(p) < to
		}
		if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return strings.Fields(rest)
		}
	}
	t.Fatal("no mapping has the page")
	return nil
}

// TestHolesStay: a huge page of which a part was released must not become whole again.
func TestHolesStay(t *testing.T) {
	a := New(4096, true)
	var pages []unsafe.Pointer
	for i := range 3 * hugeBytes / 4096 {
		p := a.Get()
		*(*byte)(p) = 1
		if i >= hugeBytes/4096 { // the first huge page is left to small ones
			pages = append(pages, p)
		}
	}
	if f := flagsOf(t, pages[3]); !slices.Contains(f, "hg") {
		t.Skip("this system has no huge pages: ", f)
	}
	a.Put(pages[3])
	a.Put(pages[5])
	if f := flagsOf(t, pages[3]); slices.Contains(f, "hg") || !slices.Contains(f, "nh") {
		t.Errorf("with two free pages it is %q", f)
	}
	if f := flagsOf(t, pages[hugeBytes/4096]); !slices.Contains(f, "hg") {
		t.Errorf("the next huge page is %q", f)
	}
	a.Get()
	if f := flagsOf(t, pages[3]); !slices.Contains(f, "nh") {
		t.Errorf("with one free page it is %q", f)
	}
	a.Get()
	if f := flagsOf(t, pages[3]); !slices.Contains(f, "hg") {
		t.Errorf("without free pages it is %q", f)
	}
	small := New(8192, false)
	if f := flagsOf(t, small.Get()); !slices.Contains(f, "nh") {
		t.Errorf("pages that are to be released in parts are %q", f)
	}
}
