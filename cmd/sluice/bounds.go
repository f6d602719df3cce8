package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/internal/listen"
	"github.com/sluice-project/sluice/internal/rawconn"
)

// boundSettings are what a node bears of others. docs/limits.md has the bounds that nobody can set.
type boundSettings struct {
	maxConnections, maxPerAddress int
	maxCalls                      int
	maxWait                       time.Duration
	memoryLimit                   string
}

func (b *boundSettings) register(f *pflag.FlagSet) {
	f.IntVar(&b.maxConnections, "max-connections", 8192, "most connections to each port at once")
	f.IntVar(&b.maxPerAddress, "max-connections-per-address", 1024, "most of them from one IPv4 address or IPv6 network of 64 bits")
	f.IntVar(&b.maxCalls, "max-calls", 16_384, "most calls with checks in progress; what comes on top is refused")
	f.DurationVar(&b.maxWait, "max-wait", 20*time.Millisecond, "how long work may wait for a processor before calls with checks are rejected; 0 for ever")
	f.StringVar(&b.memoryLimit, "memory-limit", "0", "most memory for the whole process, for example 256MiB; 0 for no bound")
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
	if b.maxWait < 0 {
		errs = append(errs, fmt.Errorf("--max-wait: %v is below 0", b.maxWait))
	}
	return errors.Join(errs...)
}

// silence is how long a connection may take for its first byte.
const silence = 5 * time.Second

// listenWithin opens a port within the bounds.
func (b *boundSettings) listenWithin(addr string) (*listen.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return listen.New(rawconn.Listener{Listener: l}, listen.Bounds{Total: b.maxConnections, PerAddress: b.maxPerAddress, Silence: silence})
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
		}{{"full", one.Full}, {"address", one.Crowded}, {"silent", one.Silent}} {
			list = append(list, sample{labels: []string{one.port, r.reason}, value: float64(r.n)})
		}
	}
	return list
}
