// Package stream calls sluice and the echo by one CheckStream to each node, which all callers share. A check is sent while
// fewer than Outstanding frames are in flight. Otherwise it waits for a response and goes with others into the next frame.
// Before a frame is packed, other callers may add their checks, as in the Go client.
//
// New starts one goroutine per node; Close waits for all.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/load"
	"github.com/sluice-project/sluice/internal/load/api"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Outstanding is how many frames may be in flight before checks wait.
const Outstanding = 2

// Stream implements load.Target. It must be created with New and closed with Close.
type Stream struct {
	domain string
	pipes  []*pipe
}

// New opens a stream on each connection.
func New(ctx context.Context, conns []*grpc.ClientConn, domain string) (*Stream, error) {
	s := &Stream{domain: domain}
	for _, c := range conns {
		stream, err := sluicev1.NewSluiceServiceClient(c).CheckStream(ctx)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		p := &pipe{stream: stream, done: make(chan struct{})}
		p.mu.sent = map[uint64][]*waiter{}
		go p.receive()
		s.pipes = append(s.pipes, p)
	}
	return s, nil
}

// Close ends the streams and waits until they have ended.
func (s *Stream) Close() error {
	var errs []error
	for _, p := range s.pipes {
		errs = append(errs, p.stream.CloseSend())
		<-p.done
	}
	return errors.Join(errs...)
}

// Nodes implements load.Target.
func (s *Stream) Nodes() int { return len(s.pipes) }

// NewCaller implements load.Target. The checks of a call go into one frame.
func (s *Stream) NewCaller(checks int) load.Caller {
	c := &caller{pipes: s.pipes}
	for range checks {
		c.waiters = append(c.waiters, &waiter{
			check: &sluicev1.Check{Domain: s.domain, Descriptor_: []*sluicev1.Entry{{Key: "user"}}}, answered: make(chan struct{}, 1),
		})
	}
	return c
}

type caller struct {
	pipes   []*pipe
	waiters []*waiter
}

// Call implements load.Caller.
func (c *caller) Call(ctx context.Context, node int, keys []string, seen *load.Counts) (err error) {
	for i, k := range keys {
		c.waiters[i].check.Descriptor_[0].Value = k
	}
	c.pipes[node].send(c.waiters...)
	for _, w := range c.waiters {
		select {
		case <-w.answered:
		case <-ctx.Done():
			return ctx.Err()
		}
		if w.err != nil {
			err = w.err
			continue
		}
		api.Count(w.decision, seen)
	}
	return err
}

// waiter is a check and its decision or error, which are set when answered gets a value.
type waiter struct {
	check    *sluicev1.Check
	decision *sluicev1.Decision
	err      error
	answered chan struct{}
}

// pipe is one stream.
type pipe struct {
	// The goroutine that has set sending sends, receive receives.
	stream grpc.BidiStreamingClient[sluicev1.CheckRequest, sluicev1.CheckResponse]
	done   chan struct{} // closed when receive has returned

	mu struct {
		sync.Mutex
		sending bool
		waiting []*waiter
		sent    map[uint64][]*waiter
		last    uint64
		err     error // the end of the stream
	}
}

// send sends more and waiting checks as far as it may now, unless another goroutine is sending, which then does it.
func (p *pipe) send(more ...*waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.err != nil {
		answer(more, nil, p.mu.err)
		return
	}
	p.mu.waiting = append(p.mu.waiting, more...)
	if p.mu.sending || !p.readyLocked() {
		return
	}
	p.mu.sending = true
	p.mu.Unlock()
	runtime.Gosched()
	p.mu.Lock()
	for p.readyLocked() {
		frame := p.packLocked()
		p.mu.Unlock()
		// A failed Send means that the stream has ended, which receive sees too.
		_ = p.stream.Send(frame)
		p.mu.Lock()
	}
	p.mu.sending = false
}

// readyLocked reports whether a frame may be sent now.
func (p *pipe) readyLocked() bool { return len(p.mu.waiting) > 0 && len(p.mu.sent) < Outstanding }

// packLocked makes a frame of all waiting checks.
func (p *pipe) packLocked() *sluicev1.CheckRequest {
	list := p.mu.waiting
	p.mu.waiting = make([]*waiter, 0, len(list))
	p.mu.last++
	p.mu.sent[p.mu.last] = list
	frame := &sluicev1.CheckRequest{Id: p.mu.last, Checks: make([]*sluicev1.Check, len(list))}
	for i, w := range list {
		frame.Checks[i] = w.check
	}
	return frame
}

// receive answers waiters until the stream ends, and then with its error.
func (p *pipe) receive() {
	defer close(p.done)
	for {
		res, err := p.stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errors.New("the stream has ended")
		}
		p.mu.Lock()
		if err != nil {
			p.mu.err = err
			answer(p.mu.waiting, nil, err)
			for _, list := range p.mu.sent {
				answer(list, nil, err)
			}
			p.mu.Unlock()
			return
		}
		list := p.mu.sent[res.GetId()]
		delete(p.mu.sent, res.GetId())
		p.mu.Unlock()
		if e := res.GetError(); e != nil {
			err = fmt.Errorf("%v: %s", e.GetCode(), e.GetMessage())
		} else if n := len(res.GetDecisions()); n != len(list) {
			err = fmt.Errorf("%d decisions for %d checks", n, len(list))
		}
		answer(list, res.GetDecisions(), err)
		p.send()
	}
}

// answer gives each waiter its decision, or err.
func answer(list []*waiter, decisions []*sluicev1.Decision, err error) {
	for i, w := range list {
		w.decision, w.err = nil, err
		if err == nil {
			w.decision = decisions[i]
		}
		w.answered <- struct{}{}
	}
}
