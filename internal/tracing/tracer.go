// Package tracing records a few calls as OpenTelemetry spans: at the API of the call, for each time that it is forwarded, and at
// the owner of the key.
//
// It decides which calls are recorded before anything is allocated, because most are not. The TracerProvider decides where
// spans go. They never contain values of descriptors. It starts no goroutine.
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
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Config selects the calls that are recorded.
type Config struct {
	// Provider makes the spans and must record all of them. Required.
	Provider oteltrace.TracerProvider
	// Share is the part of the calls that is recorded, 0 to 1, of those whose callers make no decision.
	Share float64
	// Callers is the most calls a second, 0 or more, that are recorded because their callers record them. Those on top are
	// recorded by Share. With 0 the caller's decision has no effect; else a call whose caller does not record it is not
	// recorded either.
	Callers int
	// Clock is the time since any fixed moment. nil means the monotonic clock.
	Clock func() time.Duration
}

// Validate reports the first invalid field.
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
	tracer  oteltrace.Tracer
	bound   uint64 // a call is recorded by Share if 63 random bits are below it
	callers pace
	trust   bool
	clock   func() time.Duration
}

// scope is the name of this instrumentation.
const scope = "github.com/sluicecluster/sluice"

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

// Call begins the span of a call with a traceparent (W3C Trace Context), "" for none; an invalid one counts as none. For a call
// that is not recorded it returns nil and allocates nothing.
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

// follows reports whether a call in p's trace is recorded. By Share all nodes decide alike on one trace.
func (t *Tracer) follows(p *parent) bool {
	if t.trust && (!p.sampled || t.callers.take(t.clock())) {
		return p.sampled
	}
	return binary.BigEndian.Uint64(p.trace[8:])>>1 < t.bound
}

// Ask begins the span of a request to another node for at, and Answer that of this node's work for another's. They return nil if
// at is nil.
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

// Span is a span in progress. It must be ended, once.
type Span struct {
	span oteltrace.Span
	at   check.Trace
}

// Trace returns the trace context of s, for spans below it; nil if s is nil.
func (s *Span) Trace() *check.Trace {
	if s == nil {
		return nil
	}
	return &s.at
}

// maxText bounds a text that is recorded, in bytes.
const maxText = 256

// Text sets a text attribute, of which it keeps 256 bytes. It must contain no value of a descriptor.
func (s *Span) Text(key, value string) {
	if s != nil {
		s.span.SetAttributes(attribute.String(key, value[:min(len(value), maxText)]))
	}
}

// Int sets a number attribute.
func (s *Span) Int(key string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Count sets a number attribute unless it is 0.
func (s *Span) Count(key string, n int) {
	if n != 0 {
		s.Int(key, int64(n))
	}
}

// Fail marks s as failed. A denial is no failure.
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

// parent is the caller's span.
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

// read parses a traceparent by version 00 of W3C Trace Context, and a later version as far as that allows.
func (p *parent) read(text string) bool {
	if len(text) < flagsEnd || text[versionEnd] != '-' || text[traceEnd] != '-' || text[spanEnd] != '-' {
		return false
	}
	version := hexByte(text[:versionEnd])
	flags := hexByte(text[spanEnd+1 : flagsEnd])
	if version < 0 || version == 0xff || flags < 0 || len(text) > flagsEnd && (version == 0 || text[flagsEnd] != '-') {
		return false
	}
	trace, err := oteltrace.TraceIDFromHex(text[versionEnd+1 : traceEnd])
	if err != nil {
		return false
	}
	span, err := oteltrace.SpanIDFromHex(text[traceEnd+1 : spanEnd])
	if err != nil {
		return false
	}
	*p = parent{trace: trace, span: span, sampled: flags&1 != 0}
	return true
}

// hexByte returns the value of two lower-case hex digits, below 0 for others.
func hexByte(text string) int {
	const digits = "0123456789abcdef"
	return strings.IndexByte(digits, text[0])<<4 | strings.IndexByte(digits, text[1])
}

// context is the context of a span below p.
func (p *parent) context() context.Context {
	return oteltrace.ContextWithRemoteSpanContext(context.Background(), oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: p.trace, SpanID: p.span, TraceFlags: oteltrace.FlagsSampled, Remote: true,
	}))
}

// pace admits one call in every, with a burst of a second.
type pace struct {
	every time.Duration
	until atomic.Int64 // when the admitted calls are used up
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
