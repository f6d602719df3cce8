//go:build !linux

package rawconn

import "syscall"

func (Dialer) control(_, _ string, _ syscall.RawConn) error { return nil }
