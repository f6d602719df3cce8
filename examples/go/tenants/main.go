// A gRPC server that limits each tenant and all of them together, in one decision.
package main

import (
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/grpclimit"
)

func main() {
	c, err := sluice.New(os.Getenv("SLUICE"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	limits := grpclimit.Config{
		Domain: "shop",
		Keys: []grpclimit.Key{
			grpclimit.First(grpclimit.Metadata("tenant", "x-tenant"), grpclimit.IP().As("tenant")),
			grpclimit.Value("all", "calls"),
		},
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.UnaryServer(c, limits)), grpc.StreamInterceptor(grpclimit.StreamServer(c, limits)))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	l, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(s.Serve(l))
}
