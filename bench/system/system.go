// Package system builds and starts what is compared: the bare echo, clusters of
// sluice and gubernator, and envoyproxy/ratelimit with Redis, each node a process
// of its own on 127.0.0.1. It decides how they are configured and when they are
// ready, and opens the ways to ask them; what they are asked is left to its callers.
package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/stream"
	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/load"
	"github.com/sluice-project/sluice/internal/load/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// System is running nodes and the ways to ask them. Make it with Binaries.Start, end it with Stop.
type System struct {
	// Name says what it is, for example "sluice ×3".
	Name string
	// Processes are all that it runs, nodes and stores.
	Processes []*process.Process
	// HTTP are the addresses of sluice's HTTP ports.
	HTTP []string

	// api is the API of Target's calls, config how it is opened.
	api    string
	config api.Config
	// conns are for what is no load, one to each node.
	conns   []*grpc.ClientConn
	targets map[way]target
}

// target is a load.Target to be closed.
type target interface {
	load.Target
	io.Closer
}

// way is an API and the domain that it is asked about.
type way struct{ api, domain string }

// The APIs of sluice that Target has beside the unary one.
const (
	// Frames: the checks of all callers gather in frames, see package stream. The echo has it too.
	Frames = "frames"
	// SDK: the Go client, which chooses the nodes by itself and remembers no denials: each check is to be asked.
	SDK = "sdk"
)

// Nodes is how many nodes can be asked.
func (s *System) Nodes() int { return len(s.config.Addrs) }

// Target asks the nodes about checks of a domain by an API: unary calls of the system's own if it is empty. Equal calls return the same target.
// Stop closes it.
func (s *System) Target(ctx context.Context, api, domain string) (load.Target, error) {
	w := way{api, domain}
	if t := s.targets[w]; t != nil {
		return t, nil
	}
	t, err := s.open(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	s.targets[w] = t
	return t, nil
}

func (s *System) open(ctx context.Context, w way) (target, error) {
	if w.api == Frames {
		return stream.New(ctx, s.conns, w.domain)
	}
	if w.api == "" {
		w.api = s.api
	}
	kind, err := api.Find(w.api)
	if err != nil {
		return nil, err
	}
	c := s.config
	c.Domain = w.domain
	switch w.api {
	case SDK:
		c.ClientOptions = []client.Option{client.WithDenyCache(0)}
	case "gubernator":
		// As the rules of the others: a limit that is not reached, or one that denies all but the first check.
		c.Limits = []api.Limit{{Count: 1_000_000_000, Period: 365 * 24 * time.Hour}}
		if w.domain == "denied" {
			c.Limits[0].Count = 1
		}
	}
	return kind.Open(c, 1)
}

// Stop ends all processes and waits for them.
func (s *System) Stop() {
	// What is under way fails with its process, so an error says nothing new.
	for _, t := range s.targets {
		_ = t.Close()
	}
	for _, c := range s.conns {
		_ = c.Close()
	}
	for _, p := range s.Processes {
		p.Stop()
	}
}

// start adds a process.
func (s *System) start(spec process.Spec) error {
	p, err := process.Start(spec)
	if err == nil {
		s.Processes = append(s.Processes, p)
	}
	return err
}

// ready connects to the nodes and waits until each decides a check.
func (s *System) ready(ctx context.Context) error {
	for _, addr := range s.config.Addrs {
		if err := s.listens(ctx, addr); err != nil {
			return err
		}
		conn, err := s.config.Dial(addr)
		if err != nil {
			return err
		}
		s.conns = append(s.conns, conn)
	}
	if len(s.HTTP) > 0 {
		if err := s.until(ctx, "all nodes of sluice agree", s.agree); err != nil {
			return err
		}
	}
	target, err := s.Target(ctx, "", "allowed")
	if err != nil {
		return err
	}
	for node := range s.Nodes() {
		if err := s.until(ctx, s.Name+" answers", func(ctx context.Context) error {
			var seen load.Counts
			err := target.NewCaller(1).Call(ctx, node, []string{"ready"}, &seen)
			if err == nil && seen.Decided().Allowed == 0 {
				err = fmt.Errorf("not allowed: %+v", seen)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// startTimeout is how long nodes may take until they answer and agree.
const startTimeout = 30 * time.Second

// until calls try every 20 ms until it succeeds, a process of s has ended or
// startTimeout has passed.
func (s *System) until(ctx context.Context, what string, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		for _, p := range s.Processes {
			select {
			case <-p.Ended():
				return fmt.Errorf("%s has ended while waiting until %s; its last lines: %q", p.Name, what, p.Tail())
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listens waits until a process accepts connections at addr.
func (s *System) listens(ctx context.Context, addr string) error {
	return s.until(ctx, "a process listens at "+addr, func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Collector takes what nodes send of their traces, and does nothing with it: it is there so that
// sending costs them what it costs. Close it.
type Collector struct {
	// URL is what --otlp-endpoint is to be.
	URL string

	server *grpc.Server
	served chan error
	taken  atomic.Int64
}

// NewCollector returns one on this machine.
func NewCollector() (*Collector, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	c := &Collector{URL: "http://" + l.Addr().String(), served: make(chan error, 1)}
	c.server = grpc.NewServer(grpc.ForceServerCodecV2(unread{}), grpc.UnknownServiceHandler(c.take))
	go func() { c.served <- c.server.Serve(l) }()
	return c, nil
}

// Taken returns how many messages have come.
func (c *Collector) Taken() int64 { return c.taken.Load() }

// Close ends it.
func (c *Collector) Close() error {
	c.server.Stop()
	return <-c.served
}

// take answers any call by an empty message, which means that all was taken.
func (c *Collector) take(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(nil); err != nil {
		return err
	}
	c.taken.Add(1)
	return stream.SendMsg(nil)
}

// unread is a codec that looks into no message and writes empty ones.
type unread struct{}

var _ encoding.CodecV2 = unread{}

func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }

func (unread) Name() string { return "unread" }
