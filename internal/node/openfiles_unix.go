//go:build unix

package node

import "syscall"

// maxDescriptors returns how many file descriptors this process may open, 0 if that is not known. Go has raised the soft limit to
// the hard one by then, and gives children the soft one back.
func maxDescriptors() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return uint64(l.Cur)
}
