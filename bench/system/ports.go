package system

import (
	"errors"
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
			return nil, errors.New("no port left between 20000 and 32000")
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
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return t.Close() != nil
	}
	return errors.Join(t.Close(), u.Close()) == nil
}
