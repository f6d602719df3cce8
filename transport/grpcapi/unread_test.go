package grpcapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/check"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
)

func users(n int) (checks []*sluicev1.Check) {
	for i := range n {
		checks = append(checks, user(fmt.Sprint(i)))
	}
	return checks
}

// A client that asks and never reads loses its stream, and no other call waits for it.
func TestStreamWhoseAnswersAreNotRead(t *testing.T) {
	left := make(chan error, 1)
	d := open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t)), Unread: 200 * time.Millisecond},
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			err := h(srv, s)
			left <- err
			return err
		}))
	s := openStream(t, d)
	go func() {
		for range 10_000 { // until flow control or the stream's end stops it
			if s.Send(request(users(200)...)) != nil {
				return
			}
		}
		_ = s.CloseSend()
	}()
	select {
	case err := <-left:
		if status.Code(err) != codes.Aborted {
			t.Fatalf("with 2,000,000 checks whose answers nobody read, the node left the stream with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the node stays with a stream whose answers are not read")
	}
	if _, err := d.client.Check(t.Context(), request(user("other"))); err != nil {
		t.Errorf("another's check: %v", err)
	}
	for {
		if _, err := s.Recv(); err != nil {
			if status.Code(err) != codes.Aborted {
				t.Errorf("the stream ended with %v", err)
			}
			return
		}
	}
}

// Requests of many checks count for more than small ones.
func TestStreamLargeRequestsTakeMorePlaces(t *testing.T) {
	const inFlight = 8
	var deciding, most atomic.Int64
	full, free := make(chan struct{}), make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	d := open(t, Config{InFlight: inFlight, Limiter: newLimiter(t, decideFunc(func(ctx context.Context, b *check.Batch) {
		now := deciding.Add(1)
		defer deciding.Add(-1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		if now >= inFlight/4 {
			isFull()
		}
		select {
		case <-free:
		case <-ctx.Done():
		}
		for i := range b.Answers {
			b.Answers[i].Source = check.Owned
		}
	}))})
	s := openStream(t, d)
	const requests = 20
	go func() {
		for range requests {
			if s.Send(request(users(3*checksPerPlace)...)) != nil { // four places each
				return
			}
		}
	}()
	<-full // as many as fit are being decided, before the first has its answer
	for range requests {
		free <- struct{}{}
		recv(t, s)
	}
	if n := most.Load(); n != inFlight/4 {
		t.Errorf("%d requests of four places were being decided in %d", n, inFlight)
	}
	// One that is larger than all places together is decided alone.
	close(free)
	send(t, s, 7, users(2*inFlight*checksPerPlace)...)
	if r := recv(t, s); len(r.Decisions) != 2*inFlight*checksPerPlace {
		t.Errorf("%d decisions: %v", len(r.Decisions), r.Error)
	}
}
