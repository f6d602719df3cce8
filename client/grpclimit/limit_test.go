package grpclimit

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-project/sluice/client"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// asked answers as f says, and remembers.
type asked struct {
	f    func(c client.Check) (client.Decision, error)
	list []client.Check
}

func (a *asked) Check(_ context.Context, c client.Check) (client.Decision, error) {
	a.list = append(a.list, c)
	return a.f(c)
}

func (a *asked) Wait(ctx context.Context, c client.Check) (client.Decision, error) {
	return a.Check(ctx, c)
}

// first admits n checks.
func first(n int) *asked {
	a := &asked{}
	a.f = func(client.Check) (client.Decision, error) {
		if len(a.list) > n {
			return client.Decision{RetryAfter: 3 * time.Second, Rule: "shop/method"}, nil
		}
		return client.Decision{Allowed: true}, nil
	}
	return a
}

// service is any service with a unary call and a stream.
type service struct {
	sluicev1.UnimplementedRateLimitServiceServer
}

func (service) Nodes(context.Context, *sluicev1.NodesRequest) (*sluicev1.NodesResponse, error) {
	return &sluicev1.NodesResponse{Self: "here"}, nil
}

func (service) CheckStream(s grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&sluicev1.CheckResponse{Id: r.Id}); err != nil {
			return err
		}
	}
}

func connect(t *testing.T, server []grpc.ServerOption, caller []grpc.DialOption) sluicev1.RateLimitServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer(server...)
	sluicev1.RegisterRateLimitServiceServer(g, service{})
	go g.Serve(l)
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", append(caller, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return sluicev1.NewRateLimitServiceClient(conn)
}

func serverOf(t *testing.T, s Server) []grpc.ServerOption {
	t.Helper()
	unary, err := s.Unary()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.Stream()
	if err != nil {
		t.Fatal(err)
	}
	return []grpc.ServerOption{grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)}
}

// TestServer: a call that is denied never reaches its handler, and says when to come back.
func TestServer(t *testing.T) {
	a := first(1)
	api := connect(t, serverOf(t, Server{Checker: a, Domain: "shop", Key: Keys(Method(), Metadata("user", "x-user"))}), nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", "anna")
	if _, err := api.Nodes(ctx, &sluicev1.NodesRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := a.list[0]; got.Domain != "shop" || got.Descriptor[0].Value != "/sluice.v1.RateLimitService/Nodes" || got.Descriptor[1] != client.KV("user", "anna") {
		t.Errorf("asked %+v", got)
	}
	_, err := api.Nodes(ctx, &sluicev1.NodesRequest{})
	st := status.Convert(err)
	var retry *errdetails.RetryInfo
	var quota *errdetails.QuotaFailure
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		}
	}
	if st.Code() != codes.ResourceExhausted || retry.GetRetryDelay().AsDuration() != 3*time.Second || quota.GetViolations()[0].GetSubject() != "shop/method" {
		t.Errorf("%v, %v, %v", err, retry, quota)
	}
	if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil || len(a.list) != 2 {
		t.Errorf("without a user: %v, asked %d times", err, len(a.list))
	}
}

// TestServerStream: a stream counts once, or each of its messages does.
func TestServerStream(t *testing.T) {
	for _, each := range []bool{false, true} {
		a := first(2)
		api := connect(t, serverOf(t, Server{Checker: a, Domain: "shop", Key: Method(), EachMessage: each}), nil)
		s, err := api.CheckStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		answers := 0
		for range 4 {
			if s.Send(&sluicev1.CheckRequest{}) != nil {
				break
			}
			if _, err = s.Recv(); err != nil {
				break
			}
			answers++
		}
		if want := map[bool]int{false: 4, true: 2}[each]; answers != want {
			t.Errorf("each message %v: %d answers, want %d: %v", each, answers, want, err)
		}
		if each && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	}
}

// TestServerErrors: the limit is not worth an outage, unless its owner says so.
func TestServerErrors(t *testing.T) {
	failing := &asked{f: func(client.Check) (client.Decision, error) { return client.Decision{}, client.ErrClosed }}
	for _, closed := range []bool{false, true} {
		api := connect(t, serverOf(t, Server{Checker: failing, Domain: "shop", Key: Method(), FailClosed: closed}), nil)
		_, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{})
		if want := map[bool]codes.Code{false: codes.OK, true: codes.Unavailable}[closed]; status.Code(err) != want {
			t.Errorf("closed %v: %v", closed, err)
		}
	}
}

// TestClient: a call goes out once it is admitted, or fails as a server's rejection would.
func TestClient(t *testing.T) {
	a := &asked{f: func(client.Check) (client.Decision, error) { return client.Decision{Allowed: true}, nil }}
	c := Client{Waiter: a, Domain: "out", Key: Method(), EachMessage: true, Cost: func(context.Context, string) int64 { return 2 }}
	unary, err := c.Unary()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.Stream()
	if err != nil {
		t.Fatal(err)
	}
	api := connect(t, nil, []grpc.DialOption{grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream)})
	if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil || len(a.list) != 1 || a.list[0].Cost != 2 {
		t.Errorf("%v, asked %+v", err, a.list)
	}
	s, err := api.CheckStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Send(&sluicev1.CheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.list) != 4 {
		t.Errorf("a stream of three messages asked %d times, want 3", len(a.list)-1)
	}
	for cause, want := range map[error]codes.Code{
		client.ErrNever: codes.ResourceExhausted, client.ErrWouldExceedDeadline: codes.ResourceExhausted, client.ErrClosed: codes.Unavailable,
	} {
		a.f = func(client.Check) (client.Decision, error) { return client.Decision{}, cause }
		if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); status.Code(err) != want {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// TestPaced: a message that is not admitted ends its stream, and the server learns it.
func TestPaced(t *testing.T) {
	a := first(2)
	check := a.f
	a.f = func(c client.Check) (client.Decision, error) {
		if d, err := check(c); err != nil || d.Allowed {
			return d, err
		}
		return client.Decision{}, client.ErrWouldExceedDeadline
	}
	stream, err := Client{Waiter: a, Domain: "out", Key: Method(), EachMessage: true}.Stream()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	api := connect(t, []grpc.ServerOption{grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		err := h(srv, s)
		select {
		case <-s.Context().Done(): // a reset fails what the handler does a moment before it ends the context
		case <-time.After(10 * time.Second):
		}
		ended <- s.Context().Err()
		return err
	})}, []grpc.DialOption{grpc.WithStreamInterceptor(stream)})
	s, err := api.CheckStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Send(&sluicev1.CheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send(&sluicev1.CheckRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the server's stream did not end with the client's")
	}
}

// TestServerWaits: a denied call waits as long as it may.
func TestServerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asked{}
		a.f = func(client.Check) (client.Decision, error) {
			if len(a.list) == 1 {
				return client.Decision{RetryAfter: time.Second}, nil
			}
			return client.Decision{Allowed: true, Delay: time.Second}, nil
		}
		unary, err := Server{Checker: a, Domain: "shop", Key: Method(), MaxWait: 3 * time.Second}.Unary()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(context.Context, any) (any, error) { return nil, nil })
		if took := time.Since(began); err != nil || took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		_, err = Server{Checker: a, Domain: "shop", Key: Method(), MaxWait: -1}.Unary()
		if err == nil || !strings.Contains(err.Error(), "MaxWait") {
			t.Errorf("%v", err)
		}
	})
}

// TestQueueRejected: who never waits is rejected what a queue would have wait.
func TestQueueRejected(t *testing.T) {
	a := &asked{f: func(client.Check) (client.Decision, error) {
		return client.Decision{Allowed: true, Delay: time.Second}, nil
	}}
	api := connect(t, serverOf(t, Server{Checker: a, Domain: "shop", Key: Method()}), nil)
	if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}

// TestStrange: odd values are asked as they are, since the client takes any. If they made the check fail, to send one would be a
// way around the limit.
func TestStrange(t *testing.T) {
	a := first(0)
	api := connect(t, serverOf(t, Server{Checker: a, Domain: "shop", Key: Metadata("user", "x-user-bin")}), nil)
	for _, user := range []string{strings.Repeat("x", 1025), "anna\xff"} {
		_, err := api.Nodes(metadata.AppendToOutgoingContext(t.Context(), "x-user-bin", user), &sluicev1.NodesRequest{})
		v := a.list[len(a.list)-1].Descriptor[0].Value
		if status.Code(err) != codes.ResourceExhausted || v != user {
			t.Errorf("%.10q: %v, asked as %q", user, err, v)
		}
	}
}

// TestPeer: the connection's address, IPv6 by its /64, and behind a trusted proxy the one before it.
func TestPeer(t *testing.T) {
	proxy := netip.MustParsePrefix("10.0.0.0/8")
	for _, c := range []struct{ addr, forwarded, want string }{
		{"192.0.2.7:99", "", "192.0.2.7"}, {"[2001:db8:1:2:3::4]:99", "", "2001:db8:1:2::"}, {"bufconn", "", ""},
		{"192.0.2.7:99", "1.1.1.1", "192.0.2.7"}, {"10.0.0.1:99", "1.1.1.1, 192.0.2.7", "192.0.2.7"},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address(c.addr)})
		if c.forwarded != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-forwarded-for", c.forwarded))
		}
		entries, ok := Peer(proxy)(ctx, "/x")
		if ok != (c.want != "") || ok && entries[0] != client.KV("ip", c.want) {
			t.Errorf("%s: %v, %v", c.addr, entries, ok)
		}
	}
}

// TestKeys: what each makes of a call.
func TestKeys(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("who", "anna", "key", "secret"))
	for name, c := range map[string]struct {
		key  Key
		want []client.Entry
	}{
		"method":   {Method(), []client.Entry{{Key: "method", Value: "/x"}}},
		"metadata": {Metadata("user", "who"), []client.Entry{{Key: "user", Value: "anna"}}},
		"user":     {User(func(context.Context) string { return "u" }), []client.Entry{{Key: "user", Value: "u"}}},
		"api key":  {APIKey("key"), []client.Entry{{Key: "api_key", Value: "2bb80d537b1da3e38bd30361aa855686"}}},
		"no key":   {APIKey("none"), nil},
		"renamed":  {Method().As("call"), []client.Entry{{Key: "call", Value: "/x"}}},
		"first":    {First(Metadata("a", "none"), Method()), []client.Entry{{Key: "method", Value: "/x"}}},
		"joined":   {Keys(Method(), Value("a", "b")), []client.Entry{{Key: "method", Value: "/x"}, {Key: "a", Value: "b"}}},
		"missing":  {Keys(Method(), Metadata("a", "none")), nil},
	} {
		if got, ok := c.key(ctx, "/x"); ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, c.want)
		}
	}
}

// TestOutgoing: a call that is made while another is served is asked by its own metadata, not by that one's.
func TestOutgoing(t *testing.T) {
	a := first(9)
	unary, err := Client{Waiter: a, Domain: "out", Key: First(Peer(), Metadata("user", "x-user"))}.Unary()
	if err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "caller")), &peer.Peer{Addr: address("192.0.2.7:99")})
	ctx = metadata.AppendToOutgoingContext(ctx, "x-user", "we")
	err = unary(ctx, "/x", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil })
	if err != nil || len(a.list) != 1 || a.list[0].Descriptor[0] != client.KV("user", "we") {
		t.Errorf("%v, asked %v", err, a.list)
	}
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// TestRequired: what is missing is named.
func TestRequired(t *testing.T) {
	for want, s := range map[string]Server{
		"Checker": {Domain: "d", Key: Method()}, "Domain": {Checker: first(1), Key: Method()}, "Key": {Checker: first(1), Domain: "d"},
	} {
		if _, err := s.Unary(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := (Client{}).Stream(); err == nil || errors.Is(err, client.ErrClosed) {
		t.Errorf("%v", err)
	}
}
