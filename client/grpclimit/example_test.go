package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/client/grpclimit"
	"github.com/sluicecluster/sluice/client/limit"
)

// one admits one unit, in the place of a *sluice.Client.
type one struct {
	limit.Limiter
	spent int64
}

func (o *one) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	d := limit.Decision{Allowed: o.spent+c.Amount <= 1, Verdict: limit.VerdictNever, Counted: true, LimitName: "per-method"}
	if d.Allowed {
		d.Verdict = limit.VerdictAllowed
		o.spent += c.Amount
	}
	return d, nil
}

func (o *one) CheckEach(_ context.Context, checks ...limit.Check) ([]limit.Decision, error) {
	for _, c := range checks { // refunds
		o.spent -= c.Amount
	}
	return make([]limit.Decision, len(checks)), nil
}

// client returns a *sluice.Client in a program.
func client() limit.Limiter { return &one{} }

func ExampleUnaryServer() {
	limits := grpclimit.UnaryServer(client(), grpclimit.Config{
		Domain: "shop",
		Keys:   []grpclimit.Key{grpclimit.Join(grpclimit.Method(), grpclimit.Value("tenant", "acme"))},
	})
	_ = grpc.NewServer(grpc.ChainUnaryInterceptor(limits)) // and so the server has limits

	handler := func(context.Context, any) (any, error) { return "hello", nil }
	for range 2 {
		answer, err := limits(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}, handler)
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// hello OK
	// <nil> ResourceExhausted
}

// stream is what a server's handler gets.
type stream struct{ grpc.ServerStream }

func (stream) Context() context.Context { return context.Background() }
func (stream) RecvMsg(any) error        { return nil }

func ExampleStreamServer() {
	limits := grpclimit.StreamServer(client(), grpclimit.Config{
		Domain: "shop", Keys: []grpclimit.Key{grpclimit.Method()}, EachMessage: true,
	})
	_ = grpc.NewServer(grpc.ChainStreamInterceptor(limits))

	err := limits(nil, stream{}, &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}, func(_ any, s grpc.ServerStream) error {
		for message := 1; ; message++ {
			if err := s.RecvMsg(nil); err != nil {
				return err
			}
			fmt.Println("message", message)
		}
	})
	fmt.Println(status.Code(err))
	// Output:
	// message 1
	// ResourceExhausted
}

func ExampleUnaryClient() {
	limits := grpclimit.UnaryClient(client(), grpclimit.Config{Domain: "outbound", Keys: []grpclimit.Key{grpclimit.Method()}})
	_ = grpc.WithChainUnaryInterceptor(limits) // an option of grpc.NewClient

	send := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	for range 2 {
		fmt.Println(status.Code(limits(context.Background(), "/shop.Orders/Create", nil, nil, nil, send)))
	}
	// Output:
	// OK
	// ResourceExhausted
}

func ExampleStreamClient() {
	limits := grpclimit.StreamClient(client(), grpclimit.Config{Domain: "outbound", Keys: []grpclimit.Key{grpclimit.Method()}})
	_ = grpc.WithChainStreamInterceptor(limits)

	open := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return nil, nil
	}
	for range 2 {
		_, err := limits(context.Background(), &grpc.StreamDesc{}, nil, "/shop.Orders/Watch", open)
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}

// Wrong codes count, other calls do not.
func ExampleConfig() {
	limits := grpclimit.UnaryServer(client(), grpclimit.Config{
		Domain: "shop",
		Keys:   []grpclimit.Key{grpclimit.First(grpclimit.Metadata("user", "x-user"), grpclimit.Method())},
		Skip:   func(c grpclimit.Call) bool { return c.Method == "/grpc.health.v1.Health/Check" },
		ChargeIf: func(code codes.Code) int64 {
			if code == codes.Unauthenticated {
				return 1
			}
			return 0
		},
		Denied: func(c grpclimit.Call, _ limit.Decision) error {
			return status.Error(codes.PermissionDenied, "too many wrong codes for "+c.Method)
		},
	})
	for _, code := range []codes.Code{codes.OK, codes.OK, codes.Unauthenticated, codes.OK} {
		_, err := limits(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Coupons/Redeem"},
			func(context.Context, any) (any, error) { return nil, status.Error(code, "") })
		fmt.Print(status.Code(err), " ")
	}
	// Output: OK OK Unauthenticated PermissionDenied
}

func ExampleConfig_Validate() {
	c := grpclimit.Config{Domain: "shop"} // from a configuration file
	fmt.Println(c.Validate())
	// Output: grpclimit: Keys is empty; want at least one
}

func ExampleDenial() {
	err := grpclimit.Denial(&limit.Decision{Verdict: limit.VerdictNever, LimitName: "per-method"})
	fmt.Println(status.Code(err), status.Convert(err).Details()[0].(*errdetails.QuotaFailure).GetViolations()[0].GetSubject())
	// Output: ResourceExhausted per-method
}

// call is the call that the keys below are made of.
var call = grpclimit.Call{
	Context: peer.NewContext(metadata.NewIncomingContext(context.Background(),
		metadata.Pairs("x-user", "anna", "x-api-key", "secret", "x-forwarded-for", "192.0.2.7")),
		&peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1234}}),
	Method: "/shop.Orders/Create",
}

func ExampleCall() {
	key := grpclimit.From("direction", func(c grpclimit.Call) string {
		if c.Outgoing {
			return "out"
		}
		return "in"
	})
	fmt.Println(key(call))
	// Output: [{direction in}] true
}

func ExampleKey() {
	var length grpclimit.Key = func(c grpclimit.Call) ([]limit.Entry, bool) {
		return []limit.Entry{{Key: "length", Value: fmt.Sprint(len(c.Method))}}, true
	}
	fmt.Println(length(call))
	// Output: [{length 19}] true
}

func ExampleKey_As() {
	fmt.Println(grpclimit.Method().As("call")(call))
	// Output: [{call /shop.Orders/Create}] true
}

func ExampleJoin() {
	fmt.Println(grpclimit.Join(grpclimit.Value("service", "orders"), grpclimit.Metadata("user", "x-user"))(call))
	// Output: [{service orders} {user anna}] true
}

func ExampleFirst() {
	fmt.Println(grpclimit.First(grpclimit.Metadata("tenant", "x-tenant"), grpclimit.IP())(call))
	// Output: [{ip 10.0.0.1}] true
}

func ExampleValue() {
	fmt.Println(grpclimit.Value("service", "orders")(call))
	// Output: [{service orders}] true
}

func ExampleFrom() {
	fmt.Println(grpclimit.From("verb", func(c grpclimit.Call) string { return c.Method[len("/shop.Orders/"):] })(call))
	// Output: [{verb Create}] true
}

func ExampleMethod() {
	fmt.Println(grpclimit.Method()(call))
	// Output: [{method /shop.Orders/Create}] true
}

func ExampleUser() {
	type user struct{}
	c := grpclimit.Call{Context: context.WithValue(context.Background(), user{}, "anna")}
	fmt.Println(grpclimit.User(func(ctx context.Context) string { return ctx.Value(user{}).(string) })(c))
	// Output: [{user anna}] true
}

func ExampleMetadata() {
	fmt.Println(grpclimit.Metadata("user", "x-user")(call))
	// Output: [{user anna}] true
}

func ExampleAPIKey() {
	fmt.Println(grpclimit.APIKey("x-api-key")(call))
	// Output: [{api_key 2bb80d537b1da3e38bd30361aa855686}] true
}

func ExampleIP() {
	fmt.Println(grpclimit.IP(netip.MustParsePrefix("10.0.0.0/8"))(call))
	// Output: [{ip 192.0.2.7}] true
}
