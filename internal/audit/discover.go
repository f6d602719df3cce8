package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Discovery keeps a list of the nodes that serve, as one of them sees the cluster.
// It must be created with Discover and closed with Close.
type Discovery struct {
	targets atomic.Pointer[[]string]
	wake    chan struct{}
	stop    context.CancelFunc
	running sync.WaitGroup

	// Of the goroutine only.
	first   []string // as given
	options []grpc.DialOption
	// source is the node that answered last, asked first.
	source string
}

// How often the list is refreshed: regularly; at most, when nodes fail; and how
// long one node may take to tell it.
const (
	refreshEvery   = time.Second
	refreshAtMost  = 100 * time.Millisecond
	refreshTimeout = time.Second
)

// Discover asks the first of addrs that answers who serves, and goes on to do so every second
// and whenever a node fails. It asks another node when that one does not answer. The error wraps ErrNobody when none of
// addrs answers within the time.
func Discover(ctx context.Context, addrs []string, within time.Duration, options ...grpc.DialOption) (*Discovery, error) {
	if len(addrs) == 0 {
		return nil, errors.New("discover: there is no address to ask")
	}
	d := &Discovery{
		wake: make(chan struct{}, 1), first: slices.Clone(addrs), options: dialOptions(options), source: addrs[0],
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := d.refresh(limited)
		if err == nil {
			break
		}
		if !rest(limited, refreshAtMost) {
			return nil, fmt.Errorf("%w: %w", ErrNobody, err)
		}
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.running.Go(func() { d.loop(running) })
	return d, nil
}

// Targets returns the gRPC addresses of the nodes that serve.
func (d *Discovery) Targets() []string { return *d.targets.Load() }

// Failed asks for a refresh.
func (d *Discovery) Failed(string) {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Close ends the refreshing.
func (d *Discovery) Close() {
	d.stop()
	d.running.Wait()
}

func (d *Discovery) loop(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.wake:
		}
		// When nobody answers, the list stays: the callers go on to try.
		d.refresh(ctx)
		if !rest(ctx, refreshAtMost) {
			return
		}
	}
}

// refresh asks the node that answered last, then the others that are known, then
// those given at first.
func (d *Discovery) refresh(ctx context.Context) error {
	known := []string{d.source}
	if t := d.targets.Load(); t != nil {
		known = append(known, *t...)
	}
	known = append(known, d.first...)
	var errs []error
	for i, addr := range known {
		if slices.Contains(known[:i], addr) {
			continue
		}
		serving, err := d.ask(ctx, addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", addr, err))
			continue
		}
		d.source = addr
		d.targets.Store(&serving)
		return nil
	}
	return errors.Join(errs...)
}

// ask returns the members that serve, as addr sees them. It is called once a second or so, so each call has a connection of its own.
func (d *Discovery) ask(ctx context.Context, addr string) ([]string, error) {
	conn, err := grpc.NewClient(addr, d.options...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	response, err := sluicev1.NewSluiceServiceClient(conn).Members(ctx, &sluicev1.MembersRequest{})
	if err != nil {
		return nil, err
	}
	var serving []string
	for _, m := range response.Members {
		if m.State == "serving" && m.GrpcAddress != "" {
			serving = append(serving, m.GrpcAddress)
		}
	}
	if len(serving) == 0 {
		return nil, fmt.Errorf("none of its %d members serves", len(response.Members))
	}
	return serving, nil
}
