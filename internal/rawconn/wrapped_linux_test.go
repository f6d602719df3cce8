//go:build !race

package rawconn

import "net"

func wrapped(c net.Conn) bool { _, ok := c.(*conn); return ok }
