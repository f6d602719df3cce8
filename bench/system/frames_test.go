package system

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/internal/load/api"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// even allows keys that end in an even digit. As the echo, it has no members.
type even struct {
	sluicev1.UnimplementedRateLimitServiceServer
}

func (even) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res := &sluicev1.CheckResponse{Id: req.GetId()}
		for _, c := range req.GetChecks() {
			v := c.GetDescriptor_()[0].GetValue()
			res.Decisions = append(res.Decisions, &sluicev1.Decision{Allowed: (v[len(v)-1]-'0')%2 == 0, Source: sluicev1.Source_SOURCE_OWNED})
		}
		if err := stream.Send(res); err != nil {
			return err
		}
	}
}

// Each of many callers gets its own decisions, of single checks and of batches.
func TestFrames(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	sluicev1.RegisterRateLimitServiceServer(server, even{})
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); served.Wait() })
	s := &System{config: api.Config{Key: "user", Addrs: []string{l.Addr().String()}}, targets: map[way]target{}}
	t.Cleanup(s.Stop)
	target, err := s.Target(Frames, "d")
	if err != nil {
		t.Fatal(err)
	}
	call := func(caller load.Caller, keys ...string) (d load.Decided) {
		var seen load.Counts
		if err := caller.Call(context.Background(), 0, keys, &seen); err != nil {
			t.Error(err)
		}
		return seen.By[load.Owned]
	}
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			caller := target.NewCaller(1)
			for j := i; j < i+100; j++ {
				if d := call(caller, strconv.Itoa(j)); (d.Allowed == 1) != (j%2 == 0) || d.Allowed+d.Denied != 1 {
					t.Errorf("%d: %+v", j, d)
				}
			}
		})
	}
	callers.Wait()
	if d := call(target.NewCaller(3), "k1", "k2", "k4"); d != (load.Decided{Allowed: 2, Denied: 1}) {
		t.Errorf("a batch: %+v", d)
	}
}
