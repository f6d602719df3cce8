package operators

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Way is the address of a node's socket or admin port.
type Way struct {
	network, address string
	Token            string // for the admin port; empty for the socket
}

// Find returns the way to the node on this machine at the gRPC address addr, if this user is its operator. It looks in dir or,
// if that is empty, in those of Dirs that are this user's alone.
func Find(dir, addr string) (w Way, ok bool) {
	dirs := []string{dir}
	if dir == "" {
		dirs = slices.DeleteFunc(Dirs(), func(d string) bool { return private(d) != nil })
	}
	names := namesOf(addr)
	for _, d := range dirs {
		for _, name := range names {
			p := Place{base: filepath.Join(d, name)}
			if answers("unix", p.Socket()) {
				return Way{network: "unix", address: p.Socket()}, true
			}
			token, noToken := os.ReadFile(p.token())
			admin, noAdmin := os.ReadFile(p.admin())
			if at := strings.TrimSpace(string(admin)); noToken == nil && noAdmin == nil && answers("tcp", at) {
				return Way{network: "tcp", address: at, Token: strings.TrimSpace(string(token))}, true
			}
		}
	}
	return Way{}, false
}

// namesOf returns the possible names of the files of a node that clients on this machine call at addr: it may listen on all
// addresses.
func namesOf(addr string) []string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	if ip, err := netip.ParseAddr(hosts[0]); err == nil && isHere(ip.Unmap()) {
		hosts = append(hosts, "0.0.0.0", "::")
	}
	for i, h := range hosts {
		hosts[i] = fileName(net.JoinHostPort(h, port))
	}
	return hosts
}

// isHere reports whether ip is one of this machine's.
func isHere(ip netip.Addr) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == ip
	})
}

// Dial connects.
func (w Way) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, w.network, w.address)
}

// String returns the address.
func (w Way) String() string { return w.address }
