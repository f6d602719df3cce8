package grpcapi

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/check"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

type stream = interface {
	Send(*sluicev1.CheckRequest) error
	Recv() (*sluicev1.CheckResponse, error)
	CloseSend() error
}

func send(t *testing.T, s stream, id uint64, checks ...*sluicev1.Check) {
	t.Helper()
	if err := s.Send(&sluicev1.CheckRequest{Id: id, Checks: checks}); err != nil {
		t.Fatal(err)
	}
}

func recv(t *testing.T, s stream) *sluicev1.CheckResponse {
	t.Helper()
	res, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func openStream(t *testing.T, d *api) stream {
	t.Helper()
	s, err := d.client.CheckStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStreamAnswersAll(t *testing.T) {
	d := openNode(t)
	s := openStream(t, d)
	const n = 1000 // far more than are in flight
	go func() {
		for id := range uint64(n) {
			if s.Send(&sluicev1.CheckRequest{Id: id, Checks: []*sluicev1.Check{user("x")}}) != nil {
				return // the receiver will find out
			}
		}
		_ = s.CloseSend()
	}()
	seen := make(map[uint64]bool)
	allowed := 0
	for {
		res, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen[res.GetId()] || res.GetError() != nil || len(res.GetDecisions()) != 1 {
			t.Fatalf("%v", res)
		}
		seen[res.GetId()] = true
		if res.GetDecisions()[0].GetAllowed() {
			allowed++
		}
	}
	if len(seen) != n || allowed != 3 {
		t.Errorf("%d answers, %d allowed; want %d and 3", len(seen), allowed, n)
	}
}

// A request that takes long does not hold up those behind it.
func TestStreamAnswersOutOfOrder(t *testing.T) {
	gate := make(chan struct{})
	d := open(t, Config{Limiter: newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
		if len(b.Requests) == 2 {
			<-gate
		}
		for i := range b.Answers {
			b.Answers[i].Allowed = true
		}
	}))})
	s := openStream(t, d)
	send(t, s, 1, user("slow"), user("slow"))
	send(t, s, 2, user("fast"))
	if res := recv(t, s); res.GetId() != 2 {
		t.Errorf("first answer is %v", res)
	}
	close(gate)
	if res := recv(t, s); res.GetId() != 1 || len(res.GetDecisions()) != 2 {
		t.Errorf("second answer is %v", res)
	}
}

func TestStreamOutlivesBadRequests(t *testing.T) {
	s := openStream(t, openNode(t))
	for i, c := range []struct {
		checks []*sluicev1.Check
		want   string
	}{
		{nil, `id:1 error:{code:ERROR_CODE_INVALID field:"checks" message:"empty; want 1 to 10,000 checks"}`},
		{[]*sluicev1.Check{{}}, "INVALID checks[0].domain id:2"},
		{users(1), "ALLOWED 2/3 id:3 allowed:true"},
	} {
		send(t, s, uint64(i+1), c.checks...)
		if got := short(recv(t, s)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestStreamInFlightIsBounded(t *testing.T) {
	const inFlight = 3
	var now, most atomic.Int32
	full := make(chan struct{}) // closed when as many as allowed are in flight
	gate := make(chan struct{})
	d := open(t, Config{InFlight: inFlight, Limiter: newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == inFlight {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-gate
		b.Answers[0].Allowed = true
	}))})
	s := openStream(t, d)
	const n = 20
	for id := range uint64(n) {
		send(t, s, id, user("x"))
	}
	<-full
	close(gate)
	for range n {
		recv(t, s)
	}
	if m := most.Load(); m != inFlight {
		t.Errorf("%d requests were in flight, want %d", m, inFlight)
	}
}

// What a stream has taken is answered before it ends, whoever ends it.
func TestStreamEnds(t *testing.T) {
	for name, end := range map[string]func(d *api, s stream){
		"client has no more": func(_ *api, s stream) { _ = s.CloseSend() },
		"node is leaving":    func(d *api, _ stream) { d.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			entered, gate := make(chan struct{}), make(chan struct{})
			d := open(t, Config{Limiter: newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
				close(entered)
				<-gate
				b.Answers[0].Allowed = true
			}))})
			s := openStream(t, d)
			send(t, s, 1, user("x"))
			<-entered
			end(d, s)
			close(gate)
			if res := recv(t, s); res.GetId() != 1 || !res.GetDecisions()[0].GetAllowed() {
				t.Errorf("%v", res)
			}
			_, err := s.Recv()
			if name == "node is leaving" && status.Code(err) != codes.Unavailable || name == "client has no more" && !errors.Is(err, io.EOF) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// A client that goes away in the middle leaves nothing behind; leaktest sees to it.
func TestStreamCancelled(t *testing.T) {
	entered := make(chan struct{})
	d := open(t, Config{Limiter: newLimiter(t, decideFunc(func(ctx context.Context, b *check.Batch) {
		close(entered)
		<-ctx.Done()
		b.Answers[0].Err = ctx.Err()
	}))})
	ctx, cancel := context.WithCancel(t.Context())
	s, err := d.client.CheckStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, 1, user("x"))
	<-entered
	cancel()
	if _, err := s.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("ended with %v", err)
	}
}

// fakeStream has n requests to read, and notices when two send at once, which
// grpc does not allow.
type fakeStream struct {
	grpc.ServerStream
	ctx     context.Context
	n       uint64
	inside  atomic.Int32
	overlap atomic.Bool
	sent    atomic.Int32
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) RecvMsg(m any) error {
	if s.n == 0 {
		return io.EOF
	}
	s.n--
	data, err := proto.Marshal(&sluicev1.CheckRequest{Id: s.n, Checks: []*sluicev1.Check{user("x")}})
	if err != nil {
		return err
	}
	return m.(*question).DecodeWire(data)
}

func (s *fakeStream) SendMsg(any) error {
	if s.inside.Add(1) > 1 {
		s.overlap.Store(true)
	}
	for range 10 {
		runtime.Gosched() // let the others come
	}
	s.inside.Add(-1)
	s.sent.Add(1)
	return nil
}

func TestStreamSendsOneAtATime(t *testing.T) {
	d := openNode(t)
	const n = 500
	s := &fakeStream{ctx: t.Context(), n: n}
	if err := d.checkStream(s); err != nil {
		t.Fatal(err)
	}
	if s.overlap.Load() || s.sent.Load() != n {
		t.Errorf("%d answers, sent at once: %v", s.sent.Load(), s.overlap.Load())
	}
}
