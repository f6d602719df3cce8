package transport

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// HeaderTraceparent is the header of HTTP, and in lower case the metadata of gRPC, in which callers
// say what trace a call is part of.
const (
	HeaderTraceparent   = "Traceparent"
	metadataTraceparent = "traceparent"
)

// Traceparent returns what the caller of a gRPC call says of its trace, "" for nothing. A stream's
// is of the stream and not of the requests in it.
func Traceparent(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, metadataTraceparent); len(values) == 1 {
		return values[0]
	}
	return ""
}

// WithTraceparent returns a context of which Traceparent returns text.
func WithTraceparent(ctx context.Context, text string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs(metadataTraceparent, text))
}
