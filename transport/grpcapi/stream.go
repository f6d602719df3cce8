package grpcapi

import (
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
)

// CheckStream implements sluicev1.SluiceServiceServer. Requests are decided side
// by side, up to Config.InFlight of them, and answered as they are done.
func (s *Server) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	p := &pipeline{server: s, stream: stream, room: make(chan struct{}, s.inFlight)}
	ended := make(chan error, 1)
	if !s.read(func() { ended <- p.read() }) {
		return errLeaving
	}
	var err error
	select {
	case err = <-ended:
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
	stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]
	// room holds one token per request in flight.
	room chan struct{}

	mu struct {
		sync.Mutex
		// finished: no request is taken any more.
		finished bool
	}
	inFlight sync.WaitGroup
	// sending is held around Send, which takes one caller at a time.
	sending sync.Mutex
}

// read takes requests until the stream or the pipeline ends and returns why.
func (p *pipeline) read() error {
	ctx := p.stream.Context()
	for {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		req, err := p.stream.Recv()
		if err != nil {
			return err
		}
		if !p.take(req) {
			return errLeaving
		}
	}
}

// take starts to decide req, unless the pipeline is finished.
func (p *pipeline) take(req *sluicev1.CheckRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.finished {
		return false
	}
	p.inFlight.Go(func() {
		p.answer(req)
		<-p.room
	})
	return true
}

// answer decides req and sends the answer. What is wrong with one request is
// its own answer's Error and does not end the stream.
func (p *pipeline) answer(req *sluicev1.CheckRequest) {
	res, err := p.server.check(p.stream.Context(), req)
	if err != nil {
		e, ok := errors.AsType[*transport.Error](err)
		if !ok {
			e = &transport.Error{Code: transport.Unavailable, Message: err.Error()}
		}
		res = &sluicev1.CheckResponse{Id: req.GetId(), Error: callError(e)}
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	// A failed Send means that the stream has ended, which the reader sees too.
	_ = p.stream.Send(res)
}

// finish takes no more requests and waits for the answers to those taken.
func (p *pipeline) finish() {
	p.mu.Lock()
	p.mu.finished = true
	p.mu.Unlock()
	p.inFlight.Wait()
}
