package grpcapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestCheck(t *testing.T) {
	openNode(t).play(t, `
		Check (x) => ALLOWED 2/3 allowed:true
		Check (x cost: 0) (x verb: VERB_READ) => ALLOWED 2/3 | ALLOWED 2/3 allowed:true
		Check (x cost: 2) => ALLOWED 0/3 allowed:true
		Check (x) => DENIED 0/3 in 1m0s retry_after_ns:60000000000
		Check (x verb: VERB_REFUND) (x) (x verb: VERB_CHARGE) => ALLOWED 1/3 | ALLOWED 0/3 | ALLOWED 0/3 allowed:true
		Check (x verb: VERB_RESET) checks {verb: VERB_RESET} => ALLOWED 3/3 | INVALID checks[1].domain
		Check (x) (x cost: 4) => ALLOWED 2/3 | DENIED_NEVER 2/3
		Check checks {domain: "shop" descriptor {key: "watched"} cost: 4} checks {domain: "nowhere" descriptor {key: "user"}} => ALLOWED_SHADOW 1/1 | ALLOWED UNMATCHED allowed:true
	`)
}

// TestDecision: what a decision has is as TestEncode has it; these fields come from the node and the rules.
func TestDecision(t *testing.T) {
	own := user("x") // the unlimited one decides nothing, and has a place
	own.Limits = []*sluicev1.Limit{
		{Unlimited: true}, {Count: 9, PeriodNs: 1e9}, {Algorithm: sluicev1.Algorithm_ALGORITHM_LEAKY_QUEUE, Count: 1, PeriodNs: 1e9, Burst: 4},
	}
	res, err := openNode(t).client.Check(t.Context(), request(user("x"), own))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []*sluicev1.Decision{
		{
			Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_OWNED, Owner: "n1", Rule: "shop/user", LimitName: "shop/user",
			Limit: new(int64(3)), Remaining: new(int64(2)), Count: 3, PeriodNs: int64(time.Minute), ResetAfterNs: int64(time.Minute),
		},
		{
			Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_OWNED, Owner: "n1",
			Limit: new(int64(4)), Remaining: new(int64(3)), Count: 1, Burst: 4, PeriodNs: 1e9, LimitIndex: 2, ResetAfterNs: 1e9,
		},
	} {
		if got := res.GetDecisions()[i]; !proto.Equal(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
	}
}

// TestBadChecks: what cannot be read, and an example of what the limiter rejects, is the error of its check alone.
func TestBadChecks(t *testing.T) {
	openNode(t).play(t, `
		Check (x) (y cost: -1) (x) => ALLOWED 2/3 | INVALID checks[1].cost | ALLOWED 1/3
		Check (x) checks {domain: "shop"} (x) => ALLOWED 0/3 | INVALID checks[1].descriptor | DENIED 0/3 in 1m0s
		Check (z verb: 5) (z verb: -1) (z verb: 256) => INVALID checks[0].verb | INVALID checks[1].verb | INVALID checks[2].verb
		Check (z limits {count: 1 period_ns: 1000000000} limits {algorithm: 99 count: 1 period_ns: 1000000000}) => INVALID checks[0].limits[1].algorithm
		Check (z limits {unit: 99 count: 1 period_ns: 1000000000}) (z limits {count: 1}) => INVALID checks[0].limits[0].unit | INVALID checks[1].limits[0].period
		Check (z `+strings.Repeat("limits {} ", 5000)+`) => INVALID checks[0].limits
		Check checks {domain: "shop" `+strings.Repeat("descriptor {key: \"k\"} ", 5000)+`} => INVALID checks[0].descriptor
	`)
}

func TestBadCalls(t *testing.T) {
	d := openNode(t)
	for _, n := range []int{0, limiter.MaxChecks + 1, 100_000} {
		checks := make([]*sluicev1.Check, n)
		for i := range checks {
			checks[i] = &sluicev1.Check{}
		}
		_, err := d.client.Check(t.Context(), request(checks...))
		st := status.Convert(err)
		if ds := st.Details(); st.Code() != codes.InvalidArgument || !strings.HasPrefix(st.Message(), "checks: ") || len(ds) != 2 ||
			ds[0].(*sluicev1.Error).GetField() != "checks" || ds[1].(*errdetails.ErrorInfo).GetReason() != "INVALID" {
			t.Errorf("%d checks: %v, details %v", n, st, ds)
		}
	}
	big := request(user(strings.Repeat("x", maxMessage)))
	if _, err := d.client.Check(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message over the limit: %v", err)
	}
	d.play(t, "Check (x) => ALLOWED 2/3 allowed:true")
}

func TestCallErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{&limiter.Error{Code: limiter.Invalid}, codes.InvalidArgument},
		{&limiter.Error{Code: limiter.UnknownDomain}, codes.InvalidArgument},
		{&limiter.Error{Code: limiter.Overloaded}, codes.Unavailable},
		{&limiter.Error{Code: limiter.Unavailable}, codes.Unavailable},
		{&limiter.Error{Code: limiter.NotFound}, codes.NotFound},
		{&limiter.Error{Code: limiter.Rejected}, codes.FailedPrecondition},
		{&limiter.Error{Code: limiter.Forbidden}, codes.PermissionDenied},
		{&limiter.Error{}, codes.Internal},
		{errors.New("another"), codes.Internal},
	} {
		if got := status.Code(statusOf(c.err)); got != c.want {
			t.Errorf("%#v: %v, want %v", c.err, got, c.want)
		}
	}
	d := open(t, Config{Limiter: newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
		for i := range b.Answers {
			b.Answers[i].Err = check.ErrOverloaded
		}
	}))})
	if _, err := d.client.Check(t.Context(), request(user("x"))); status.Code(err) != codes.Unavailable {
		t.Errorf("overload of everything: %v", err)
	}
	d.play(t, `Check (x) checks {domain: "nowhere" descriptor {key: "user"}} => OVERLOADED | ALLOWED UNMATCHED`)
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{ encoding.Codec }

func (bytesCodec) Name() string { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, errors.New("not bytes")
	}
	return b, nil
}
func (bytesCodec) Unmarshal(_ []byte, v any) error { return nil }

func TestMalformedProtobuf(t *testing.T) {
	d := openNode(t)
	badText, err := proto.Marshal(request(user("xyz")))
	if err != nil {
		t.Fatal(err)
	}
	badText = []byte(strings.Replace(string(badText), "xyz", "x\xffz", 1))
	for name, body := range map[string][]byte{
		"garbage":          []byte("\xff\xff\xff\xff\xffnot a message"),
		"cut short":        {0x0a, 0x7f, 0x01},
		"text not in UTF8": badText,
	} {
		var got []byte
		err := d.conn.Invoke(t.Context(), sluicev1.RateLimitService_Check_FullMethodName, body, &got, grpc.ForceCodec(bytesCodec{}))
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "unmarshal") {
			t.Errorf("%s: %v", name, err)
		}
		stream, err := d.conn.NewStream(t.Context(), &sluicev1.RateLimitService_ServiceDesc.Streams[0],
			"/sluice.v1.RateLimitService/CheckStream", grpc.ForceCodec(bytesCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(body); err != nil {
			t.Fatal(err)
		}
		var res []byte
		if err := stream.RecvMsg(&res); status.Code(err) != codes.Internal {
			t.Errorf("%s to CheckStream: %v", name, err)
		}
	}
	if _, err := d.client.Check(t.Context(), request(user("x"))); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestRequestFields: a request of a stream has its own time and trace, and a feature that the node lacks is not ignored.
func TestRequestFields(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	asked := make(chan context.Context, 1)
	got := ""
	d := open(t, Config{Tracing: true, Limiter: watched{newLimiter(t, decideFunc(func(ctx context.Context, b *check.Batch) {
		asked <- ctx
		for i := range b.Answers {
			b.Answers[i].Err = check.ErrOverloaded
		}
	})), func(b *limiter.Batch) { got = b.Traceparent }}})
	stream, err := d.client.CheckStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(change func(*sluicev1.CheckRequest)) *sluicev1.CheckResponse {
		t.Helper()
		r := request(user("x"))
		change(r)
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		res, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	send(func(r *sluicev1.CheckRequest) { r.TimeoutNs, r.Traceparent = int64(time.Minute), trace })
	if deadline, ok := (<-asked).Deadline(); !ok || time.Until(deadline) > time.Minute || got != trace {
		t.Errorf("deadline %v %v, trace %q", deadline, ok, got)
	}
	send(func(r *sluicev1.CheckRequest) { r.Traceparent = strings.Repeat("0", maxTraceparent+1) })
	if <-asked; got != "" {
		t.Errorf("a long trace: %q", got)
	}
	d.play(t, `
		CheckStream (x) requires: "regions" => error:{code:ERROR_CODE_UNSUPPORTED field:"requires" message:"this node does not have \"regions\"; ask a node of a newer version"}
		CheckStream (x) timeout_ns: -1 => error:{code:ERROR_CODE_INVALID field:"timeout_ns" message:"negative; want the time that the node may take, or 0 for no bound"}
	`)
	d.play(t, `Check (x) requires: "regions" => Unimplemented requires: this node does not have "regions"; ask a node of a newer version`)
}

// watched tells of each batch.
type watched struct {
	limiter.Service
	see func(*limiter.Batch)
}

func (w watched) Check(ctx context.Context, b *limiter.Batch) error {
	w.see(b)
	return w.Service.Check(ctx, b)
}
