// Package tracing records what becomes of a few calls, as spans of OpenTelemetry: at the door that a
// call came in by, for each time that it is forwarded, and at the node that holds the key.
//
// It decides which calls are recorded, and does so before anything is allocated, because most are
// not. Where spans go to is the TracerProvider's business, and what is said of a call the business
// of whoever ends its span; values of descriptors are never said. It starts no goroutine.
//
// A nil *Tracer and a nil *Span record nothing, so that callers need no second path.
package tracing
