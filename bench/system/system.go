// Package system builds and starts the compared systems: the bare echo, clusters of sluice and gubernator, and
// envoyproxy/ratelimit with Redis, each node a process on 127.0.0.1. It decides how they are configured and when they
// are ready, and opens load.Targets.
package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bench/process"
	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/internal/load/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// System is running nodes and their Targets. Make it with Binaries.Start, end it with Stop.
type System struct {
	Name      string             // for example "sluice ×3"
	Processes []*process.Process // nodes and stores
	HTTP      []string           // the addresses of sluice's HTTP ports
	Flags     []string           // of each node, beside its name, addresses and rules

	api     string // of unary calls
	config  api.Config
	conns   []*grpc.ClientConn // one to each node, beside the load
	targets map[way]target
}

// target is a load.Target to be closed.
type target interface {
	load.Target
	io.Closer
}

// way is an API and the domain of its checks.
type way struct{ api, domain string }

// The APIs of sluice that Target has beside the unary one.
const (
	Frames   = "frames"   // CheckStream: single checks of all callers in common frames of the Go client; the echo has it too
	SDK      = "sdk"      // the Go client, which chooses the nodes, without a denial cache
	NoLeases = "unleased" // as above, without leases
)

// Nodes is the number of nodes.
func (s *System) Nodes() int { return len(s.config.Addrs) }

// Target sends checks of a domain by an API: unary calls of the system's own if it is empty. Equal arguments return the same
// target. Stop closes it.
func (s *System) Target(api, domain string) (load.Target, error) {
	w := way{api, domain}
	if t := s.targets[w]; t != nil {
		return t, nil
	}
	t, err := s.open(w)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	s.targets[w] = t
	return t, nil
}

// frames sends single checks by the Go client, and batches, which the client makes atomic, by a stream for each caller.
type frames struct {
	target        // by stream
	single target // by the Go client
}

// NewCaller implements load.Target.
func (f *frames) NewCaller(checks int) load.Caller {
	if checks == 1 {
		return f.single.NewCaller(1)
	}
	return f.target.NewCaller(checks)
}

// Close implements io.Closer.
func (f *frames) Close() error { return errors.Join(f.single.Close(), f.target.Close()) }

func (s *System) open(w way) (target, error) {
	c := s.config
	c.Domain = w.domain
	name := cmp.Or(w.api, s.api)
	switch name {
	case Frames:
		streams, err := s.open(way{"stream", w.domain})
		if err != nil {
			return nil, err
		}
		c.ClientOptions = []sluice.Option{sluice.WithDenyCache(0), sluice.WithoutRouting()}
		single, err := openKind(SDK, c)
		return &frames{streams, single}, err
	case SDK:
		c.ClientOptions = []sluice.Option{sluice.WithDenyCache(0)}
	case NoLeases:
		name, c.ClientOptions = SDK, []sluice.Option{sluice.WithDenyCache(0), sluice.WithoutLeases()}
	case RedisRate, Rueidis:
		return openRedis(name, c.Addrs[0], redisBurst)
	case "gubernator":
		// As the rules of the others: a limit that is never reached, or one that denies all but the first check.
		c.Limits = []api.Limit{{Count: 1_000_000_000, Period: time.Hour}}
		if w.domain == "denied" {
			c.Limits[0].Count = 1
		}
	}
	return openKind(name, c)
}

func openKind(name string, c api.Config) (target, error) {
	kind, err := api.Find(name)
	if err != nil {
		return nil, err
	}
	return kind.Open(c, 1)
}

// Stop ends all processes and waits for them.
func (s *System) Stop() {
	// Calls in flight fail with their process, so errors are expected.
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
		if err := s.until(ctx, "all nodes of sluice agree", func(ctx context.Context) error { return agree(ctx, s.conns) }); err != nil {
			return err
		}
	}
	return s.Answers(ctx)
}

// Answers waits until each node decides a check.
func (s *System) Answers(ctx context.Context) error {
	target, err := s.Target("", "allowed")
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

// Restart stops the only node in order, by which it writes a snapshot, and starts it again. It returns when that began and does
// not wait until the node answers.
func (s *System) Restart() (began time.Time, err error) {
	s.Processes[0].StopWithin(slowStop)
	began = time.Now()
	p, err := process.Start(s.Processes[0].Spec)
	if err == nil {
		s.Processes[0] = p
	}
	return began, err
}

// slowStop is how long a node with many counters may take to write a snapshot or to hand its counters over.
const slowStop = 5 * time.Minute

// startTimeout is how long nodes may take until they answer and agree, have restored their snapshot or have handed partitions
// over.
const startTimeout = 5 * time.Minute

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

// Collector receives the traces of nodes and discards them, to measure the cost of sending. Close it.
type Collector struct {
	URL string // for --otlp-endpoint

	server *grpc.Server
	served chan error
	taken  atomic.Int64
}

// NewCollector returns a Collector on this machine.
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

// Taken returns the number of received messages.
func (c *Collector) Taken() int64 { return c.taken.Load() }

// Close ends it.
func (c *Collector) Close() error {
	c.server.Stop()
	return <-c.served
}

// take answers any call with an empty message, which means success.
func (c *Collector) take(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(nil); err != nil {
		return err
	}
	c.taken.Add(1)
	return stream.SendMsg(nil)
}

// unread is a codec that decodes no message and writes empty ones.
type unread struct{}

func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }

func (unread) Name() string { return "unread" }
