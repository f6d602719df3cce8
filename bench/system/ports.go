package system

import (
	"fmt"
	"net"
	"sync"
)

const host = "127.0.0.1"

// ports hands out ports below those that systems use for outgoing connections,
// so that nobody takes one before the server that it is for.
var ports = struct {
	sync.Mutex
	next int
}{next: 20_000}

const lastPort = 32_000

// addrs returns n addresses at which nobody listens by TCP or UDP.
func addrs(n int) ([]string, error) {
	ports.Lock()
	defer ports.Unlock()
	var list []string
	for len(list) < n {
		if ports.next > lastPort {
			return nil, fmt.Errorf("no port left up to %d", lastPort)
		}
		a := fmt.Sprintf("%s:%d", host, ports.next)
		ports.next++
		if free(a) {
			list = append(list, a)
		}
	}
	return list, nil
}

func free(addr string) bool {
	t, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer t.Close()
	u, err := net.ListenPacket("udp", addr)
	return err == nil && u.Close() == nil
}
