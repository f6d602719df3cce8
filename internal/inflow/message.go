package inflow

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Message is what a server's codec decodes messages into, if its Budget has a Memory.
type Message struct {
	// Into is what the message becomes.
	Into any
	// size is its length, and read that it came.
	size int
	read bool
	err  error
	held Held

	ctx  context.Context
	call *call // nil if it is of no connection of the Budget
	of   *Budget
}

// Begin is for the codec: a message of size bytes has come. It reports whether it is to be decoded,
// and if most is not 0, once Take has got what it takes.
func (m *Message) Begin(size int) (decode bool, most int64) {
	if m.read { // a second message, of which gRPC makes an error
		return false, 0
	}
	m.size, m.read = size, true
	if size > SmallMessage {
		most = m.of.config.Memory.most
	}
	return true, most
}

// Take waits for n bytes of memory, of which field is where they exceed the most for a message. It
// reports whether the message is to be decoded. If not, the codec returns no error: gRPC would give
// it the code INTERNAL.
func (m *Message) Take(n int64, field string) bool {
	var of *conn
	var share *pool
	if m.call != nil {
		of = m.call.conn
		share = &of.decoded
	}
	if m.held, m.err = m.of.config.Memory.take(m.ctx, n, field, share); m.err != nil {
		m.of.note(memory, of)
	}
	return m.err == nil
}

// status is the error of a message that was not decoded, as a status.
func (m *Message) status() error {
	var large *TooLarge
	switch {
	case m.err == nil:
		return nil
	case errors.Is(m.err, ErrNoMemory), errors.As(m.err, &large):
		return status.Error(codes.ResourceExhausted, m.err.Error())
	}
	return status.FromContextError(m.err).Err()
}

// Keeper is a message of a stream that keeps its memory after the next one was received.
type Keeper interface {
	// Keep gives it the memory to release.
	Keep(Held)
}

// unary is h, whose call is released when its message is decoded, and the message's memory when the
// call is over.
func (b *Budget) unary(h grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		k, ok := ctx.Value(callKey{}).(*call)
		if !ok && b.config.Memory == nil {
			return h(srv, ctx, decode, interceptor)
		}
		if ok {
			defer k.decoded(errNotDecoded)
			if err := k.serve(ctx); err != nil {
				return nil, err
			}
		}
		if b.config.Memory == nil {
			return h(srv, ctx, func(m any) error {
				err := decode(m)
				k.decoded(err)
				return err
			}, interceptor)
		}
		m := new(Message)
		if k != nil {
			m = &k.message
		}
		m.ctx, m.call, m.of = ctx, k, b
		defer m.held.Release()
		return h(srv, ctx, func(into any) error {
			m.Into = into
			err := decode(m)
			if err == nil {
				err = m.status()
			}
			if k != nil {
				k.decoded(err)
			}
			return err
		}, interceptor)
	}
}

var errNotDecoded = errors.New("the handler decodes nothing")

// stream is a grpc.StreamServerInterceptor.
func (b *Budget) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	k, ok := s.Context().Value(callKey{}).(*call)
	if ok {
		defer k.conn.release(k)
		if err := k.serve(s.Context()); err != nil {
			return err
		}
	}
	if b.config.Memory == nil {
		return h(srv, s)
	}
	c := &counted{ServerStream: s, call: k, of: b}
	defer c.end()
	return h(srv, c)
}

// counted is a stream that counts the memory of messages, and releases their bytes once they are
// decoded.
type counted struct {
	grpc.ServerStream
	call *call // nil if it is of no connection of the Budget
	of   *Budget
	// message is the one that is being received.
	message Message
	// A handler may return while another of its goroutines receives.
	mu struct {
		sync.Mutex
		held  Held // of the last message
		ended bool
	}
}

// keep releases what the stream holds, and holds h until the next message or the end.
func (s *counted) keep(h Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.held.Release()
	if s.mu.held = h; s.mu.ended {
		s.mu.held.Release()
	}
}

func (s *counted) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ended = true
	s.mu.held.Release()
}

// RecvMsg implements grpc.ServerStream.
func (s *counted) RecvMsg(into any) error {
	s.keep(Held{})
	m := &s.message
	*m = Message{Into: into, ctx: s.Context(), call: s.call, of: s.of}
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		err = m.status()
	}
	if err != nil {
		m.held.Release()
		return err
	}
	if s.call != nil {
		s.call.conn.credit(s.call, m.size)
	}
	if h, ok := into.(Keeper); ok {
		h.Keep(m.held)
	} else {
		s.keep(m.held)
	}
	return nil
}
