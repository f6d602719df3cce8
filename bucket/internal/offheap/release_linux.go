package offheap

import "syscall"

// preferHuge says whether b, which is aligned to huge pages, is to have them: a processor finds them faster when counters are used at
// random. Where it is not, the system does not put the memory back that was released in between.
func preferHuge(b []byte, yes bool) {
	advice := syscall.MADV_NOHUGEPAGE
	if yes {
		advice = syscall.MADV_HUGEPAGE
	}
	_ = syscall.Madvise(b, advice) // where the system does not know it, there are none
}

// release gives the memory of b, whole pages, to the operating system. It reads as zeros then.
func release(b []byte) {
	if syscall.Madvise(b, syscall.MADV_DONTNEED) != nil {
		clear(b)
	}
}
