package sluice

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// The backoff of a node that cannot be reached, doubling.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	// openTimeout bounds an attempt to open a stream.
	openTimeout = 2 * time.Second
)

// node is one address and its circuit breaker: checks go to nodes that have a stream, and streams are opened in the
// background, with a backoff.
type node struct {
	client *Client
	// name is that in the cluster; "" for an address of the target.
	name, addr string
	conn       *grpc.ClientConn
	current    atomic.Pointer[stream]
	rtt        atomic.Int64 // the round trip of the last empty request, in nanoseconds
	avoided    atomic.Int64 // until when other nodes are asked first, in Unix ns; see avoid

	mu struct {
		sync.Mutex
		opening bool
		tried   bool // an attempt has ended
		// failures are consecutive; the next attempt is not before retryAt.
		failures int
		retryAt  time.Time
		closed   bool
	}
}

func (c *Client) newNode(name, addr string) (*node, error) {
	conn, err := grpc.NewClient(addr, c.opts.Dial...)
	if err != nil {
		return nil, err
	}
	return &node{client: c, name: name, addr: addr, conn: conn}, nil
}

// avoidFor is how long other nodes are asked first, once n has left a call with a short deadline without an answer.
const avoidFor = 100 * time.Millisecond

// avoid has other nodes asked first for a while. They know what to do without n.
func (n *node) avoid() { n.avoided.Store(time.Now().Add(avoidFor).UnixNano()) }

// shunned reports whether other nodes are to be asked first.
func (n *node) shunned() bool {
	until := n.avoided.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// silentSince reports whether n has answered nothing since a time.
func (n *node) silentSince(at time.Time) bool {
	s := n.current.Load()
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.heard.Before(at)
}

// connect opens a stream to n in the background, unless there is one or n is in its backoff. It never blocks.
func (n *node) connect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed || n.mu.opening || n.current.Load() != nil || time.Now().Before(n.mu.retryAt) {
		return
	}
	n.mu.opening = n.client.spawn(n.open)
}

// tried reports whether n works, or the first attempt to reach it has failed.
func (n *node) tried() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.tried
}

// open makes one attempt to open a stream, and receives on it.
func (n *node) open() {
	ctx, cancel := context.WithCancel(n.client.ctx)
	late := time.AfterFunc(openTimeout, cancel)
	s, err := n.greet(ctx, cancel)
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		n.client.noteCause(err) // before reach.note: Ready reads it then
	}
	n.mu.Lock()
	n.mu.opening, n.mu.tried = false, true
	if n.mu.closed && err == nil {
		err = ErrClosed
	}
	if err != nil {
		n.failedLocked()
		cancel()
	} else {
		n.current.Store(s)
	}
	n.mu.Unlock()
	n.client.reach.note(err == nil)
	if err == nil {
		s.receive()
	}
}

var checkStream = &grpc.StreamDesc{StreamName: "CheckStream", ClientStreams: true, ServerStreams: true}

// greet opens a stream and sends a request without checks. Its response is an error, and proves that the address is a
// node that does not hang.
func (n *node) greet(ctx context.Context, cancel context.CancelFunc) (*stream, error) {
	open := func(wait bool) (grpc.ClientStream, error) {
		return n.conn.NewStream(ctx, checkStream, sluicev1.RateLimitService_CheckStream_FullMethodName,
			grpc.ForceCodecV2(newCodec()), grpc.WaitForReady(wait))
	}
	g, err := open(false)
	if status.Code(err) == codes.Unavailable {
		n.client.noteCause(err) // and goes on: the node may just be starting
		n.client.reach.note(false)
		g, err = open(true)
	}
	if err != nil {
		return nil, err
	}
	s := &stream{node: n, grpc: g, cancel: cancel}
	f := newFrame(s.lane(false))
	began := time.Now()
	s.launchLocked(f) // s is not shared yet
	// io.EOF says that the node has ended the stream already; RecvMsg says why.
	if err := g.SendMsg(f); err != nil && err != io.EOF {
		return nil, err
	}
	if err := g.RecvMsg(s); err != nil {
		return nil, err
	}
	n.rtt.Store(int64(time.Since(began)))
	n.client.setPatience(n)
	return s, nil
}

// failedLocked begins a backoff.
func (n *node) failedLocked() {
	wait := min(lastPause, firstPause<<min(n.mu.failures, 7)) // 50 ms · 2⁷ is above lastPause
	n.mu.failures++
	n.mu.retryAt = time.Now().Add(n.client.jitter(wait))
}

// lost notes that s has ended.
func (n *node) lost(s *stream) {
	n.current.CompareAndSwap(s, nil)
	n.mu.Lock()
	if s.worked.Load() {
		n.mu.failures = 0
	}
	n.failedLocked()
	n.mu.Unlock()
	n.client.stats.streamsLost.Add(1)
	n.client.refreshSoon()
}

// close ends n. Client.Close waits for the stream's goroutine.
func (n *node) close() {
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	if s := n.current.Load(); s != nil {
		s.cancel()
	}
	n.conn.Close() // an error means that it is closed
}

// inOrder reports whether a node has ended a stream after answering all that it decided, because it leaves or because the
// token of the stream is not valid any more. The status has an Error then, which that of a broken connection has not.
func inOrder(err error) bool {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.Unavailable && st.Code() != codes.Unauthenticated {
		return false
	}
	for _, d := range st.Details() {
		if e, ok := d.(*sluicev1.Error); ok && (e.GetCode() == sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE ||
			e.GetCode() == sluicev1.ErrorCode_ERROR_CODE_UNAUTHENTICATED) {
			return true
		}
	}
	return false
}
