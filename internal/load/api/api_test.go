package api

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/load"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// server answers as its keys say: "allowed" and "denied" are decided, "broken" is one check's error, "short" leaves
// decisions out, "rejected" fails the call, "ends" ends the stream, and "hangs" never comes back.
type server struct {
	sluicev1.UnimplementedRateLimitServiceServer
	streams atomic.Int32
}

func (s *server) Check(ctx context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	res := &sluicev1.CheckResponse{Id: req.Id}
	for _, c := range req.Checks {
		d := &sluicev1.Decision{Source: sluicev1.Source_SOURCE_FORWARDED}
		switch c.Descriptor_[0].Value {
		case "allowed":
			d.Allowed = true
		case "broken":
			d = &sluicev1.Decision{Error: &sluicev1.Error{Field: "checks[0].cost", Message: "is odd"}}
		case "short":
			continue
		case "rejected":
			return nil, status.Error(codes.InvalidArgument, "not today")
		case "hangs":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		res.Decisions = append(res.Decisions, d)
	}
	return res, nil
}

func (s *server) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	s.streams.Add(1)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) || err == nil && req.Checks[0].Descriptor_[0].Value == "ends" {
			return nil
		}
		if err != nil {
			return err
		}
		res, err := s.Check(stream.Context(), req)
		if err != nil {
			res = &sluicev1.CheckResponse{Id: req.Id, Error: &sluicev1.Error{Message: err.Error()}}
		}
		if err := stream.Send(res); err != nil {
			return err
		}
	}
}

// nothingLeft checks, when the test and what it has opened have ended, that no goroutine goes on.
func nothingLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		left := goleak.Find(before)
		for deadline := time.Now().Add(time.Minute); left != nil && time.Now().Before(deadline); {
			left = goleak.Find(before) // waits for half a second
		}
		if left != nil {
			t.Error(left)
		}
	})
}

// open starts a server and opens an API to it.
func open(t *testing.T, name string, timeout time.Duration) (*server, API) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, g := &server{}, grpc.NewServer()
	sluicev1.RegisterRateLimitServiceServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	kind, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	d, err := kind.Open(Config{Addrs: []string{l.Addr().String()}, Domain: "d", Key: "k", Timeout: timeout}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

// What a call brings is counted as the node says, and a call that failed does not spoil the next one.
func TestOwnAPIs(t *testing.T) {
	nothingLeft(t)
	for _, name := range []string{"grpc", "stream"} {
		t.Run(name, func(t *testing.T) {
			_, d := open(t, name, time.Minute)
			caller := d.NewCaller(2)
			for _, c := range []struct {
				keys    []string
				decided load.Decided
				failed  int64
				err     string
			}{
				{[]string{"allowed", "denied"}, load.Decided{Allowed: 1, Denied: 1}, 0, ""},
				{[]string{"broken", "allowed"}, load.Decided{Allowed: 1}, 1, ""},
				{[]string{"short", "allowed"}, load.Decided{}, 0, "1 decisions for 2 checks"},
				{[]string{"rejected", "allowed"}, load.Decided{}, 0, "not today"},
				{[]string{"allowed", "allowed"}, load.Decided{Allowed: 2}, 0, ""},
			} {
				var seen load.Counts
				err := caller.Call(t.Context(), 0, c.keys, &seen)
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("%v: error %v, want %q", c.keys, err, c.err)
				}
				if seen.Decided() != c.decided || seen.By[load.Forwarded] != c.decided || seen.Failed != c.failed {
					t.Errorf("%v: %+v", c.keys, seen)
				}
				if c.failed > 0 && seen.FirstError.Error() != "checks[0].cost: is odd" {
					t.Errorf("first error: %v", seen.FirstError)
				}
			}
		})
	}
}

// A stream that has ended, or whose answer does not come in time, is replaced at the next call.
func TestStreamIsReplaced(t *testing.T) {
	nothingLeft(t)
	s, d := open(t, "stream", time.Second)
	caller := d.NewCaller(1)
	for i, c := range []struct{ key, err string }{
		{"allowed", ""}, {"ends", "ended the stream"}, {"allowed", ""}, {"hangs", "no answer within 1s"}, {"allowed", ""}, {"allowed", ""},
	} {
		var seen load.Counts
		err := caller.Call(t.Context(), 0, []string{c.key}, &seen)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("call %d: error %v, want %q", i, err, c.err)
		}
	}
	if n := s.streams.Load(); n != 3 {
		t.Errorf("%d streams were opened, want 3", n)
	}
}

func TestTimeout(t *testing.T) {
	_, d := open(t, "grpc", 50*time.Millisecond)
	if err := d.NewCaller(1).Call(t.Context(), 0, []string{"hangs"}, &load.Counts{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error %v", err)
	}
}

// Callers are spread over the connections.
func TestConnections(t *testing.T) {
	c, err := connect(Config{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, Connections: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	used := map[*grpc.ClientConn]int{}
	for range 6 {
		for _, conn := range c.take() {
			used[conn]++
		}
	}
	if len(used) != 6 {
		t.Errorf("%d of 6 connections are used", len(used))
	}
	for _, n := range used {
		if n != 2 {
			t.Errorf("a connection has %d callers, want 2", n)
		}
	}
}
