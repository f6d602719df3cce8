package client

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

func TestTokenStaysOffTheWire(t *testing.T) {
	secure := credentials.NewContextWithRequestInfo(t.Context(), credentials.RequestInfo{
		AuthInfo: credentials.TLSInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}})
	_, plainInfo, err := insecure.NewCredentials().ClientHandshake(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := credentials.NewContextWithRequestInfo(t.Context(), credentials.RequestInfo{AuthInfo: plainInfo})
	for _, c := range []struct {
		name    string
		ctx     context.Context
		uri     []string
		inClear bool
		shown   bool
	}{
		{"TLS", secure, []string{"https://192.0.2.1/s"}, false, true},
		{"plain text", plain, []string{"https://192.0.2.1:7460/s"}, false, false},
		{"plain text to a name", plain, []string{"https://sluice:7460/s"}, false, false},
		{"plain text to a name that begins well", plain, []string{"https://localhost.example/s"}, false, false},
		{"plain text to an unknown address", plain, nil, false, false},
		{"nothing known", t.Context(), []string{"https://192.0.2.1/s"}, false, false},
		{"loopback", plain, []string{"https://127.0.1.3:7460/s"}, false, true},
		{"loopback of IPv6", plain, []string{"https://[::1]:7460/s"}, false, true},
		{"localhost", plain, []string{"https://localhost/s"}, false, true},
		{"told to", plain, []string{"https://192.0.2.1:7460/s"}, true, true},
	} {
		md, err := TokenCredentials(Token("t"), c.inClear).GetRequestMetadata(c.ctx, c.uri...)
		if (err == nil) != c.shown || c.shown && md["authorization"] != "Bearer t" || !c.shown && len(md) > 0 {
			t.Errorf("%s: %v, %v", c.name, md, err)
		}
	}
	failing := func(context.Context) (string, error) { return "", errors.New("no key") }
	if md, err := TokenCredentials(failing, true).GetRequestMetadata(t.Context()); err == nil || md != nil {
		t.Errorf("of a source that fails: %v, %v", md, err)
	}
}

func TestTokenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		source := TokenFile(path)
		if _, err := source(t.Context()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without a file: %v", err)
		}
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tokenFileAge)
		}
		for _, c := range []struct{ text, want string }{
			{"", ""}, {"one two\n", ""}, {"\n", ""}, {strings.Repeat("x", maxTokenFile+1), ""},
			{"one\n", "one"}, {"", "one"}, {"  two", "two"}, {"two three", "two"}, {"three", "three"},
		} {
			write(c.text)
			got, err := source(t.Context())
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%.10q: %q, %v; want %q", c.text, got, err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "two") || strings.Contains(err.Error(), "xx")) {
				t.Errorf("the error has what is in the file: %v", err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tokenFileAge)
		if got, err := source(t.Context()); got != "three" || err != nil {
			t.Errorf("once the file is gone: %q, %v", got, err)
		}
	})
}

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

func TestDialSaysThatCredentialsAreRejected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	for _, o := range []Option{WithDialOptions(), WithDialOptions(overtaken)} {
		_, err = Dial(t.Context(), l.Addr().String(), WithToken(Token("secret")), o)
		if !errors.Is(err, ErrCredentials) || !strings.Contains(err.Error(), "not you") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want ErrCredentials and what the node said", err)
		}
		if got := <-g.shown; got != "Bearer secret" {
			t.Errorf("shown: %q", got)
		}
	}
	if _, err := Dial(t.Context(), l.Addr().String(), WithToken(nil)); err == nil {
		t.Error("WithToken(nil) is no error")
	}
}
