package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-project/sluice/client"
)

func ExampleDial() {
	c, err := client.Dial(context.Background(), "sluice.default.svc:7460",
		client.WithTimeout(500*time.Millisecond), client.WithFailurePolicy(client.FailLocal(0.1)))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ok, err := c.Allow(context.Background(), "auth", client.KV("auth_type", "login"), client.KV("user", "me"))
	fmt.Println(ok, err)
}

func ExampleClient_Wait() {
	c, err := client.Dial(context.Background(), "sluice.default.svc:7460")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := c.Wait(ctx, client.Check{
		Domain: "outbound", Descriptor: []client.Entry{client.KV("host", "api.example.com")}, Cost: 5,
	})
	fmt.Println(d.Allowed, err)
}
