package grpcapi

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
)

// blocking is a limiter that decides nothing until it may.
type blocking struct {
	limiter.Service
	came, may chan struct{}
}

func (b *blocking) Check(ctx context.Context, batch *limiter.Batch) error {
	if len(batch.Checks) > 1 {
		b.came <- struct{}{}
		<-b.may
	}
	return b.Service.Check(ctx, batch)
}

// large is a valid request of n checks with a limit each, which takes about 700 bytes for each.
func large(n int) *sluicev1.CheckRequest {
	q := request()
	for range n {
		q.Checks = append(q.Checks, user("ann"))
	}
	return q
}

// TestMessagesTakeMemory: a message whose elements take more than one may is not decoded, and the
// error names the field; valid messages wait until the memory of others is free, that of streams
// too.
func TestMessagesTakeMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &blocking{newLimiter(t, apitest.NewNode(t)), make(chan struct{}), make(chan struct{})}
		p := openPortInMemory(t, Config{Limiter: b, MessageDeadline: 5 * time.Second, Memory: inflow.NewMemory(40 << 20)}, false) // 5 MiB for large messages, 8 MiB for one
		conn, ctx := p.client(t)
		api := sluicev1.NewRateLimitServiceClient(conn)

		reserve := &sluicev1.ReserveRequest{Checks: make([]*sluicev1.Check, 200_000)}
		for i := range reserve.Checks {
			reserve.Checks[i] = new(sluicev1.Check)
		}
		_, err := api.Reserve(ctx, reserve)
		if s := status.Convert(err); s.Code() != codes.ResourceExhausted || !strings.HasPrefix(s.Message(), "checks[") || !strings.Contains(s.Message(), "8 MiB") {
			t.Errorf("200,000 checks: %v", err)
		}
		held := &sluicev1.HeldRequest{Domain: "shop", Descriptor_: make([]*sluicev1.Entry, 200_000)}
		for i := range held.Descriptor_ {
			held.Descriptor_[i] = new(sluicev1.Entry)
		}
		if _, err := api.Held(ctx, held); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "descriptor[") {
			t.Errorf("200,000 entries: %v", err)
		}
		session, err := api.Session(ctx)
		if err == nil {
			err = session.Send(&sluicev1.SessionRequest{Release: make([]uint64, 1_000_000)})
		}
		if err == nil {
			_, err = session.Recv()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a million slots: %v", err)
		}
		if n := p.Unread().Ended.Of("memory"); n != 3 || p.Unread().Held != 0 {
			t.Errorf("%+v", p.Unread())
		}

		// 10,000 checks take more than half, so that two others wait while one is decided.
		done := make(chan error)
		many := large(10_000)
		check := func() {
			_, err := api.Check(ctx, many)
			done <- err
		}
		go check()
		<-b.came
		go check()
		go func() {
			stream, err := api.CheckStream(ctx)
			if err == nil {
				err = stream.Send(many)
			}
			if err == nil {
				_, err = stream.Recv()
			}
			done <- err
		}()
		late := time.After(time.Minute)
		for size := int64(proto.Size(many)); p.Unread().Held < 2*size; {
			select {
			case <-late:
				t.Fatalf("%d bytes are held, want two messages of %d that wait", p.Unread().Held, size)
			case <-time.After(time.Millisecond):
			}
		}
		if _, err := api.Check(ctx, request(user("ann"))); err != nil {
			t.Errorf("a small message: %v", err)
		}
		// They are complete: when one that is not is late, they are not.
		r := p.raw(t)
		half, err := r.Open(sluicev1.RateLimitService_Check_FullMethodName)
		if err == nil {
			err = r.Announce(half, 1000)
		}
		if err != nil {
			t.Fatal(err)
		}
		if s := wait(t, r, half); s != int(codes.DeadlineExceeded) {
			t.Errorf("a message that does not end: status %d", s)
		}
		for i := range 3 {
			if i > 0 {
				<-b.came
			}
			b.may <- struct{}{}
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
