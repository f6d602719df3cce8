package audit_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// cluster is nodes that share one table, so that it keeps every limit unless
// it is told to misbehave. Run it in a synctest bubble: then nothing takes time.
type cluster struct {
	t  *testing.T
	mu struct {
		sync.Mutex
		table *bucket.Table
		keys  map[string]bucket.Key
		nodes map[string]*fakeNode
	}
}

// fakeNode is one of them.
type fakeNode struct {
	sluicev1.UnimplementedRateLimitServiceServer
	cluster *cluster
	name    string
	server  *grpc.Server
	listen  *bufconn.Listener
	served  sync.WaitGroup
	// serve, if set, answers in place of decide.
	serve serve
	// doomed: it crashes in the next call, having decided.
	doomed atomic.Bool
}

// serve answers a call; decide does what a sound node would.
type serve func(ctx context.Context, q *sluicev1.CheckRequest, decide func() *sluicev1.CheckResponse) (*sluicev1.CheckResponse, error)

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t}
	c.mu.table, c.mu.keys, c.mu.nodes = table, make(map[string]bucket.Key), make(map[string]*fakeNode)
	for i := range nodes {
		c.start(fmt.Sprint("n", i+1))
	}
	t.Cleanup(func() {
		for _, n := range c.nodes() {
			n.kill()
		}
	})
	return c
}

func (c *cluster) start(name string) *fakeNode {
	n := &fakeNode{cluster: c, name: name, server: grpc.NewServer(), listen: bufconn.Listen(1 << 20)}
	sluicev1.RegisterRateLimitServiceServer(n.server, n)
	n.served.Go(func() { n.server.Serve(n.listen) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.nodes[name] = n
	return n
}

func (c *cluster) node(name string) *fakeNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.nodes[name]
}

func (c *cluster) nodes() (list []*fakeNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.mu.nodes {
		list = append(list, n)
	}
	return list
}

// crash makes it crash in its next call, so that at least one is lost.
func (n *fakeNode) crash() { n.doomed.Store(true) }

// kill cuts off every connection.
func (n *fakeNode) kill() {
	n.cluster.mu.Lock()
	if n.cluster.mu.nodes[n.name] == n {
		delete(n.cluster.mu.nodes, n.name)
	}
	n.cluster.mu.Unlock()
	n.listen.Close()
	n.server.Stop()
	n.served.Wait()
}

// dial is how an audit reaches the nodes.
func (c *cluster) dial() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		if n := c.node(addr); n != nil {
			return n.listen.DialContext(ctx)
		}
		return nil, fmt.Errorf("no node listens at %s", addr)
	})
}

// addr is the target of the node called name.
func addr(name string) string { return "passthrough:///" + name }

func targets(names ...string) func() []string {
	var list []string
	for _, n := range names {
		list = append(list, addr(n))
	}
	return func() []string { return list }
}

// config audits 20 keys of 10 an hour each, paced so that time goes on.
func (c *cluster) config(names ...string) audit.Config {
	return audit.Config{
		Targets: targets(names...), Callers: 4, Rate: 500, Duration: 2 * time.Second, Seed: 1,
		Specs:       []audit.Spec{{Keys: 20, Limit: bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 10, Period: time.Hour}}},
		DialOptions: []grpc.DialOption{c.dial()},
	}
}

// Nodes lists all nodes.
func (n *fakeNode) Nodes(context.Context, *sluicev1.NodesRequest) (*sluicev1.NodesResponse, error) {
	r := &sluicev1.NodesResponse{Self: n.name}
	for _, other := range n.cluster.nodes() {
		r.Nodes = append(r.Nodes, &sluicev1.Node{Name: other.name, GrpcAddress: addr(other.name)})
	}
	return r, nil
}

// Check decides by the limits that the checks bring.
func (n *fakeNode) Check(ctx context.Context, q *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	decide := func() *sluicev1.CheckResponse {
		r := &sluicev1.CheckResponse{}
		for _, item := range q.Checks {
			r.Decisions = append(r.Decisions, n.cluster.decide(n.name, item))
		}
		return r
	}
	if n.doomed.CompareAndSwap(true, false) {
		decide()
		go n.kill()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if n.serve != nil {
		return n.serve(ctx, q, decide)
	}
	return decide(), nil
}

func (c *cluster) decide(by string, item *sluicev1.Check) *sluicev1.Decision {
	if len(item.Limits) == 0 {
		return &sluicev1.Decision{Allowed: true, Source: sluicev1.Source_SOURCE_UNMATCHED}
	}
	l := item.Limits[0]
	limits, err := bucket.NewLimits(bucket.Limit{
		Algorithm: bucket.Algorithm(l.Algorithm), Align: bucket.Align(l.Align), Count: l.Count, Burst: l.Burst, Period: time.Duration(l.PeriodNs),
	})
	if err != nil {
		return &sluicev1.Decision{Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_INVALID, Field: "limits", Message: err.Error()}}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := item.Descriptor_[0].Value
	key, ok := c.mu.keys[name]
	if !ok {
		key = bucket.Key{Lo: uint64(len(c.mu.keys) + 1)}
		c.mu.keys[name] = key
	}
	d := c.mu.table.Do(time.Now().UnixNano(), &bucket.Request{Key: key, Limits: limits, Cost: 1})
	return &sluicev1.Decision{Allowed: d.Allowed, Source: sluicev1.Source_SOURCE_OWNED, Owner: by}
}
