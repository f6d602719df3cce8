package offheap

import "syscall"

// preferHuge asks for huge pages, which a processor finds faster when counters are used at random.
func preferHuge(b []byte) {
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // without them it is only slower
}

// release gives the memory of b, whole pages, to the operating system. It reads as zeros then.
func release(b []byte) {
	if syscall.Madvise(b, syscall.MADV_DONTNEED) != nil {
		clear(b)
	}
}
