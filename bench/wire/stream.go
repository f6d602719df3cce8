package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bench/load"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Outstanding is how many frames of a Stream may wait for their answers before
// checks gather.
const Outstanding = 2

// Stream asks sluice, and the echo that speaks like it, by one CheckStream to each
// node that all callers share. Each caller has one check at a time. A check is sent
// while fewer than Outstanding frames are unanswered; else it gathers
// with others into the next frame, which goes when an answer has come. Before a frame is packed, callers that are about to
// ask have a turn, as in the Go client.
type Stream struct{ pipes []*pipe }

// NewStream opens a stream on each connection. Close it.
func NewStream(ctx context.Context, conns []*grpc.ClientConn) (*Stream, error) {
	s := &Stream{}
	for _, c := range conns {
		stream, err := sluicev1.NewSluiceServiceClient(c).CheckStream(ctx)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		p := &pipe{stream: stream, done: make(chan struct{})}
		p.mu.sent = map[uint64]*frame{}
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

// NewCaller implements load.Target. A call has one check; more of them go in one frame too.
func (s *Stream) NewCaller(domain string, checks int) load.Caller {
	c := &streamCaller{pipes: s.pipes}
	for range checks {
		c.tickets = append(c.tickets, &ticket{check: newCheck(domain), answered: make(chan struct{}, 1)})
	}
	return c
}

type streamCaller struct {
	pipes   []*pipe
	tickets []*ticket
}

// Call implements load.Caller.
func (c *streamCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	for i, k := range keys {
		t := c.tickets[i]
		t.check.Descriptor_[0].Value = k
		t.decision, t.err = nil, nil
	}
	c.pipes[node].submit(c.tickets)
	for _, t := range c.tickets {
		select {
		case <-t.answered:
		case <-ctx.Done():
			return ctx.Err()
		}
		if t.err != nil {
			return t.err
		}
		count(t.decision, seen)
	}
	return nil
}

// ticket is a check on its way and its answer.
type ticket struct {
	check    *sluicev1.Check
	decision *sluicev1.Decision
	err      error
	answered chan struct{}
}

// frame is a request and whose checks it has.
type frame struct {
	req     sluicev1.CheckRequest
	tickets []*ticket
}

// pipe is one stream.
type pipe struct {
	// stream's sending half is of whoever has set sending, its other half of receive.
	stream grpc.BidiStreamingClient[sluicev1.CheckRequest, sluicev1.CheckResponse]
	// done is closed when receive has returned.
	done chan struct{}

	mu struct {
		sync.Mutex
		sending bool
		waiting []*ticket
		sent    map[uint64]*frame
		free    []*frame
		last    uint64
		// err is why the stream ended.
		err error
	}
}

// submit sends ts or leaves them to gather.
func (p *pipe) submit(ts []*ticket) {
	p.mu.Lock()
	if p.mu.err != nil {
		err := p.mu.err
		p.mu.Unlock()
		for _, t := range ts {
			t.answer(nil, err)
		}
		return
	}
	p.mu.waiting = append(p.mu.waiting, ts...)
	lead := p.leadLocked()
	p.mu.Unlock()
	if lead {
		p.send()
	}
}

// readyLocked reports whether a frame may leave now. Needs p.mu.
func (p *pipe) readyLocked() bool { return len(p.mu.waiting) > 0 && len(p.mu.sent) < Outstanding }

// leadLocked makes the caller the one who sends, if there is something that may leave now. Needs p.mu.
func (p *pipe) leadLocked() bool {
	if p.mu.sending || !p.readyLocked() {
		return false
	}
	p.mu.sending = true
	return true
}

// send packs and sends what may leave now. It follows a leadLocked that was true.
func (p *pipe) send() {
	runtime.Gosched()
	p.mu.Lock()
	for p.readyLocked() {
		f := p.packLocked()
		p.mu.Unlock()
		// A failed Send means that the stream has ended, which receive sees too.
		_ = p.stream.Send(&f.req)
		p.mu.Lock()
	}
	p.mu.sending = false
	p.mu.Unlock()
}

// packLocked makes a frame of all that waits. Needs p.mu.
func (p *pipe) packLocked() *frame {
	f := &frame{}
	if n := len(p.mu.free); n > 0 {
		f, p.mu.free = p.mu.free[n-1], p.mu.free[:n-1]
	}
	f.tickets, p.mu.waiting = p.mu.waiting, f.tickets[:0]
	f.req.Checks = f.req.Checks[:0]
	for _, t := range f.tickets {
		f.req.Checks = append(f.req.Checks, t.check)
	}
	p.mu.last++
	f.req.Id = p.mu.last
	p.mu.sent[f.req.Id] = f
	return f
}

// receive hands out answers until the stream ends.
func (p *pipe) receive() {
	defer close(p.done)
	for {
		res, err := p.stream.Recv()
		if err != nil {
			p.fail(err)
			return
		}
		p.mu.Lock()
		f := p.mu.sent[res.GetId()]
		delete(p.mu.sent, res.GetId())
		p.mu.Unlock()
		if f != nil {
			f.answer(res)
		}
		p.mu.Lock()
		if f != nil {
			p.mu.free = append(p.mu.free, f)
		}
		lead := p.leadLocked()
		p.mu.Unlock()
		if lead {
			p.send()
		}
	}
}

// fail answers everything with err.
func (p *pipe) fail(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream has ended")
	}
	p.mu.Lock()
	p.mu.err = err
	left := p.mu.waiting
	for _, f := range p.mu.sent {
		left = append(left, f.tickets...)
	}
	p.mu.Unlock()
	for _, t := range left {
		t.answer(nil, err)
	}
}

func (f *frame) answer(res *sluicev1.CheckResponse) {
	ds := res.GetDecisions()
	var err error
	switch e := res.GetError(); {
	case e != nil:
		err = fmt.Errorf("%v: %s", e.GetCode(), e.GetMessage())
	case len(ds) != len(f.tickets):
		err = fmt.Errorf("%d decisions for %d checks", len(ds), len(f.tickets))
	}
	for i, t := range f.tickets {
		if err != nil {
			t.answer(nil, err)
		} else {
			t.answer(ds[i], nil)
		}
	}
}

func (t *ticket) answer(d *sluicev1.Decision, err error) {
	t.decision, t.err = d, err
	t.answered <- struct{}{}
}
