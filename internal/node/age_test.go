package node

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	sluice "github.com/sluicecluster/sluice/client"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestMaxConnectionAge: connections are renewed under load, and no call, stream or slot is lost or done twice.
func TestMaxConnectionAge(t *testing.T) {
	t.Parallel()
	paused := longestPause(t)
	b := startBudgets(t, 2, func(c *Config) { c.GRPCMaxConnectionAge = time.Second })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var charged, renewed atomic.Int64
	var all sync.WaitGroup
	// load repeats f, whose errors are faults unless the test has ended.
	load := func(what string, f func() error) {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	// renews counts the end of a stream, which is an error unless it is of age.
	renews := func(err error) error {
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "--grpc-max-connection-age") {
			return err
		}
		renewed.Add(1)
		return nil
	}

	var clients []*sluice.Client
	for _, n := range b.nodes {
		clients = append(clients, n.ready(t), n.ready(t, sluice.WithoutLeases()))
	}
	for i, c := range clients {
		hot := 0
		load("check", func() error {
			hot++
			d, err := c.Key("llm", "model", fmt.Sprint("many", hot%50)).Check(ctx, 1)
			if err == nil && d.Degraded != nil {
				err = d.Degraded
			}
			return err
		})
		load("charge", func() error {
			if charged.Load() > 90_000 { // of 100,000
				<-ctx.Done()
				return nil
			}
			d, err := c.Key("llm", "model", "exact").Charge(t.Context(), 1)
			if err == nil {
				charged.Add(1)
				err = d.Degraded
			}
			return err
		})
		load("slot", func() error {
			x, err := c.Acquire(ctx, sluice.AcquireRequest{Key: c.Key("llm", "tool", fmt.Sprint(i%2))})
			if err == nil {
				err = x.Context().Err()
				x.Release()
			}
			return err
		})
	}
	load("reservation", func() error {
		x, err := clients[0].Reserve(t.Context(), sluice.ReserveRequest{Keys: b.keys("model=reserved"), Units: 5})
		if err == nil {
			_, err = clients[1].Settle(t.Context(), x.ID, 1)
		}
		return err
	})
	held, err := clients[0].Acquire(t.Context(), sluice.AcquireRequest{Key: clients[0].Key("llm", "tool", "held")})
	if err != nil || !held.Allowed {
		t.Fatalf("%+v %v", held, err)
	}

	// Clients of another language, behind an address that leads each connection to the next node.
	var dialed, moved atomic.Int64
	conn, err := grpc.NewClient("passthrough:///cluster-ip", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			addr := b.nodes[dialed.Add(1)%2].listen.grpc.Addr()
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		}))
	do(t, err)
	t.Cleanup(func() { conn.Close() })
	api, health := sluicev1.NewRateLimitServiceClient(conn), healthv1.NewHealthClient(conn)
	request := checksOf("llm", "model", "plain", 0)
	self := ""
	load("unary", func() error {
		if _, err := api.Check(ctx, request); err != nil {
			return err
		}
		res, err := api.Nodes(ctx, &sluicev1.NodesRequest{})
		if err == nil && res.Self != self {
			self = res.Self
			moved.Add(1)
		}
		return err
	})
	load("stream", func() error {
		stream, err := api.CheckStream(ctx)
		for ; err == nil; _, err = stream.Recv() {
			if err = stream.Send(request); err != nil { // Recv says why
				_, err = stream.Recv()
				break
			}
		}
		return renews(err)
	})
	load("watch", func() error {
		watch, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
		for ; err == nil; _, err = watch.Recv() {
		}
		return renews(err)
	})

	await(t, "renewed three times", func() bool {
		for _, c := range clients {
			if c.Stats().StreamsLost < 6 && !t.Failed() {
				return false
			}
		}
		return renewed.Load() >= 6 && moved.Load() >= 3 || t.Failed()
	})
	if err := held.Context().Err(); err != nil && paused() > slotPause {
		t.Logf("this process got no processor for %v, so that the slot is not judged: %v", paused(), context.Cause(held.Context()))
	} else if err != nil {
		t.Errorf("a slot that was held all the time: %v", context.Cause(held.Context()))
	}
	stop()
	all.Wait()
	b.wants("every charge once", "model=exact", 100_000-charged.Load())
	t.Logf("%d charges, %d streams renewed by plain clients", charged.Load(), renewed.Load())
}
