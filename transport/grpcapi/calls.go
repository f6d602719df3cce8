package grpcapi

import (
	"context"
	"slices"

	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/grpc"
)

// serviceDesc is the generated one, except that the hot calls decode to question and encode from answer.
func serviceDesc() *grpc.ServiceDesc {
	d := sluicev1.RateLimitService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "Check" {
			d.Methods[i].Handler = checkHandler
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

// checkHandler is the grpc.MethodHandler of Check.
func checkHandler(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	q := new(question)
	if err := decode(q); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, q any) (any, error) { return srv.(*Server).checkOnce(ctx, q.(*question)) }
	if interceptor == nil {
		return handle(ctx, q)
	}
	return interceptor(ctx, q, &grpc.UnaryServerInfo{Server: srv, FullMethod: sluicev1.RateLimitService_Check_FullMethodName}, handle)
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
	a, err := s.check(ctx, q, &pass)
	if err != nil {
		return nil, statusOf(err)
	}
	return a, nil
}

// label notes the API and the trace of a call.
func (s *Server) label(ctx context.Context, b *limiter.Batch) {
	b.API, b.Traceparent = limiter.GRPCAPI, s.traceparent(ctx)
}

// traceparent returns the trace of a call, "" if traces are not read.
func (s *Server) traceparent(ctx context.Context) string {
	if !s.config.Tracing {
		return ""
	}
	return transport.Traceparent(ctx)
}

// check decides one request, of a call or of a stream, as far as pass goes. The question is used up.
func (s *Server) check(ctx context.Context, q *question, pass *access.Pass) (*answer, error) {
	if q.fault != nil {
		q.batch.Release()
		return nil, q.fault
	}
	if s.config.Tracing && q.traceparent != "" && len(q.traceparent) <= maxTraceparent {
		q.batch.Traceparent = q.traceparent
	}
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	a := &answer{batch: q.batch, id: q.id}
	var err error
	if q.lease == nil {
		err = s.config.Limiter.Check(ctx, q.batch)
	} else {
		a.lease, err = s.lease(ctx, q, pass)
	}
	if err != nil {
		q.batch.Release()
		return nil, err
	}
	return a, nil
}

// Nodes implements sluicev1.RateLimitServiceServer.
func (s *Server) Nodes(ctx context.Context, _ *sluicev1.NodesRequest) (*sluicev1.NodesResponse, error) {
	if _, rejected := s.config.Guard.Call(ctx, limiter.GRPCAPI); rejected != nil {
		return nil, statusOf(rejected)
	}
	m := s.config.Limiter.Members(ctx)
	res := &sluicev1.NodesResponse{Self: m.Self, CheckTimeoutNs: int64(s.config.CheckTimeout), Features: limiter.Features}
	for i := range m.Members {
		if x := &m.Members[i]; x.Serves() {
			res.Nodes = append(res.Nodes, &sluicev1.Node{Name: x.Name, GrpcAddress: x.GRPC, HttpAddress: x.HTTP, Zone: x.Zone})
		}
	}
	return res, nil
}

// ReportLoad implements sluicev1.RateLimitServiceServer.
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
