package grpcapi

import (
	"context"
	"slices"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/grpc"
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
	q.batch.API = limiter.GRPCAPI
	if s.tracing {
		q.batch.Traceparent = transport.Traceparent(ctx)
	}
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected != nil {
		q.batch.Release()
		return nil, statusOf(rejected)
	}
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
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	if e := limiter.CountFault(len(req.GetChecks())); e != nil {
		return nil, statusOf(e)
	}
	b := limiter.NewBatch()
	defer b.Release()
	b.API = limiter.GRPCAPI
	if s.tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
	fill(b, req.GetChecks())
	for i := range b.Checks {
		b.Checks[i].Verb = bucket.Reset
	}
	if rejected := pass.Restrict(b); rejected != nil {
		return nil, statusOf(rejected)
	}
	if err := s.limiter.Reset(ctx, b); err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ResetResponse{Decisions: resets(b)}, nil
}

// fill adds checks to b. What the wire can say and a limiter.Check cannot
// becomes the check's Fault.
func fill(b *limiter.Batch, checks []*sluicev1.Check) {
	for _, p := range checks {
		c := b.Add()
		c.Domain = p.GetDomain()
		entries := p.GetDescriptor_()
		// One too many is enough for it to be rejected.
		for _, e := range entries[:min(len(entries), limiter.MaxEntries+1)] {
			c.Descriptor = append(c.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if p != nil && p.Cost != nil {
			c.Cost = *p.Cost
		}
		setVerb(c, int32(p.GetVerb()))
		limits := p.GetLimits()
		for i, l := range limits[:min(len(limits), bucket.MaxLimits+1)] {
			addLimit(c, i, l)
		}
	}
}

// resets returns what became of the counters of b, one per check.
func resets(b *limiter.Batch) []*sluicev1.Decision {
	out, list := blank(len(b.Results))
	for i := range b.Results {
		r, d := &b.Results[i], &list[i]
		d.Rule = r.RuleName()
		if r.Err != nil {
			d.Error = errorAt(r.Err, i)
			continue
		}
		d.Source, d.Owner = sluicev1.Source(r.Source), r.Owner
	}
	return out
}

// blank returns n decisions in one piece of memory, and pointers to them.
func blank(n int) ([]*sluicev1.Decision, []sluicev1.Decision) {
	list := make([]sluicev1.Decision, n)
	out := make([]*sluicev1.Decision, n)
	for i := range list {
		out[i] = &list[i]
	}
	return out, list
}

// ReportLoad implements sluicev1.SluiceServiceServer.
func (s *Server) ReportLoad(ctx context.Context, req *sluicev1.ReportLoadRequest) (*sluicev1.ReportLoadResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.May(access.Charge, req.GetDomain())
	}
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	l, err := s.limiter.ReportLoad(ctx, limiter.LoadReport{
		Domain: req.GetDomain(), Pool: req.GetPool(), Load: req.GetLoad(), Reporter: req.GetReporter(),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ReportLoadResponse{Load: l.Load, ExpiresNs: int64(l.Expires)}, nil
}
