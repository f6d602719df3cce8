package grpcapi

import (
	"context"
	"slices"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/grpc"
)

// serviceDesc is the generated one, except that the hot calls decode to question and encode from answer.
func serviceDesc() *grpc.ServiceDesc {
	d := sluicev1.SluiceService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		switch d.Methods[i].MethodName {
		case "Check":
			d.Methods[i].Handler = handler(sluicev1.SluiceService_Check_FullMethodName, (*Server).checkOnce)
		case "Reset":
			d.Methods[i].Handler = handler(sluicev1.SluiceService_Reset_FullMethodName, (*Server).reset)
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

// handler returns a handler of method that decodes to question: a ResetRequest is a CheckRequest of checks alone.
func handler(method string, call func(*Server, context.Context, *question) (any, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		q := new(question)
		if err := decode(q); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, q any) (any, error) { return call(srv.(*Server), ctx, q.(*question)) }
		if interceptor == nil {
			return handle(ctx, q)
		}
		return interceptor(ctx, q, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, handle)
	}
}

// enter admits a call of the unary API. Errors are statuses.
func (s *Server) enter(ctx context.Context) (access.Pass, error) {
	if s.leaving.Err() != nil {
		return access.Pass{}, errLeaving
	}
	pass, rejected := s.config.Guard.Call(ctx, limiter.GRPCAPI)
	if rejected != nil {
		return pass, statusOf(rejected)
	}
	return pass, nil
}

// authorize is enter for a caller that must have verb in domain.
func (s *Server) authorize(ctx context.Context, verb access.Verb, domain string) (access.Pass, error) {
	pass, err := s.enter(ctx)
	if err != nil {
		return pass, err
	}
	if rejected := pass.May(verb, domain); rejected != nil {
		return pass, statusOf(rejected)
	}
	return pass, nil
}

// operate is enter for a call of operators, or with a policy of callers that have verb in domain.
func (s *Server) operate(ctx context.Context, verb access.Verb, domain string) (access.Pass, error) {
	pass, err := s.enter(ctx)
	if err != nil {
		return pass, err
	}
	if rejected := pass.Operate(ctx, verb, domain); rejected != nil {
		return pass, statusOf(rejected)
	}
	return pass, nil
}

// checkOnce serves Check.
func (s *Server) checkOnce(ctx context.Context, q *question) (any, error) {
	pass, err := s.enter(ctx)
	if err != nil {
		q.batch.Release()
		return nil, err
	}
	s.label(ctx, q.batch)
	if rejected := pass.Restrict(q.batch); rejected != nil {
		q.batch.Release()
		return nil, statusOf(rejected)
	}
	a, err := s.check(ctx, q)
	if err != nil {
		return nil, statusOf(err)
	}
	return a, nil
}

// label notes the API and the trace of a call.
func (s *Server) label(ctx context.Context, b *limiter.Batch) {
	b.API = limiter.GRPCAPI
	if s.config.Tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
}

// check decides one request, of a call or of a stream. The question is used up.
func (s *Server) check(ctx context.Context, q *question) (*answer, error) {
	if q.fault != nil {
		q.batch.Release()
		return nil, q.fault
	}
	if err := s.config.Limiter.Check(ctx, q.batch); err != nil {
		q.batch.Release()
		return nil, err
	}
	return &answer{batch: q.batch, id: q.id}, nil
}

// reset serves Reset.
func (s *Server) reset(ctx context.Context, q *question) (any, error) {
	b := q.batch
	defer b.Release()
	pass, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	if q.fault != nil {
		return nil, statusOf(q.fault)
	}
	s.label(ctx, b)
	for i := range b.Checks {
		b.Checks[i].Verb = bucket.Reset
	}
	if rejected := pass.Restrict(b); rejected != nil {
		return nil, statusOf(rejected)
	}
	if err := s.config.Limiter.Reset(ctx, b); err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.ResetResponse{Decisions: make([]*sluicev1.Decision, len(b.Results))}
	for i := range b.Results {
		r := &b.Results[i]
		d := &sluicev1.Decision{Rule: r.RuleName()}
		if r.Err != nil {
			d.Error = errorAt(r.Err, i)
		} else {
			d.Source, d.Owner = sluicev1.Source(r.Source), r.Owner
		}
		res.Decisions[i] = d
	}
	return res, nil
}

// ReportLoad implements sluicev1.SluiceServiceServer.
func (s *Server) ReportLoad(ctx context.Context, req *sluicev1.ReportLoadRequest) (*sluicev1.ReportLoadResponse, error) {
	if _, err := s.authorize(ctx, access.Charge, req.GetDomain()); err != nil {
		return nil, err
	}
	l, err := s.config.Limiter.ReportLoad(ctx, limiter.LoadReport{
		Domain: req.GetDomain(), Pool: req.GetPool(), Load: req.GetLoad(), Reporter: req.GetReporter(),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ReportLoadResponse{Load: l.Load, ExpiresNs: int64(l.Expires)}, nil
}
