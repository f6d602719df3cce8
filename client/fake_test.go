package sluice

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/client/internal/config"
	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// network connects clients and nodes in memory, so that they run in a testing/synctest bubble.
// The zero network is ready to use.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

// listen listens on addr; "" is an address that was not listened on.
func (n *network) listen(addr string) (*bufconn.Listener, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*bufconn.Listener{}
	}
	if addr == "" {
		addr = fmt.Sprintf("10.0.0.%d:7460", len(n.listeners)+1)
	}
	n.listeners[addr] = bufconn.Listen(256 << 10)
	return n.listeners[addr], addr
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.DialContext(ctx)
}

// option has a Client dial n.
func (n *network) option(o *config.Options) error {
	o.Dial = append(o.Dial, grpc.WithContextDialer(n.dial))
	return nil
}

// fakeNode is a node that answers as a test says, over a connection in memory.
type fakeNode struct {
	sluicev1.UnimplementedRateLimitServiceServer
	name, addr string
	listed     string // the address that members tell, if it is another
	server     *grpc.Server
	cluster    *fakeCluster
	leaving    chan struct{}
	asked      atomic.Int64
	frames     atomic.Int64
	stopped    atomic.Pointer[chan struct{}] // answers nothing until it is closed
}

// fakeCluster is nodes that agree on who holds what.
type fakeCluster struct {
	t     testing.TB
	net   network
	nodes []*fakeNode
	mu    sync.Mutex
	// decide answers a check that node was asked; nil admits. hold is called before a frame is answered.
	decide func(node *fakeNode, c *sluicev1.Check) *sluicev1.Decision
	hold   func(node *fakeNode, r *sluicev1.CheckRequest)
	resets int
	// checkTimeout is what nodes tell.
	checkTimeout time.Duration
	ledger       ledger
	slots        slotBook
}

func newCluster(t testing.TB, names ...string) *fakeCluster {
	c := &fakeCluster{t: t}
	for _, name := range names {
		c.add(name)
	}
	return c
}

// inBubble tells a story of a cluster of the nodes in names, in the time of a bubble.
func inBubble(t *testing.T, names string, story func(t *testing.T, f *fakeCluster)) {
	synctest.Test(t, func(t *testing.T) { story(t, newCluster(t, strings.Fields(names)...)) })
}

func (f *fakeCluster) add(name string) *fakeNode {
	f.t.Helper()
	n := &fakeNode{name: name, cluster: f, leaving: make(chan struct{})}
	f.serve(n)
	f.mu.Lock()
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	return n
}

// serve starts n, at the address that it had if it was stopped.
func (f *fakeCluster) serve(n *fakeNode) {
	l, addr := f.net.listen(n.addr)
	n.addr = addr
	n.server = grpc.NewServer(grpc.WaitForHandlers(true))
	sluicev1.RegisterRateLimitServiceServer(n.server, n)
	go n.server.Serve(l)
	f.t.Cleanup(n.server.Stop)
}

// remove takes n out of the members.
func (f *fakeCluster) remove(n *fakeNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.nodes {
		if f.nodes[i] == n {
			f.nodes = append(f.nodes[:i:i], f.nodes[i+1:]...)
			return
		}
	}
}

// set changes how checks are decided.
func (f *fakeCluster) set(decide func(node *fakeNode, c *sluicev1.Check) *sluicev1.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

func (f *fakeCluster) dial(opts ...Option) *Client {
	f.t.Helper()
	c, err := New(f.nodes[0].addr, append([]Option{f.net.option}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	if err := c.Ready(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	// Ready leaves nodes behind that a busy machine is slow to reach.
	waitFor(f.t, "all nodes to be reached", func() bool {
		for _, n := range f.nodes {
			if n.listed == "" && !c.opts.NoRouting && streamOf(c, n) == nil {
				return false
			}
		}
		return true
	})
	return c
}

// known asks until a node answers, so that c knows the counter: short timeouts are for what comes then.
func (f *fakeCluster) known(c *Client) {
	f.t.Helper()
	waitFor(f.t, "a node to answer", func() bool {
		d, err := c.Check(f.t.Context(), user)
		if err != nil {
			f.t.Fatal(err)
		}
		return d.Source == limit.SourceOwned
	})
}

// stop makes n answer nothing until the test ends, as a stopped process does.
func (f *fakeCluster) stop(n *fakeNode) {
	c := make(chan struct{})
	n.stopped.Store(&c)
	f.t.Cleanup(func() { close(c) })
}

func (n *fakeNode) answer(req *sluicev1.CheckRequest) *sluicev1.CheckResponse {
	if c := n.stopped.Load(); c != nil {
		<-*c
	}
	if len(req.Checks) == 0 {
		return &sluicev1.CheckResponse{Id: req.Id, Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_INVALID, Field: "checks"}}
	}
	n.cluster.mu.Lock()
	decide, hold := n.cluster.decide, n.cluster.hold
	n.cluster.mu.Unlock()
	if hold != nil {
		hold(n, req)
	}
	n.frames.Add(1)
	res := &sluicev1.CheckResponse{Id: req.Id}
	for _, c := range req.Checks {
		n.asked.Add(1)
		if c.Verb == sluicev1.Verb_VERB_RESET {
			n.cluster.mu.Lock()
			n.cluster.resets++
			n.cluster.mu.Unlock()
		}
		d := &sluicev1.Decision{Allowed: true, Limit: new(int64(10)), Remaining: new(int64(9)), PeriodNs: int64(time.Minute), Source: sluicev1.Source_SOURCE_OWNED, Owner: n.name}
		if decide != nil {
			d = decide(n, c)
		}
		res.Decisions = append(res.Decisions, d)
	}
	return res
}

func (n *fakeNode) Check(_ context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	return n.answer(req), nil
}

func (n *fakeNode) CheckStream(s grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var sending sync.Mutex
	requests := make(chan *sluicev1.CheckRequest)
	go func() {
		defer close(requests)
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			wg.Go(func() {
				a := n.answer(r)
				sending.Lock()
				defer sending.Unlock()
				s.Send(a)
			})
		case <-n.leaving:
			wg.Wait()
			st, _ := status.New(codes.Unavailable, "leaving").WithDetails(&sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE})
			return st.Err()
		}
	}
}

func (n *fakeNode) Nodes(context.Context, *sluicev1.NodesRequest) (*sluicev1.NodesResponse, error) {
	if c := n.stopped.Load(); c != nil {
		<-*c
	}
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	res := &sluicev1.NodesResponse{Self: n.name, CheckTimeoutNs: int64(n.cluster.checkTimeout)}
	for _, m := range n.cluster.nodes {
		res.Nodes = append(res.Nodes, &sluicev1.Node{Name: m.name, GrpcAddress: cmp.Or(m.listed, m.addr)})
	}
	return res, nil
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
