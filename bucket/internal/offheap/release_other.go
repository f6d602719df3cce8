//go:build unix && !linux

package offheap

// preferHuge does nothing: only Linux has the call.
func preferHuge([]byte, bool) {}

// release makes b zeros: only Linux says that memory which is given back reads as zeros.
func release(b []byte) { clear(b) }
