package grpcapi

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
)

// serviceDesc is the generated one, but that the hot calls decode to question and
// encode from answer.
func serviceDesc() *grpc.ServiceDesc {
	d := sluicev1.SluiceService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "Check" {
			d.Methods[i].Handler = handleCheck
		}
	}
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams {
		if d.Streams[i].StreamName == "CheckStream" {
			d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*Server).checkStream(stream) }
		}
	}
	return &d
}

// handleCheck is a grpc.MethodHandler.
func handleCheck(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	q := new(question)
	if err := decode(q); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, q any) (any, error) { return srv.(*Server).checkOnce(ctx, q.(*question)) }
	if interceptor == nil {
		return handle(ctx, q)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: sluicev1.SluiceService_Check_FullMethodName}
	return interceptor(ctx, q, info, handle)
}

// checkOnce answers a call of Check.
func (s *Server) checkOnce(ctx context.Context, q *question) (any, error) {
	if s.gone() {
		q.batch.Release()
		return nil, errLeaving
	}
	q.batch.Door = limiter.GRPCDoor
	if s.tracing {
		q.batch.Traceparent = transport.Traceparent(ctx)
	}
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused != nil {
		q.batch.Release()
		return nil, statusOf(refused)
	}
	if refused := pass.Restrict(q.batch); refused != nil {
		q.batch.Release()
		return nil, statusOf(refused)
	}
	a, err := s.check(ctx, q)
	if err != nil {
		return nil, statusOf(err)
	}
	return a, nil
}

// check decides one request, of a call or of a stream. The question is used up.
func (s *Server) check(ctx context.Context, q *question) (*answer, error) {
	if q.fault != nil {
		q.batch.Release()
		return nil, q.fault
	}
	if err := s.limiter.Check(ctx, q.batch); err != nil {
		q.batch.Release()
		return nil, err
	}
	return &answer{batch: q.batch, id: q.id}, nil
}

// Reset implements sluicev1.SluiceServiceServer.
func (s *Server) Reset(ctx context.Context, req *sluicev1.ResetRequest) (*sluicev1.ResetResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused != nil {
		return nil, statusOf(refused)
	}
	if e := limiter.CountFault(len(req.GetChecks())); e != nil {
		return nil, statusOf(e)
	}
	b := limiter.NewBatch()
	defer b.Release()
	b.Door = limiter.GRPCDoor
	if s.tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
	fill(b, req.GetChecks())
	for i := range b.Checks {
		b.Checks[i].Verb = bucket.Reset
	}
	if refused := pass.Restrict(b); refused != nil {
		return nil, statusOf(refused)
	}
	if err := s.limiter.Reset(ctx, b); err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ResetResponse{Decisions: resets(b)}, nil
}
