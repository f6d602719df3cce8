package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/internal/load"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// even allows keys that end in an even digit and says that "f" keys were forwarded.
type even struct {
	sluicev1.UnimplementedSluiceServiceServer
}

func (even) Check(_ context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	res := &sluicev1.CheckResponse{Id: req.GetId()}
	for _, c := range req.GetChecks() {
		v := c.GetDescriptor_()[0].GetValue()
		d := &sluicev1.Decision{Allowed: (v[len(v)-1]-'0')%2 == 0, Source: sluicev1.Source_SOURCE_HELD}
		if strings.HasPrefix(v, "f") {
			d.Source = sluicev1.Source_SOURCE_FORWARDED
		}
		res.Decisions = append(res.Decisions, d)
	}
	return res, nil
}

func (e even) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res, _ := e.Check(stream.Context(), req)
		if err := stream.Send(res); err != nil {
			return err
		}
	}
}

func serve(t *testing.T) []*grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	sluicev1.RegisterSluiceServiceServer(s, even{})
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); served.Wait() })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return []*grpc.ClientConn{conn}
}

// TestStream: each of many callers gets its own answers.
func TestStream(t *testing.T) {
	s, err := New(t.Context(), serve(t), "d")
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			caller := s.NewCaller(1)
			for j := range 100 {
				var seen load.Counts
				if err := caller.Call(t.Context(), 0, []string{strconv.Itoa(i + j)}, &seen); err != nil {
					t.Error(err)
					return
				}
				if d := seen.By[load.Held]; (d.Allowed == 1) != ((i+j)%2 == 0) || d.Allowed+d.Denied != 1 {
					t.Errorf("%d: %+v", i+j, seen)
				}
			}
		})
	}
	callers.Wait()
	if n := len(s.pipes[0].mu.sent) + len(s.pipes[0].mu.waiting); n != 0 {
		t.Errorf("%d are left", n)
	}
	var seen load.Counts
	if err := s.NewCaller(3).Call(t.Context(), 0, []string{"k1", "k2", "f4"}, &seen); err != nil {
		t.Error(err)
	}
	if seen.By[load.Held] != (load.Decided{Allowed: 1, Denied: 1}) || seen.By[load.Forwarded] != (load.Decided{Allowed: 1}) {
		t.Errorf("%+v", seen)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.NewCaller(1).Call(t.Context(), 0, []string{"1"}, &load.Counts{}); err == nil {
		t.Error("a call after Close has an answer")
	}
}
