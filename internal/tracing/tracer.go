// Package tracing records what becomes of a few calls, as spans of OpenTelemetry: at the API that a
// call came in by, for each time that it is forwarded, and at the node that holds the key.
//
// It decides which calls are recorded, and does so before anything is allocated, because most are
// not. Where spans go to is the TracerProvider's business, and what is said of a call the business
// of whoever ends its span; values of descriptors are never said. It starts no goroutine.
//
// A nil *Tracer and a nil *Span record nothing, so that callers need no second path.
package tracing

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/internal/check"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Config says which calls are recorded.
type Config struct {
	// Provider makes the spans. It must record all that it is asked for. Required.
	Provider oteltrace.TracerProvider
	// Share of the calls are recorded, 0 to 1, of those whose callers do not say.
	Share float64
	// Callers is how many calls a second are recorded at most because their callers record them; 0 or more. Those
	// on top are recorded by Share, as if their callers had not said so. With 0 nothing that callers
	// say counts, else one who says that it does not record is followed too.
	Callers int
	// Clock is the time since any fixed moment. nil means the monotonic clock.
	Clock func() time.Duration
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Provider == nil:
		return errors.New("tracing: Provider is required")
	case !(c.Share >= 0 && c.Share <= 1):
		return fmt.Errorf("tracing: Share: %v is not between 0 and 1", c.Share)
	case c.Callers < 0:
		return fmt.Errorf("tracing: Callers: %d is below 0", c.Callers)
	}
	return nil
}

// Tracer begins spans. It is safe for concurrent use.
type Tracer struct {
	tracer oteltrace.Tracer
	// bound is what 63 random bits are below if the call is recorded by Share.
	bound   uint64
	callers pace
	trust   bool
	clock   func() time.Duration
}

// scope is the name of this instrumentation.
const scope = "github.com/sluice-project/sluice"

// New returns a Tracer.
func New(c Config) (*Tracer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Clock == nil {
		began := time.Now()
		c.Clock = func() time.Duration { return time.Since(began) }
	}
	t := &Tracer{tracer: c.Provider.Tracer(scope), trust: c.Callers > 0, clock: c.Clock}
	if c.Share == 1 {
		t.bound = 1 << 63
	} else {
		t.bound = uint64(c.Share * math.MaxInt64)
	}
	if t.trust {
		t.callers.until.Store(math.MinInt64)
		t.callers.every = max(1, time.Second/time.Duration(c.Callers))
	}
	return t, nil
}

// Call begins the span of a call, whose caller has sent traceparent, a W3C Trace Context, "" for
// none. What is no traceparent counts as none. It returns nil, and allocates nothing, for a
// call that is not recorded.
func (t *Tracer) Call(name, traceparent string) *Span {
	if t == nil {
		return nil
	}
	var p parent
	if traceparent == "" || !p.read(traceparent) {
		// #nosec G404 -- which checks are traced
		if rand.Uint64()>>1 >= t.bound {
			return nil
		}
		return t.start(context.Background(), name, oteltrace.SpanKindServer)
	}
	if !t.follows(&p) {
		return nil
	}
	return t.start(p.context(), name, oteltrace.SpanKindServer)
}

// follows reports whether a call whose caller is in p's trace is recorded. By Share all nodes decide
// alike on one trace.
func (t *Tracer) follows(p *parent) bool {
	if t.trust && (!p.sampled || t.callers.take(t.clock())) {
		return p.sampled
	}
	return binary.BigEndian.Uint64(p.trace[8:])>>1 < t.bound
}

// Ask begins the span of what is asked of another node for at, and Answer that of what this node
// does for another one's. They return nil if at is nil.
func (t *Tracer) Ask(name string, at *check.Trace) *Span {
	return t.below(name, at, oteltrace.SpanKindClient)
}

// Answer is described at Ask.
func (t *Tracer) Answer(name string, at *check.Trace) *Span {
	return t.below(name, at, oteltrace.SpanKindServer)
}

func (t *Tracer) below(name string, at *check.Trace, kind oteltrace.SpanKind) *Span {
	if t == nil || at == nil {
		return nil
	}
	p := parent{trace: at.ID, span: at.Span}
	return t.start(p.context(), name, kind)
}

func (t *Tracer) start(ctx context.Context, name string, kind oteltrace.SpanKind) *Span {
	_, s := t.tracer.Start(ctx, name, oteltrace.WithSpanKind(kind))
	c := s.SpanContext()
	return &Span{span: s, at: check.Trace{ID: c.TraceID(), Span: c.SpanID()}}
}

// Span is something that is being recorded. It must be ended, once.
type Span struct {
	span oteltrace.Span
	at   check.Trace
}

// Trace returns the place of s, which what happens for its sake goes below; nil if s is nil.
func (s *Span) Trace() *check.Trace {
	if s == nil {
		return nil
	}
	return &s.at
}

// maxText bounds a text that is recorded, in bytes.
const maxText = 256

// Text notes a text, as far as its first 256 bytes go. It must hold no value of a descriptor.
func (s *Span) Text(key, value string) {
	if s != nil {
		s.span.SetAttributes(attribute.String(key, value[:min(len(value), maxText)]))
	}
}

// Int notes a number.
func (s *Span) Int(key string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Count notes a number that is not 0.
func (s *Span) Count(key string, n int) {
	if n != 0 {
		s.Int(key, int64(n))
	}
}

// Fail says that it went wrong, and why. A denial is nothing wrong.
func (s *Span) Fail(why string) {
	if s != nil {
		s.span.SetStatus(codes.Error, why[:min(len(why), maxText)])
	}
}

// End ends s.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}

// parent is the span, of whoever asks, that another goes below.
type parent struct {
	trace   [16]byte
	span    [8]byte
	sampled bool
}

// Form of a traceparent: version, trace, span and flags in hex digits, with dashes between.
const (
	versionEnd = 2
	traceEnd   = versionEnd + 1 + 32
	spanEnd    = traceEnd + 1 + 16
	flagsEnd   = spanEnd + 1 + 2
)

// read reads a traceparent, by version 00 of W3C Trace Context and as far as that allows by later ones.
func (p *parent) read(text string) bool {
	if len(text) < flagsEnd || text[versionEnd] != '-' || text[traceEnd] != '-' || text[spanEnd] != '-' {
		return false
	}
	var version, flags [1]byte
	if !unhex(version[:], text[:versionEnd]) || version[0] == 0xff {
		return false
	}
	if len(text) > flagsEnd && (version[0] == 0 || text[flagsEnd] != '-') {
		return false
	}
	if !unhex(p.trace[:], text[versionEnd+1:traceEnd]) || !unhex(p.span[:], text[traceEnd+1:spanEnd]) || !unhex(flags[:], text[spanEnd+1:flagsEnd]) {
		return false
	}
	p.sampled = flags[0]&1 != 0
	return p.trace != [16]byte{} && p.span != [8]byte{}
}

// unhex reads lower-case hex digits, two for each byte of to.
func unhex(to []byte, text string) bool {
	for i := range to {
		high, low := digit(text[2*i]), digit(text[2*i+1])
		if high > 15 || low > 15 {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

// digit returns the value of a lower-case hex digit, more than 15 for what is none.
func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// context is what a span below p is started in.
func (p *parent) context() context.Context {
	return oteltrace.ContextWithRemoteSpanContext(context.Background(), oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: p.trace, SpanID: p.span, TraceFlags: oteltrace.FlagsSampled, Remote: true,
	}))
}

// pace admits one in every, and what a second has left over. every and until are set before it is used.
type pace struct {
	every time.Duration
	// until is when all that was admitted is used up.
	until atomic.Int64
}

func (p *pace) take(now time.Duration) bool {
	for {
		until := p.until.Load()
		next := max(until, int64(now-time.Second)) + int64(p.every)
		if next > int64(now) {
			return false
		}
		if p.until.CompareAndSwap(until, next) {
			return true
		}
	}
}
