package limiter

import "github.com/sluicecluster/sluice/internal/tracing"

// startSpan begins the span of a call; most have none.
func (l *Limiter) startSpan(b *Batch) *tracing.Span {
	if l.config.Tracer == nil {
		return nil
	}
	span := l.config.Tracer.Call("sluice.check", b.Traceparent)
	b.queued.Trace = span.Trace()
	return span
}

// endSpan ends the span of a decided call. It has no values of descriptors.
func (b *Batch) endSpan(span *tracing.Span) {
	if span == nil {
		return
	}
	span.Text("sluice.api", b.API.String())
	span.Int("sluice.checks", int64(len(b.Checks)))
	if len(b.Checks) == 1 {
		b.noteOne(span)
	} else {
		b.noteMany(span)
	}
	span.End()
}

func (b *Batch) noteOne(span *tracing.Span) {
	c, r := &b.Checks[0], &b.Results[0]
	span.Text("sluice.domain", c.Domain)
	span.Text("sluice.verb", c.Verb.String())
	span.Int("sluice.hits", c.Cost)
	if name := r.RuleName(); name != "" {
		span.Text("sluice.rule", name)
	}
	span.Text("sluice.result", r.resultName())
	if r.Err != nil {
		if r.Err.Code == Unavailable || r.Err.Code == Overloaded {
			span.Fail(r.Err.Code.String())
		}
		return
	}
	if r.Source != 0 {
		span.Text("sluice.source", r.Source.String())
	}
	if r.Owner != "" {
		span.Text("sluice.owner", r.Owner)
	}
}

// resultName is the result in the words of metrics; of an error, its code.
func (r *Result) resultName() string {
	switch {
	case r.Err != nil:
		return r.Err.Code.String()
	case r.Shadowed:
		return "shadowed"
	case r.Allowed:
		return "allowed"
	}
	return "denied"
}

func (b *Batch) noteMany(span *tracing.Span) {
	var all Results
	failed := Code(0)
	domain := b.Checks[0].Domain
	for i := range b.Results {
		r := &b.Results[i]
		all[resultOf(&b.Checks[i], r)]++
		if r.Err != nil && (r.Err.Code == Unavailable || r.Err.Code == Overloaded) {
			failed = r.Err.Code
		}
		if b.Checks[i].Domain != domain {
			domain = ""
		}
	}
	if domain != "" {
		span.Text("sluice.domain", domain)
	}
	span.Count("sluice.allowed", int(all.passed()))
	span.Count("sluice.denied", int(all[ResultDenied]))
	span.Count("sluice.shadowed", int(all[ResultShadowed]))
	span.Count("sluice.errors", int(all[ResultError]))
	if failed != 0 {
		span.Fail(failed.String())
	}
}
