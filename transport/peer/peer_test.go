package peer

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// handlerFunc lets a function be a check.Handler.
type handlerFunc func(from string, records []check.Record, replies []check.Reply)

func (h handlerFunc) Serve(from string, records []check.Record, replies []check.Reply) {
	h(from, records, replies)
}

// echo answers every record with its cost as what remains.
func echo(_ string, records []check.Record, replies []check.Reply) {
	for i := range records {
		replies[i] = check.Reply{Status: check.Decided, Owner: "b"}
		replies[i].Remaining = records[i].Cost
	}
}

// gate is a handler that announces every frame it gets, by its number of records,
// and echoes it when told, or at once after open.
type gate struct {
	arrived, pass chan int
	opened        chan struct{}
	open          func()
}

func newGate() gate {
	opened := make(chan struct{})
	return gate{make(chan int), make(chan int), opened, sync.OnceFunc(func() { close(opened) })}
}

func (g gate) Serve(from string, records []check.Record, replies []check.Reply) {
	select {
	case g.arrived <- len(records):
	case <-g.opened:
	}
	select {
	case <-g.pass:
	case <-g.opened:
	}
	echo(from, records, replies)
}

// network joins servers and pools in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	// dialing has a place for one call at a time: bufconn starts timers of 0 s, and two at once in a synctest bubble crash the race
	// detector of Go 1.26, which runs them with one context (runtime.timers.raceCtx).
	dialing chan struct{}
}

func newNetwork() *network {
	return &network{listeners: make(map[string]*bufconn.Listener), dialing: make(chan struct{}, 1)}
}

func (n *network) listen(addr string) net.Listener {
	l := bufconn.Listen(1 << 20)
	n.mu.Lock()
	n.listeners[addr] = l
	n.mu.Unlock()
	return l
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	select {
	case n.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-n.dialing }()
	return l.DialContext(ctx)
}

// through is dial with something around each connection.
func (n *network) through(wrap func(net.Conn) net.Conn) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := n.dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	}
}

func (n *network) config(name string) Config {
	return Config{
		Name: name, Boot: name + "-1", Placement: 7, ProofKeys: keys("one"), CountersTag: []byte("counters"),
		Dial: n.dial, DialTimeout: 10 * time.Second, // the machine may be busy
	}
}

// keys are proof keys that stand for secrets.
func keys(secrets ...string) func() [][]byte {
	var all [][]byte
	for _, s := range secrets {
		all = append(all, []byte(s))
	}
	return func() [][]byte { return all }
}

// greetAs is the accepting side of a greeting, with another hello than a Server's.
func (c *Config) greetAs(stream grpc.ServerStream, own *peerv1.Hello) error {
	var first, second peerv1.Greeting
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	if err := stream.SendMsg(&peerv1.Greeting{Hello: own}); err != nil {
		return err
	}
	if err := stream.RecvMsg(&second); err != nil {
		return err
	}
	return stream.SendMsg(&peerv1.Greeting{Proof: c.prove(accepter, transcript{first.Hello, own})})
}

// serve runs a server at addr until the test ends; stop ends it before.
func (n *network) serve(t testing.TB, addr string, c Config, h check.Handler) (s *Server, stop func()) {
	t.Helper()
	s, err := NewServer(c, h)
	if err != nil {
		t.Fatal(err)
	}
	l := n.listen(addr)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	stop = sync.OnceFunc(func() {
		if g, ok := h.(gate); ok {
			g.open()
		}
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func open(t testing.TB, c Config) *Pool {
	t.Helper()
	p, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// pair is a server b at b:1 with handler h, and a pool of node a.
func pair(t testing.TB, h check.Handler) (*network, *Server, *Pool) {
	t.Helper()
	n := newNetwork()
	s, _ := n.serve(t, "b:1", n.config("b"), h)
	return n, s, open(t, n.config("a"))
}

// bubble runs f in a synctest bubble, whose clean-ups run inside.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

var tenAMinute = mustLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute})

func mustLimits(list ...bucket.Limit) *bucket.Limits {
	l, err := bucket.NewLimits(list...)
	if err != nil {
		panic(err)
	}
	return l
}

// costing returns a record for each cost.
func costing(costs ...int64) []check.Record {
	records := make([]check.Record, len(costs))
	for i, c := range costs {
		records[i].Request = bucket.Request{Key: bucket.Key{Hi: uint64(c), Lo: uint64(i)}, Limits: tenAMinute, Cost: c}
	}
	return records
}

// ask calls with one record of that cost and checks the echo.
func ask(ctx context.Context, p *Pool, addr string, cost int64) error {
	var replies [1]check.Reply
	if err := p.Call(ctx, addr, costing(cost), replies[:]); err != nil {
		return err
	}
	if r := replies[0]; r.Status != check.Decided || r.Remaining != cost {
		return errors.New("wrong echo")
	}
	return nil
}
