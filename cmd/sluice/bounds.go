package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/listen"
	"github.com/sluice-project/sluice/internal/rawconn"
	"github.com/sluice-project/sluice/limiter"
)

// boundSettings are what a node bears of others. docs/limits.md has the bounds that nobody can set.
type boundSettings struct {
	maxConnections, maxPerAddress int
	// maxOwn is the most connections to the peer and the admin port; 0 means maxConnections.
	maxOwn   int
	maxCalls int
	maxWait  time.Duration
	// maxInlineEntries is limiter.Config.InlineEntries.
	maxInlineEntries int
	memoryLimit      string
}

func (b *boundSettings) register(f *pflag.FlagSet) {
	f.IntVar(&b.maxConnections, "max-connections", 8192, "most connections to each port at once")
	f.IntVar(&b.maxPerAddress, "max-connections-per-address", 1024, "most of them from one IPv4 address or IPv6 network of 64 bits")
	f.IntVar(&b.maxCalls, "max-calls", 16_384, "most calls with checks in progress, each counted as one for each 64 of its checks; what comes on top is refused")
	f.DurationVar(&b.maxWait, "max-wait", 10*time.Millisecond, "how long work may wait for a processor before calls with checks are rejected; 0 for ever")
	f.IntVar(&b.maxInlineEntries, "max-inline-log-entries", limiter.DefaultInlineEntries, "most entries of logs and sub-windows that the limits of one check may keep, of those that come with it")
	f.StringVar(&b.memoryLimit, "memory-limit", "", "most memory for the whole process, for example 256MiB, at least 64MiB; counters have half of it or less (default: half of what the control group may use, without one a quarter of the machine's)")
}

func (b *boundSettings) validate() error {
	var errs []error
	if b.maxConnections < 1 {
		errs = append(errs, fmt.Errorf("--max-connections: %d is below 1", b.maxConnections))
	}
	if b.maxPerAddress < 1 {
		errs = append(errs, fmt.Errorf("--max-connections-per-address: %d is below 1", b.maxPerAddress))
	}
	if b.maxCalls < 1 {
		errs = append(errs, fmt.Errorf("--max-calls: %d is below 1", b.maxCalls))
	}
	if b.maxInlineEntries < 1 || b.maxInlineEntries > bucket.MaxKeyEntries {
		errs = append(errs, fmt.Errorf("--max-inline-log-entries: %d; want 1 to %d", b.maxInlineEntries, bucket.MaxKeyEntries))
	}
	if b.maxWait < 0 {
		errs = append(errs, fmt.Errorf("--max-wait: %v is below 0", b.maxWait))
	}
	return errors.Join(errs...)
}

// silence is how long a connection may take for its first byte.
const silence = 5 * time.Second

// fit lowers the bounds of connections so that clients leave some of the file descriptors that the process may open, 0 if that
// is not known, to other nodes, gossip and files. It reports whether it did.
func (b *boundSettings) fit(descriptors uint64) bool {
	if descriptors == 0 || descriptors > math.MaxInt {
		return false
	}
	own := min(max(int(descriptors)/4, 96), 2048)
	clients := max(16, (int(descriptors)-own)/2) // of the gRPC and of the HTTP port
	if clients >= b.maxConnections {
		return false
	}
	b.maxConnections, b.maxOwn = clients, own/3
	return true
}

// listenWithin opens a port within the bounds, of clients or of the cluster's own connections.
func (b *boundSettings) listenWithin(addr string, own bool) (*listen.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	total := b.maxConnections
	if own && b.maxOwn > 0 {
		total = b.maxOwn
	}
	return listen.New(rawconn.Listener{Listener: l}, listen.Bounds{Total: total, PerAddress: b.maxPerAddress, Silence: silence})
}

// portStats are the counts of the listener of one port.
type portStats struct {
	port string
	listen.Stats
}

// connections are those of all ports.
type connections []portStats

// portLabels are the values of the label port.
var portLabels = []string{"grpc", "http", "peer", "admin"}

func (l listeners) stats() (all connections) {
	for i, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin} {
		if bounded, ok := one.(*listen.Listener); ok {
			all = append(all, portStats{portLabels[i], bounded.Stats()})
		}
	}
	return all
}

func (c connections) open() (list []sample) {
	for _, one := range c {
		list = append(list, sample{labels: []string{one.port}, value: float64(one.Open)})
	}
	return list
}

func (c connections) refused() (list []sample) {
	for _, one := range c {
		for _, r := range []struct {
			reason string
			n      uint64
		}{{"full", one.Full}, {"address", one.Crowded}, {"silent", one.Silent}, {"error", one.Failed}} {
			list = append(list, sample{labels: []string{one.port, r.reason}, value: float64(r.n)})
		}
	}
	return list
}
