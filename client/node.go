package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// How long a node that cannot be reached is left alone: twice as long each time.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	// openTimeout bounds an attempt to open a stream.
	openTimeout = 2 * time.Second
)

// node is one address that is asked, and the circuit breaker before it: after a failure nobody asks
// it for a while, and then one attempt decides.
type node struct {
	client *Client
	// name is the node's in the cluster; "" for an address of the target.
	name, addr string
	conn       *grpc.ClientConn
	current    atomic.Pointer[stream]

	mu struct {
		sync.Mutex
		opening  chan struct{} // closed when the attempt under way has ended
		failures int
		retryAt  time.Time
		closed   bool
	}
}

func (c *Client) newNode(name, addr string) (*node, error) {
	conn, err := grpc.NewClient(addr, c.opts.dial...)
	if err != nil {
		return nil, err
	}
	return &node{client: c, name: name, addr: addr, conn: conn}, nil
}

// up reports whether n may be asked now.
func (n *node) up(now time.Time) bool {
	if n.current.Load() != nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.mu.closed && (n.mu.opening != nil || !now.Before(n.mu.retryAt))
}

// stream returns a stream to n, and opens one if there is none. The error is errUnsent, or that of ctx.
func (n *node) stream(ctx context.Context) (*stream, error) {
	if s := n.current.Load(); s != nil {
		return s, nil
	}
	n.mu.Lock()
	if n.mu.closed {
		n.mu.Unlock()
		return nil, errUnsent
	}
	opening := n.mu.opening
	if opening == nil {
		if time.Now().Before(n.mu.retryAt) {
			n.mu.Unlock()
			return nil, errUnsent
		}
		opening = make(chan struct{})
		if !n.client.spawn(func() { n.open(opening) }) {
			n.mu.Unlock()
			return nil, ErrClosed
		}
		n.mu.opening = opening
	}
	n.mu.Unlock()
	select {
	case <-opening:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s := n.current.Load(); s != nil {
		return s, nil
	}
	return nil, errUnsent
}

var checkStream = &grpc.StreamDesc{StreamName: "CheckStream", ClientStreams: true, ServerStreams: true}

// open makes one attempt, and receives on the stream that comes of it.
func (n *node) open(opening chan struct{}) {
	ctx, cancel := context.WithCancel(n.client.ctx)
	late := time.AfterFunc(openTimeout, cancel)
	g, err := n.conn.NewStream(ctx, checkStream, sluicev1.SluiceService_CheckStream_FullMethodName, grpc.ForceCodecV2(newCodec()))
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	var s *stream
	if err == nil {
		s = &stream{node: n, grpc: g, cancel: cancel}
	}
	n.mu.Lock()
	n.mu.opening = nil
	switch {
	case err != nil:
		n.failedLocked()
		cancel()
	case n.mu.closed:
		cancel()
		s = nil
	default:
		n.current.Store(s)
	}
	n.mu.Unlock()
	close(opening)
	if s != nil {
		s.receive()
	}
}

// failedLocked leaves n alone for a while.
func (n *node) failedLocked() {
	wait := lastPause
	if n.mu.failures < 7 { // 50 ms · 2⁷ is past the last
		wait = min(wait, firstPause<<n.mu.failures)
	}
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

// close ends n. Its stream's goroutine is the client's to wait for.
func (n *node) close() {
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	if s := n.current.Load(); s != nil {
		s.cancel()
	}
	n.conn.Close() // an error means that it is closed
}

// leaves reports whether a stream ended because the node leaves in order: it says so with an Error in
// the status, which a connection that breaks cannot have.
func leaves(err error) bool {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.Unavailable {
		return false
	}
	for _, d := range st.Details() {
		if e, ok := d.(*sluicev1.Error); ok && e.GetCode() == sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE {
			return true
		}
	}
	return false
}
