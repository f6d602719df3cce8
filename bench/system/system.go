// Package system builds and starts what is compared: the bare echo, clusters of
// sluice and gubernator, and envoyproxy/ratelimit with Redis, each node a process
// of its own on 127.0.0.1. It decides how they are configured and when they are
// ready; what they are asked is others' business.
package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
)

// System is running nodes and the way to ask them. Stop it.
type System struct {
	// Name says what it is, for example "sluice ×3".
	Name string
	// Processes are all that it runs, nodes and stores.
	Processes []*process.Process
	// Target asks the nodes by unary calls.
	Target load.Target
	// HTTP are the addresses of sluice's HTTP ports.
	HTTP  []string
	conns []*grpc.ClientConn
}

// Stream asks the nodes by CheckStream. Only sluice and the echo have it. The
// caller closes it before Stop.
func (s *System) Stream(ctx context.Context) (*wire.Stream, error) {
	return wire.NewStream(ctx, s.conns)
}

// Addrs returns the nodes' gRPC addresses.
func (s *System) Addrs() []string {
	var list []string
	for _, c := range s.conns {
		list = append(list, c.Target())
	}
	return list
}

// Stop ends all processes and waits for them.
func (s *System) Stop() {
	wire.Hangup(s.conns)
	for _, p := range s.Processes {
		p.Stop()
	}
}

// start adds a process.
func (s *System) start(spec process.Spec) error {
	p, err := process.Start(spec)
	if err != nil {
		return err
	}
	s.Processes = append(s.Processes, p)
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

// listens waits until somebody accepts connections at addr.
func (s *System) listens(ctx context.Context, addr string) error {
	return s.until(ctx, "something listens at "+addr, func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// answers waits until every node decides a check.
func (s *System) answers(ctx context.Context) error {
	for node := range s.Target.Nodes() {
		if err := s.until(ctx, fmt.Sprintf("%s answers", s.Name), func(ctx context.Context) error {
			var seen load.Tally
			err := s.Target.NewCaller("allowed", 1).Call(ctx, node, []string{"ready"}, &seen)
			if err == nil && seen.Allowed == 0 {
				err = fmt.Errorf("not allowed: %+v", seen)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
