package grpcapi

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checksPerPlace is how many checks take one of the InFlight places of a stream: a caller that reads no
// answers makes the node keep so many of them.
const checksPerPlace = 160

var errUnread = status.Error(codes.Aborted, "answers on this stream are not read")

// checkStream answers CheckStream. Requests are decided side by side, up to
// Config.InFlight of them, and answered as they are done.
func (s *Server) checkStream(stream grpc.ServerStream) error {
	p := &pipeline{server: s, stream: stream, identity: access.OfContext(stream.Context()), room: make(chan struct{}, s.inFlight), stalled: make(chan struct{}, 1)}
	p.unread = time.AfterFunc(s.unread, func() {
		select {
		case p.stalled <- struct{}{}:
		default:
		}
	})
	defer p.unread.Stop()
	p.unread.Stop()
	pass, rejected := s.guard.Enter(limiter.StreamAPI, &p.identity)
	if rejected != nil {
		return statusOf(rejected)
	}
	ended := make(chan error, 1)
	if !s.read(func() {
		ended <- p.read(pass)
		p.inFlight.Wait()
	}) {
		return errLeaving
	}
	var err error
	select {
	case err = <-ended:
	case <-p.stalled:
		// What waits to be sent ends with the stream, once this has returned.
		return errUnread
	case <-s.leaving:
		// The reader stays in Recv until this handler has returned.
		err = errLeaving
	}
	p.finish()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// pipeline is one CheckStream.
type pipeline struct {
	server *Server
	stream grpc.ServerStream
	// identity is the caller's, who is asked again for each request: a token may be taken away meanwhile.
	identity access.Identity
	// room holds one token per request in flight, or several for a large one.
	room chan struct{}
	// unread fires when a Send takes too long, and stalled says so.
	unread  *time.Timer
	stalled chan struct{}

	mu struct {
		sync.Mutex
		// finished: no request is taken any more.
		finished bool
	}
	inFlight sync.WaitGroup
	// sending is held around Send, which takes one caller at a time.
	sending sync.Mutex
}

// read takes requests of the caller of pass until the stream or the pipeline ends and returns why.
func (p *pipeline) read(pass access.Pass) error {
	ctx := p.stream.Context()
	for {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		q := new(question)
		if err := p.stream.RecvMsg(q); err != nil {
			return err
		}
		var rejected *limiter.Error
		if pass, rejected = p.server.guard.Again(pass, &p.identity); rejected != nil {
			q.batch.Release()
			return statusOf(rejected)
		}
		places := min(1+len(q.batch.Checks)/checksPerPlace, cap(p.room))
		for range places - 1 {
			select {
			case p.room <- struct{}{}:
			case <-ctx.Done():
				q.batch.Release()
				return ctx.Err()
			}
		}
		if !p.take(q, pass, places) {
			q.batch.Release()
			return errLeaving
		}
	}
}

// take starts to decide q, as far as pass goes, unless the pipeline is finished.
func (p *pipeline) take(q *question, pass access.Pass, places int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.finished {
		return false
	}
	p.inFlight.Go(func() {
		p.answer(q, &pass)
		for range places {
			<-p.room
		}
	})
	return true
}

// answer decides q and sends the answer. What is wrong with one request is its
// own answer's Error and does not end the stream.
func (p *pipeline) answer(q *question, pass *access.Pass) {
	id := q.id
	q.batch.API = limiter.StreamAPI
	// What may not be asked fails alone, even where that is all: requests may be gathered from many requesters.
	_ = pass.Restrict(q.batch)
	a, err := p.decide(q)
	if err != nil {
		e, ok := errors.AsType[*limiter.Error](err)
		if !ok {
			e = &limiter.Error{Code: limiter.Unavailable, Message: err.Error()}
		}
		a = &answer{id: id, fault: e}
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	p.unread.Reset(p.server.unread)
	defer p.unread.Stop()
	// A failed send means that the stream has ended, which the reader sees too.
	_ = p.stream.SendMsg(a)
}

// decide is check, unless the node is too busy.
func (p *pipeline) decide(q *question) (*answer, error) {
	if !p.server.admit() {
		q.batch.Release()
		return nil, limiter.ErrBusy
	}
	return p.server.check(p.stream.Context(), q)
}

// finish takes no more requests and waits for the answers to those taken.
func (p *pipeline) finish() {
	p.mu.Lock()
	p.mu.finished = true
	p.mu.Unlock()
	p.inFlight.Wait()
}
