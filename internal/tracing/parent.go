package tracing

import (
	"context"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
)

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
