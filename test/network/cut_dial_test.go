//go:build linux

package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/test/faultnet"
)

// dialOptions connect to the lab's hosts.
func (l *lab) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(l.dial),
	}
}

// dial connects to an address of one of the hosts from that host itself, so that callers
// reach a node whatever it is cut off from.
func (l *lab) dial(ctx context.Context, addr string) (net.Conn, error) {
	target, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	for i, host := range l.hosts {
		if host == target {
			return faultnet.Dial(ctx, l.namespace(i+1), addr)
		}
	}
	return nil, fmt.Errorf("%s: no host of the lab", addr)
}

// ambiguous returns how many checks were sent between nodes and not answered.
func (l *lab) ambiguous() (total int64) {
	l.t.Helper()
	client := http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return l.dial(ctx, addr) }},
	}
	defer client.CloseIdleConnections()
	pattern := regexp.MustCompile(`(?m)^sluice_forward_ambiguous_total (\S+)$`)
	for _, host := range l.hosts {
		r, err := client.Get("http://" + host + ":7461/metrics")
		if err != nil {
			l.t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		found := pattern.FindSubmatch(body)
		if err != nil || found == nil {
			l.t.Fatalf("%s: the metrics do not count ambiguous checks (%v)", host, err)
		}
		count, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			l.t.Fatal(err)
		}
		total += int64(count)
	}
	return total
}
