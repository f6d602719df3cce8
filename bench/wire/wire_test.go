package wire

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
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-project/sluice/bench/load"
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
	conns, err := Dial([]string{l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Hangup(conns) })
	return conns
}

func TestUnary(t *testing.T) {
	caller := Sluice{serve(t)}.NewCaller("d", 3)
	var seen load.Tally
	for range 2 {
		if err := caller.Call(t.Context(), 0, []string{"k1", "k2", "f4"}, &seen); err != nil {
			t.Fatal(err)
		}
	}
	if seen != (load.Tally{Allowed: 4, Denied: 2, Forwarded: 2}) {
		t.Errorf("%+v", seen)
	}
}

// TestStream: each of many callers gets its own answers.
func TestStream(t *testing.T) {
	s, err := NewStream(t.Context(), serve(t))
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			caller := s.NewCaller("d", 1)
			for j := range 100 {
				var seen load.Tally
				if err := caller.Call(t.Context(), 0, []string{strconv.Itoa(i + j)}, &seen); err != nil {
					t.Error(err)
					return
				}
				if (seen.Allowed == 1) != ((i+j)%2 == 0) || seen.Allowed+seen.Denied != 1 {
					t.Errorf("%d: %+v", i+j, seen)
				}
			}
		})
	}
	callers.Wait()
	if n := len(s.pipes[0].mu.sent) + len(s.pipes[0].mu.waiting); n != 0 {
		t.Errorf("%d are left", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.NewCaller("d", 1).Call(t.Context(), 0, []string{"1"}, &load.Tally{}); err == nil {
		t.Error("a call after Close has an answer")
	}
}

func TestGubernator(t *testing.T) {
	var m []byte
	for _, c := range []struct {
		status uint64
		text   string
	}{{0, ""}, {1, ""}, {0, "broken"}} {
		one := appendNumber(appendNumber(nil, 1, c.status), 2, 1000)
		if c.text != "" {
			one = appendString(one, 5, c.text)
		}
		m = appendMessage(m, 1, one)
	}
	var seen load.Tally
	if n, err := readGubernator(m, &seen); n != 3 || err != nil || seen != (load.Tally{Allowed: 1, Denied: 1, Failed: 1}) {
		t.Errorf("%d, %v, %+v", n, err, seen)
	}
	if _, err := readGubernator(m[:len(m)-1], &seen); err == nil {
		t.Error("half a message is read")
	}
	requests := 0
	if err := fields(appendGubernator(nil, "d", []string{"k1", "k2"}), func(f field) { requests++ }); err != nil || requests != 2 {
		t.Errorf("%d requests, %v", requests, err)
	}
}

func TestRateLimit(t *testing.T) {
	m := appendNumber(nil, 1, 2)
	for _, code := range []uint64{1, 2, 0} {
		m = appendMessage(m, 2, appendNumber(nil, 1, code))
	}
	var seen load.Tally
	if n, err := readRateLimit(m, &seen); n != 3 || err != nil || seen != (load.Tally{Allowed: 1, Denied: 1, Failed: 1}) {
		t.Errorf("%d, %v, %+v", n, err, seen)
	}
	var key []byte
	in := func(num protowire.Number, f func(field)) func(field) {
		return func(got field) {
			if got.num == num {
				f(got)
			}
		}
	}
	err := fields(appendRateLimit(nil, "d", []string{"k1"}), in(2, func(d field) {
		_ = fields(d.bytes, in(1, func(e field) {
			_ = fields(e.bytes, in(2, func(v field) { key = v.bytes }))
		}))
	}))
	if err != nil || string(key) != "k1" {
		t.Errorf("key %q, %v", key, err)
	}
}
