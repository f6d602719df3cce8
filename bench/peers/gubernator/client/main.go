// Command client asks the server at an address by gubernator's own client, once by each call, and
// prints the answers, one a line, as JSON.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gubernator-io/gubernator/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: client ADDRESS")
	}
	if err := ask(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func ask(addr string) error {
	client, err := gubernator.DialV1Server(addr, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	mixed := &gubernator.GetRateLimitsReq{Requests: []*gubernator.RateLimitReq{
		{Name: "client", UniqueKey: "a", Hits: 3, Limit: 10, Duration: 10 * gubernator.Minute},
		{Name: "client", Hits: 1, Limit: 10},
		{
			Name: "client", UniqueKey: "a", Hits: 8, Limit: 10, Duration: gubernator.GregorianHours,
			Algorithm: gubernator.Algorithm_LEAKY_BUCKET, Behavior: gubernator.Behavior_DURATION_IS_GREGORIAN | gubernator.Behavior_GLOBAL,
		},
		{Name: "client", UniqueKey: "a", Hits: 8, Limit: 10, Duration: 10 * gubernator.Minute},
	}}
	for _, call := range []func() (proto.Message, error){
		func() (proto.Message, error) { return client.GetRateLimits(ctx, mixed) },
		func() (proto.Message, error) { return client.HealthCheck(ctx, &gubernator.HealthCheckReq{}) },
		func() (proto.Message, error) { return client.LiveCheck(ctx, &gubernator.LiveCheckReq{}) },
		func() (proto.Message, error) {
			return client.GetRateLimits(ctx, &gubernator.GetRateLimitsReq{Requests: make([]*gubernator.RateLimitReq, 1001)})
		},
	} {
		answer, err := call()
		if err != nil {
			fmt.Println(err)
			continue
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return nil
}
