package transport

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"
)

func TestTraceparentOfMetadata(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		ctx  context.Context
		want string
	}{
		{ctx, ""},
		{metadata.NewIncomingContext(ctx, metadata.Pairs("tracestate", "x")), ""},
		{metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "a")), "a"},
		{metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "a", "traceparent", "b")), ""},
		{WithTraceparent(ctx, "c"), "c"},
	} {
		if got := Traceparent(c.ctx); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
