//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package snapshot

import (
	"errors"
	"os"
	"syscall"
)

// lock locks the file for this process. Closing the file releases the lock, and so does the end of the process.
func lock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrInUse
		default:
			return err
		}
	}
}
