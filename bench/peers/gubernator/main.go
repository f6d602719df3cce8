// Command gubernator is one node of gubernator with its own defaults, except for
// the cache, which is made to hold all keys, and the peers, which are given and
// not discovered. It is a module of its own, so that it runs with the
// dependencies that its authors chose.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/gubernator-io/gubernator/v2"
	"github.com/sirupsen/logrus"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:1051", "gRPC `address` to listen on")
	http := flag.String("http", "127.0.0.1:1050", "HTTP `address` to listen on")
	peers := flag.String("peers", "", "gRPC `addresses` of all nodes, comma separated, this one among them")
	cache := flag.Int("cache", 50_000, "most counters to hold")
	flag.Parse()
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, err := gubernator.SpawnDaemon(ctx, gubernator.DaemonConfig{
		Logger:            logrus.NewEntry(logger),
		InstanceID:        *addr,
		GRPCListenAddress: *addr,
		HTTPListenAddress: *http,
		AdvertiseAddress:  *addr,
		CacheSize:         *cache,
	})
	if err != nil {
		log.Fatal(err)
	}
	var list []gubernator.PeerInfo
	for _, p := range strings.Split(*peers, ",") {
		list = append(list, gubernator.PeerInfo{GRPCAddress: p})
	}
	d.SetPeers(list)
	<-ctx.Done()
	d.Close()
}
