package grpclimit_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/grpclimit"
)

// one admits one call; it stands in for a *client.Client.
type one struct{ spent bool }

func (o *one) Check(context.Context, client.Check) (client.Decision, error) {
	d := client.Decision{Allowed: !o.spent, Rule: "shop/method"}
	o.spent = true
	return d, nil
}

func (o *one) Wait(ctx context.Context, c client.Check) (client.Decision, error) {
	return o.Check(ctx, c)
}

func ExampleServer() {
	limits := grpclimit.Server{
		Checker: &one{}, Domain: "shop",
		Key: grpclimit.Keys(grpclimit.Method(), grpclimit.Value("tenant", "acme")),
	}
	unary, err := limits.Unary()
	if err != nil {
		log.Fatal(err)
	}
	_ = grpc.NewServer(grpc.UnaryInterceptor(unary)) // and so the server has limits

	handler := func(context.Context, any) (any, error) { return "hello", nil }
	for range 2 {
		answer, err := unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}, handler)
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// hello OK
	// <nil> ResourceExhausted
}

func ExampleClient() {
	limits := grpclimit.Client{Waiter: &one{}, Domain: "outbound", Key: grpclimit.Method()}
	unary, err := limits.Unary()
	if err != nil {
		log.Fatal(err)
	}
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	fmt.Println(unary(context.Background(), "/shop.Orders/Create", nil, nil, nil, invoke))
	// Output: <nil>
}
