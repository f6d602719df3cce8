// Command oracle answers as gubernator does, at the times it is told: each line of its input is
// a time in Unix milliseconds, never earlier than the one before, and the bytes in hex of a
// GetRateLimitsReq; each line of its output is the bytes in hex of the GetRateLimitsResp. It is one node that owns all
// keys, asked without a network, by gubernator's own clock for tests.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gubernator-io/gubernator/v2"
	"github.com/mailgun/holster/v4/clock"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

func main() {
	if err := answer(); err != nil {
		log.Fatal(err)
	}
}

func answer() error {
	time.Local = time.UTC // which its calendar is in
	at := int64(0)
	clock.Freeze(time.UnixMilli(at))
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	node, err := gubernator.NewV1Instance(gubernator.Config{
		InstanceID: "oracle", GRPCServers: []*grpc.Server{grpc.NewServer()}, Logger: logrus.NewEntry(logger), Workers: 1,
	})
	if err != nil {
		return err
	}
	// It is not closed: that would wait for timers of a clock that stands still.
	node.SetPeers([]gubernator.PeerInfo{{GRPCAddress: "127.0.0.1:1", IsOwner: true}})

	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var ms int64
		var text string
		if _, err := fmt.Sscan(in.Text(), &ms, &text); err != nil {
			return fmt.Errorf("%q: %w", in.Text(), err)
		}
		clock.Advance(time.Duration(ms-at) * time.Millisecond)
		at = ms
		body, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		var req gubernator.GetRateLimitsReq
		if err := proto.Unmarshal(body, &req); err != nil {
			return err
		}
		res, err := node.GetRateLimits(context.Background(), &req)
		if err != nil {
			return err
		}
		if body, err = proto.Marshal(res); err != nil {
			return err
		}
		fmt.Fprintln(out, hex.EncodeToString(body))
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return in.Err()
}
