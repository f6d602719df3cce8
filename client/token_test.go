package sluice

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/client/internal/config"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// guarded is a node that takes no token.
type guarded struct {
	sluicev1.UnimplementedRateLimitServiceServer
	shown chan string
}

func (g *guarded) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	values := metadata.ValueFromIncomingContext(stream.Context(), "authorization")
	g.shown <- strings.Join(values, "|")
	return status.Error(codes.Unauthenticated, "not you")
}

// late is a stream on which nothing is sent before the node has said something.
type late struct{ grpc.ClientStream }

func (l late) SendMsg(m any) error {
	if _, err := l.Header(); err != nil {
		return err
	}
	return l.ClientStream.SendMsg(m)
}

func TestReadySaysThatCredentialsAreRejected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	g := &guarded{shown: make(chan string, 10)}
	server := grpc.NewServer()
	sluicev1.RegisterRateLimitServiceServer(server, g)
	go server.Serve(l)
	defer server.Stop()
	// A node that rejects at once may have ended the stream before anything is sent on it.
	overtaken := grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		return late{s}, err
	})
	dial := func(list ...grpc.DialOption) Option {
		return func(o *config.Options) error { o.Dial = append(o.Dial, list...); return nil }
	}
	for _, o := range []Option{dial(), dial(overtaken)} {
		c, err := New(l.Addr().String(), WithToken(Token("secret")), o)
		do(t, err)
		err = c.Ready(t.Context())
		if !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "not you") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want ErrUnauthenticated and what the node said", err)
		}
		if got := <-g.shown; got != "Bearer secret" {
			t.Errorf("shown: %q", got)
		}
		c.Close()
	}
}
