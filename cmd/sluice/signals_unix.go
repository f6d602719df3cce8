//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// notify takes the signals that do not stop a node. Without SIGPIPE, a write to stdout or stderr whose reader has gone is an error
// instead of the end of the process.
func (s *signals) notify() {
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(s.reload, syscall.SIGHUP)
	signal.Notify(s.unused, syscall.SIGUSR1, syscall.SIGUSR2)
}
