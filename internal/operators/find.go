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

// Way leads to a node as its operator.
type Way struct {
	network, address string
	// Token is to be shown on the way, empty for none.
	Token string
}

// Find returns the way to the node on this machine that clients call at the gRPC address addr, if this user is its operator. It
// looks in dir or, if that is empty, in Dirs, as far as they are this user's alone.
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
			token, err := os.ReadFile(p.token())
			if err != nil {
				continue
			}
			admin, err := os.ReadFile(p.admin())
			if err != nil {
				continue
			}
			if at := strings.TrimSpace(string(admin)); answers("tcp", at) {
				return Way{network: "tcp", address: at, Token: strings.TrimSpace(string(token))}, true
			}
		}
	}
	return Way{}, false
}

// namesOf returns the names that the files of a node may have that clients on this machine call at addr: it may listen on all
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
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = fileName(net.JoinHostPort(h, port))
	}
	return names
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

// String is where the way leads.
func (w Way) String() string { return w.address }
