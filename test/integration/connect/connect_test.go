package connect

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluicecluster/sluice/client/httplimit"
	"github.com/sluicecluster/sluice/client/limit"
)

// none denies everything.
type none struct{ limit.Limiter }

func (none) Check(context.Context, limit.Check) (limit.Decision, error) {
	return limit.Decision{Verdict: limit.VerdictDenied, RetryAfter: 1}, nil
}

// TestDenied: a client of each protocol gets resource_exhausted, from each kind of call.
func TestDenied(t *testing.T) {
	limits := httplimit.Middleware(none{}, httplimit.Config{Domain: "shop", Keys: []httplimit.Key{httplimit.IP()}})
	server := httptest.NewUnstartedServer(limits(http.NotFoundHandler()))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols.SetHTTP1(true)
	server.Start()
	defer server.Close()
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	both := map[string]*http.Client{"HTTP/1.1": server.Client(), "HTTP/2": {Transport: &http.Transport{Protocols: h2}}}
	for name, options := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
		"Connect with GET": {connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects)},
	} {
		for version, web := range both {
			c := connect.NewClient[emptypb.Empty, emptypb.Empty](web, server.URL+"/shop.v1.Orders/Create", options...)
			stream := func() error {
				s, err := c.CallServerStream(t.Context(), connect.NewRequest(&emptypb.Empty{}))
				if err != nil {
					return err
				}
				for s.Receive() {
					t.Error("a message of a denied stream")
				}
				_ = s.Close()
				return s.Err()
			}
			calls := map[string]func() error{
				"a call": func() error {
					_, err := c.CallUnary(t.Context(), connect.NewRequest(&emptypb.Empty{}))
					return err
				},
				"a stream of responses": stream,
				"a stream of requests": func() error {
					s := c.CallClientStream(t.Context())
					_, err := s.CloseAndReceive()
					return err
				},
			}
			if version == "HTTP/2" {
				calls["a stream both ways"] = func() error {
					s := c.CallBidiStream(t.Context())
					_ = s.CloseRequest()
					_, err := s.Receive()
					_ = s.CloseResponse()
					return err
				}
			}
			for kind, call := range calls {
				if name == "gRPC" && version == "HTTP/1.1" {
					continue // gRPC needs HTTP/2
				}
				err := call()
				e := new(connect.Error)
				if !errors.As(err, &e) || e.Code() != connect.CodeResourceExhausted || e.Message() != "the rate limit is exceeded" {
					t.Errorf("%s, %s, %s: %v", name, version, kind, err)
				}
			}
		}
	}
}
