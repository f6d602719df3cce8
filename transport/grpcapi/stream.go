package grpcapi

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checksPerPlace is how many checks take one of the InFlight places of a stream: the node keeps their results while the
// client does not read.
const checksPerPlace = 160

var errUnread = status.Error(codes.Aborted, "answers on this stream are not read")

// checkStream serves CheckStream. Up to Config.InFlight requests are decided concurrently, and answered as they are done.
func (s *Server) checkStream(stream grpc.ServerStream) error {
	p := &pipeline{server: s, stream: stream, identity: access.OfContext(stream.Context()), room: make(chan struct{}, s.config.InFlight)}
	stalled := make(chan struct{})
	p.unread = time.AfterFunc(s.config.Unread, sync.OnceFunc(func() { close(stalled) }))
	defer p.unread.Stop()
	p.unread.Stop()
	pass, rejected := s.config.Guard.Enter(limiter.StreamAPI, &p.identity)
	if rejected != nil {
		return statusOf(rejected)
	}
	life, end := s.lifeOf(stream)
	defer end()
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
	case <-stalled:
		// Sends that wait end with the stream, once this has returned.
		return errUnread
	case <-life.Done():
		// The reader stays in Recv until this handler has returned.
		err = endOf(life)
	}
	p.mu.Lock()
	p.mu.finished = true
	p.mu.Unlock()
	p.inFlight.Wait() // the requests taken are answered
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// pipeline is one CheckStream.
type pipeline struct {
	server *Server
	stream grpc.ServerStream
	// identity is the caller's. It is checked again for each request: a token may be revoked meanwhile.
	identity access.Identity
	// room holds one token per request in flight, or several for a large one.
	room chan struct{}
	// unread fires when a Send takes too long.
	unread *time.Timer

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
		if pass, rejected = p.server.config.Guard.Again(pass, &p.identity); rejected != nil {
			q.drop()
			return statusOf(rejected)
		}
		places := min(1+len(q.batch.Checks)/checksPerPlace, cap(p.room))
		for range places - 1 {
			select {
			case p.room <- struct{}{}:
			case <-ctx.Done():
				q.drop()
				return ctx.Err()
			}
		}
		if !p.take(q, pass, places) {
			q.drop()
			return errLeaving
		}
	}
}

// drop releases a request of a stream that is not answered.
func (q *question) drop() {
	q.batch.Release()
	q.held.Release()
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
		q.held.Release()
		for range places {
			<-p.room
		}
	})
	return true
}

// answer decides q, unless the node is too busy, and sends the response. An error of one request does not end the stream.
func (p *pipeline) answer(q *question, pass *access.Pass) {
	id := q.id
	q.batch.API = limiter.StreamAPI
	// Checks that are not granted fail alone, even all of a request: it may combine those of several clients.
	_ = pass.Restrict(q.batch)
	var a *answer
	var err error
	if p.server.config.Admit() {
		a, err = p.server.check(p.stream.Context(), q, pass)
	} else {
		q.batch.Release()
		err = limiter.ErrBusy
	}
	if err != nil {
		e, ok := errors.AsType[*limiter.Error](err)
		if !ok {
			e = &limiter.Error{Code: limiter.Unavailable, Message: err.Error()}
		}
		a = &answer{id: id, fault: e}
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	p.unread.Reset(p.server.config.Unread)
	defer p.unread.Stop()
	// A failed send means that the stream has ended, which the reader sees too.
	_ = p.stream.SendMsg(a)
}
