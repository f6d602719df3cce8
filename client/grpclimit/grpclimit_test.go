package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
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

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// asked answers as f says, and remembers.
type asked struct {
	limit.Limiter
	f    func(c limit.Check) (limit.Decision, error)
	list []limit.Check
	// after are refunds and charges.
	after []limit.Check
}

func (a *asked) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	if c.Verb != limit.VerbCheck {
		a.after = append(a.after, c)
		return limit.Decision{Allowed: true}, nil
	}
	a.list = append(a.list, c)
	return a.f(c)
}

func (a *asked) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	all, err := a.CheckEach(ctx, checks...)
	return limit.NewBatch(all), err
}

func (a *asked) CheckEach(ctx context.Context, checks ...limit.Check) (all []limit.Decision, err error) {
	for _, c := range checks {
		d, e := a.Check(ctx, c)
		all, err = append(all, d), errors.Join(err, e)
	}
	return all, err
}

var admitted = limit.Decision{Allowed: true, Verdict: limit.VerdictAllowed, Counted: true}

// first admits n checks.
func first(n int) *asked {
	a := &asked{}
	a.f = func(limit.Check) (limit.Decision, error) {
		if len(a.list) > n {
			return limit.Decision{Verdict: limit.VerdictDenied, RetryAfter: 3 * time.Second, Rule: "shop/method", LimitName: "burst", Counted: true}, nil
		}
		return admitted, nil
	}
	return a
}

// config is one of a key.
func config(k Key) Config { return Config{Domain: "shop", Keys: []Key{k}} }

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
		if errors.Is(err, io.EOF) {
			return nil
		}
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
	do(t, err)
	t.Cleanup(func() { conn.Close() })
	return sluicev1.NewRateLimitServiceClient(conn)
}

func serverOf(l limit.Limiter, c Config) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(UnaryServer(l, c)), grpc.StreamInterceptor(StreamServer(l, c))}
}

func clientOf(l limit.Limiter, c Config) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithUnaryInterceptor(UnaryClient(l, c)), grpc.WithStreamInterceptor(StreamClient(l, c))}
}

// TestServer: a call that is denied never reaches its handler, and says when to come back.
func TestServer(t *testing.T) {
	a := first(1)
	api := connect(t, serverOf(a, config(Join(Method(), Metadata("user", "x-user")))), nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", "anna")
	if _, err := api.Nodes(ctx, &sluicev1.NodesRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := a.list[0]; got.Domain != "shop" || got.Descriptor[0].Value != "/sluice.v1.RateLimitService/Nodes" || got.Descriptor[1] != (limit.Entry{Key: "user", Value: "anna"}) {
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
	if st.Code() != codes.ResourceExhausted || retry.GetRetryDelay().AsDuration() != 3*time.Second || quota.GetViolations()[0].GetSubject() != "burst" {
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
		c := config(Method())
		c.EachMessage = each
		api := connect(t, serverOf(a, c), nil)
		s, err := api.CheckStream(t.Context())
		do(t, err)
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

// TestErrors: a call that could not be decided passes, which is logged, unless Failed says otherwise.
func TestErrors(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	failing := &asked{f: func(limit.Check) (limit.Decision, error) { return limit.Decision{}, limit.ErrForbidden }}
	c, info := config(Method()), &grpc.UnaryServerInfo{FullMethod: "/x"}
	handler := func(context.Context, any) (any, error) { return "hello", nil }
	unary := UnaryServer(failing, c)
	for range 3 {
		if got, err := unary(t.Context(), nil, info, handler); got != "hello" || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "forbidden") {
		t.Errorf("three failures were logged as %s", got)
	}
	for pass, want := range map[bool]codes.Code{true: codes.OK, false: codes.Unavailable} {
		c.Failed = func(_ context.Context, err error) bool { return errors.Is(err, limit.ErrForbidden) && pass }
		c.Denied = func(c Call, d limit.Decision) error {
			return status.Error(codes.Unavailable, c.Method+": "+d.Degraded.Error())
		}
		if _, err := UnaryServer(failing, c)(t.Context(), nil, info, handler); status.Code(err) != want {
			t.Errorf("pass %v: %v", pass, err)
		}
	}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithCancel(t.Context())
		if cause == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(t.Context(), -1)
		}
		cancel()
		if _, err := unary(ctx, nil, info, handler); status.Code(err) != status.FromContextError(cause).Code() {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// TestSeveral: several keys are one decision.
func TestSeveral(t *testing.T) {
	a := first(1)
	c := config(Method())
	c.Keys = append(c.Keys, Value("tenant", "acme"), Metadata("user", "none"))
	c.Skip = func(c Call) bool { return c.Method == "/health" }
	c.Amount = func(c Call) int64 { return int64(len(c.Method)) }
	unary := UnaryServer(a, c)
	handler := func(context.Context, any) (any, error) { return "hello", nil }
	for _, method := range []string{"/health", "/x"} {
		_, err := unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, handler)
		if want := map[string]codes.Code{"/health": codes.OK, "/x": codes.ResourceExhausted}[method]; status.Code(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
	if len(a.list) != 2 || a.list[1].Descriptor[0].Key != "tenant" || a.list[1].Amount != 2 {
		t.Errorf("asked %+v", a.list)
	}
}

// TestChargeIf: what a call has spent is given back, or more is charged, by its status.
func TestChargeIf(t *testing.T) {
	a := first(99)
	c := config(Method())
	c.ChargeIf = func(code codes.Code) int64 {
		return map[codes.Code]int64{codes.OK: 0, codes.Unimplemented: 3, codes.Canceled: 1}[code]
	}
	last := func() string {
		got := ""
		for _, q := range a.after {
			got += fmt.Sprint(q.Verb, " ", q.Amount, " ")
		}
		a.after = nil
		return got
	}
	for side, api := range map[string]sluicev1.RateLimitServiceClient{
		"server": connect(t, serverOf(a, c), nil), "client": connect(t, nil, clientOf(a, c)),
	} {
		if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := last(); got != "refund 1 " {
			t.Errorf("%s, OK: %s", side, got)
		}
		if _, err := api.Check(t.Context(), &sluicev1.CheckRequest{}); status.Code(err) != codes.Unimplemented {
			t.Fatal(err)
		}
		if got := last(); got != "charge 2 " {
			t.Errorf("%s, Unimplemented: %s", side, got)
		}
		s, err := api.CheckStream(t.Context())
		do(t, err)
		for range 2 {
			do(t, s.Send(&sluicev1.CheckRequest{}))
			if _, err := s.Recv(); err != nil || len(a.after) != 0 {
				t.Fatal(err, a.after)
			}
		}
		do(t, s.CloseSend())
		for range 2 {
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", side, err)
			}
		}
		if got := last(); got != "refund 1 " {
			t.Errorf("%s, a stream: %s", side, got)
		}
	}
	_, err := UnaryServer(a, c)(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(context.Context, any) (any, error) { return nil, context.Canceled })
	if got := last(); err == nil || got != "" {
		t.Errorf("Canceled: %s", got)
	}
}

// TestClient: a call goes out once it is admitted, or fails as a server's rejection would.
func TestClient(t *testing.T) {
	a := first(99)
	c := config(Method())
	c.EachMessage, c.Amount = true, func(Call) int64 { return 2 }
	api := connect(t, nil, clientOf(a, c))
	if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil || len(a.list) != 1 || a.list[0].Amount != 2 {
		t.Errorf("%v, asked %+v", err, a.list)
	}
	s, err := api.CheckStream(t.Context())
	do(t, err)
	for range 3 {
		do(t, s.Send(&sluicev1.CheckRequest{}))
	}
	if len(a.list) != 4 {
		t.Errorf("a stream of three messages asked %d times, want 3", len(a.list)-1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, d := range map[string]limit.Decision{
		"never": {Verdict: limit.VerdictNever}, "beyond the deadline": {Verdict: limit.VerdictDenied, RetryAfter: time.Hour},
	} {
		a.f = func(limit.Check) (limit.Decision, error) { return d, nil }
		if _, err := api.Nodes(ctx, &sluicev1.NodesRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPaced: a message that is not admitted ends its stream, and the server learns it.
func TestPaced(t *testing.T) {
	a := first(2)
	c := config(Method())
	c.EachMessage, c.MaxWait = true, time.Second
	ended := make(chan error, 1)
	api := connect(t, []grpc.ServerOption{grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		err := h(srv, s)
		select {
		case <-s.Context().Done(): // a reset fails what the handler does a moment before it ends the context
		case <-time.After(time.Minute):
		}
		ended <- s.Context().Err()
		return err
	})}, clientOf(a, c))
	s, err := api.CheckStream(t.Context())
	do(t, err)
	for range 2 {
		do(t, s.Send(&sluicev1.CheckRequest{}))
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
		a.f = func(limit.Check) (limit.Decision, error) {
			if len(a.list) == 1 {
				return limit.Decision{RetryAfter: time.Second}, nil
			}
			return limit.Decision{Allowed: true, Delay: time.Second}, nil
		}
		c := config(Method())
		c.MaxWait = 3 * time.Second
		began := time.Now()
		_, err := UnaryServer(a, c)(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(context.Context, any) (any, error) { return nil, nil })
		if took := time.Since(began); err != nil || took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestQueueRejected: who never waits is rejected what a queue would have wait.
func TestQueueRejected(t *testing.T) {
	a := &asked{f: func(limit.Check) (limit.Decision, error) {
		return limit.Decision{Allowed: true, Delay: time.Second}, nil
	}}
	api := connect(t, serverOf(a, config(Method())), nil)
	if _, err := api.Nodes(t.Context(), &sluicev1.NodesRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}

// TestStrange: odd values are asked as they are, since the client takes any. If they made the check fail, to send one would be a
// way around the limit.
func TestStrange(t *testing.T) {
	a := first(0)
	api := connect(t, serverOf(a, config(Metadata("user", "x-user-bin"))), nil)
	for _, user := range []string{strings.Repeat("x", 1025), "anna\xff"} {
		_, err := api.Nodes(metadata.AppendToOutgoingContext(t.Context(), "x-user-bin", user), &sluicev1.NodesRequest{})
		v := a.list[len(a.list)-1].Descriptor[0].Value
		if status.Code(err) != codes.ResourceExhausted || v != user {
			t.Errorf("%.10q: %v, asked as %q", user, err, v)
		}
	}
}

// TestIP: the connection's address, IPv6 by its /64, and behind a trusted proxy the one before it.
func TestIP(t *testing.T) {
	proxy := netip.MustParsePrefix("10.0.0.0/8")
	for _, c := range []struct{ addr, forwarded, want string }{
		{"192.0.2.7:99", "", "192.0.2.7"}, {"[2001:db8:1:2:3::4]:99", "", "2001:db8:1:2::"}, {"bufconn", "", ""},
		{"192.0.2.7:99", "1.1.1.1", "192.0.2.7"}, {"10.0.0.1:99", "1.1.1.1, 192.0.2.7", "192.0.2.7"},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address(c.addr)})
		if c.forwarded != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-forwarded-for", c.forwarded))
		}
		entries, ok := IP(proxy)(Call{Context: ctx})
		if ok != (c.want != "") || ok && entries[0] != (limit.Entry{Key: "ip", Value: c.want}) {
			t.Errorf("%s: %v, %v", c.addr, entries, ok)
		}
	}
}

// TestKeys: what each makes of a call.
func TestKeys(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("who", "anna", "key", "secret"))
	for name, c := range map[string]struct {
		key  Key
		want []limit.Entry
	}{
		"method":   {Method(), []limit.Entry{{Key: "method", Value: "/x"}}},
		"metadata": {Metadata("user", "who"), []limit.Entry{{Key: "user", Value: "anna"}}},
		"user":     {User(func(context.Context) string { return "u" }), []limit.Entry{{Key: "user", Value: "u"}}},
		"api key":  {APIKey("key"), []limit.Entry{{Key: "api_key", Value: "2bb80d537b1da3e38bd30361aa855686"}}},
		"no key":   {APIKey("none"), nil},
		"renamed":  {Method().As("call"), []limit.Entry{{Key: "call", Value: "/x"}}},
		"first":    {First(Metadata("a", "none"), Method()), []limit.Entry{{Key: "method", Value: "/x"}}},
		"joined":   {Join(Method(), Value("a", "b")), []limit.Entry{{Key: "method", Value: "/x"}, {Key: "a", Value: "b"}}},
		"missing":  {Join(Method(), Metadata("a", "none")), nil},
	} {
		if got, ok := c.key(Call{Context: ctx, Method: "/x"}); ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, c.want)
		}
	}
}

// TestOutgoing: a call that is made while another is served is asked by its own metadata, not by that one's.
func TestOutgoing(t *testing.T) {
	a := first(9)
	unary := UnaryClient(a, config(First(IP(), Metadata("user", "x-user"))))
	ctx := peer.NewContext(metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "caller")), &peer.Peer{Addr: address("192.0.2.7:99")})
	ctx = metadata.AppendToOutgoingContext(ctx, "x-user", "we")
	err := unary(ctx, "/x", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil })
	if err != nil || len(a.list) != 1 || a.list[0].Descriptor[0] != (limit.Entry{Key: "user", Value: "we"}) {
		t.Errorf("%v, asked %v", err, a.list)
	}
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// TestConfig: a wrong field is named, by Validate and in a panic.
func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{"Domain": {Keys: []Key{Method()}}, "Keys": {Domain: "d"}, "MaxWait": {Domain: "d", Keys: []Key{Method()}, MaxWait: -1}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for name, open := range map[string]func(limit.Limiter){
			"UnaryServer": func(l limit.Limiter) { UnaryServer(l, c) }, "StreamServer": func(l limit.Limiter) { StreamServer(l, c) },
			"UnaryClient": func(l limit.Limiter) { UnaryClient(l, c) }, "StreamClient": func(l limit.Limiter) { StreamClient(l, c) },
		} {
			if got := panicOf(func() { open(first(1)) }); !strings.Contains(got, want) {
				t.Errorf("%s: panic %s, want %s", name, got, want)
			}
		}
	}
	if got := panicOf(func() { UnaryServer(nil, config(Method())) }); !strings.Contains(got, "Limiter") {
		t.Errorf("no Limiter: panic %s", got)
	}
}

// panicOf returns the value with which f panics.
func panicOf(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return ""
}

// slots is a Limiter of one slot, which counts those that it has given.
type slots struct {
	*asked
	taken, given atomic.Int64
}

func (s *slots) InFlight(ctx context.Context, _ limit.Check, _ time.Duration) (limit.Decision, context.Context, func(), error) {
	if !s.taken.CompareAndSwap(0, 1) {
		return limit.Decision{Verdict: limit.VerdictDenied}, nil, nil, ctx.Err()
	}
	s.given.Add(1)
	return admitted, ctx, func() { s.taken.Store(0) }, nil
}

func TestInFlight(t *testing.T) {
	s, c := &slots{asked: first(0)}, config(Method())
	c.InFlight = true
	client := connect(t, serverOf(s, c), nil)
	for range 3 {
		if _, err := client.Nodes(t.Context(), &sluicev1.NodesRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := client.CheckStream(t.Context())
	if err == nil {
		err = stream.Send(&sluicev1.CheckRequest{Id: 1})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	do(t, err)
	if _, err := client.Nodes(t.Context(), &sluicev1.NodesRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beside a stream: %v", err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if n, free := s.given.Load(), s.taken.Load(); n != 4 || free != 0 {
		t.Errorf("%d slots were given, %d are taken", n, free)
	}
	c.EachMessage = true
	if c.Validate() == nil {
		t.Error("EachMessage goes with InFlight")
	}
	c.EachMessage = false
	defer func() {
		if recover() == nil {
			t.Error("a client has slots")
		}
	}()
	UnaryClient(s, c)
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
