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

// change returns c after f.
func change(c *sluicev1.Check, f func(*sluicev1.Check)) *sluicev1.Check {
	f(c)
	return c
}

func TestCheck(t *testing.T) {
	d := openNode(t)
	cost := func(n int64) func(*sluicev1.Check) { return func(c *sluicev1.Check) { c.Cost = &n } }
	verb := func(v sluicev1.Verb) func(*sluicev1.Check) { return func(c *sluicev1.Check) { c.Verb = v } }
	for i, c := range []struct {
		ask     *sluicev1.Check
		allowed bool
		left    int64
	}{
		{user("x"), true, 2},
		{change(user("x"), cost(0)), true, 2},
		{change(user("x"), verb(sluicev1.Verb_VERB_READ)), true, 2},
		{change(user("x"), cost(2)), true, 0},
		{user("x"), false, 0},
		{change(user("x"), verb(sluicev1.Verb_VERB_REFUND)), true, 1},
		{user("x"), true, 0},
		{change(user("x"), verb(sluicev1.Verb_VERB_CHARGE)), true, 0},
	} {
		res, err := d.client.Check(t.Context(), request(c.ask))
		if err != nil {
			t.Fatal(err)
		}
		got := res.GetDecisions()[0]
		if got.GetAllowed() != c.allowed || got.GetRemaining() != c.left || got.GetError() != nil {
			t.Errorf("step %d: %v", i, got)
		}
		if got.GetRule() != "shop/user" || got.GetLimit() != 3 || got.GetSource() != sluicev1.Source_SOURCE_OWNED ||
			got.GetOwner() != "n1" || got.GetPeriodNs() != int64(time.Minute) {
			t.Errorf("step %d: %v", i, got)
		}
		if retry := got.GetRetryAfterNs(); (retry > 0) == c.allowed || got.GetVerdict() == sluicev1.Verdict_VERDICT_DENIED_NEVER {
			t.Errorf("step %d: retry after %d", i, retry)
		}
	}
}

func TestDecisionForms(t *testing.T) {
	d := openNode(t)
	big := int64(4)
	watched := &sluicev1.Check{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "watched", Value: "x"}}, Cost: &big}
	res, err := d.client.Check(t.Context(), request(
		change(user("x"), func(c *sluicev1.Check) { c.Cost = &big }),
		watched,
		change(user("x"), func(c *sluicev1.Check) { c.Domain = "nowhere" }),
		change(user("x"), func(c *sluicev1.Check) {
			c.Limits = []*sluicev1.Limit{
				{Unlimited: true}, // decides nothing, and has a place
				{Count: 9, PeriodNs: 1e9},
				{Algorithm: sluicev1.Algorithm_ALGORITHM_LEAKY_QUEUE, Count: 1, PeriodNs: 1e9, Burst: 4},
			}
		}),
	))
	if err != nil {
		t.Fatal(err)
	}
	ds := res.GetDecisions()
	if ds[0].GetAllowed() || ds[0].GetVerdict() != sluicev1.Verdict_VERDICT_DENIED_NEVER || ds[0].RetryAfterNs != nil {
		t.Errorf("never: %v", ds[0])
	}
	if !ds[1].GetAllowed() || ds[1].GetVerdict() != sluicev1.Verdict_VERDICT_ALLOWED_SHADOW || ds[1].RetryAfterNs != nil {
		t.Errorf("shadow: %v", ds[1])
	}
	if !ds[2].GetAllowed() || ds[2].GetSource() != sluicev1.Source_SOURCE_UNMATCHED || ds[2].Limit != nil || ds[2].Remaining != nil || ds[2].GetRule() != "" {
		t.Errorf("unmatched: %v", ds[2])
	}
	if !ds[3].GetAllowed() || ds[3].GetLimitIndex() != 2 || ds[3].GetLimit() != 4 || ds[3].GetPeriodNs() != 1e9 || ds[3].GetRule() != "" {
		t.Errorf("limits of its own: %v", ds[3])
	}
}

func TestBadChecks(t *testing.T) {
	long := strings.Repeat("x", limiter.MaxText+1)
	limit := func(l *sluicev1.Limit) func(*sluicev1.Check) {
		return func(c *sluicev1.Check) { c.Limits = []*sluicev1.Limit{{Count: 1, PeriodNs: 1e9}, l} }
	}
	entries := func(n int) func(*sluicev1.Check) {
		return func(c *sluicev1.Check) {
			c.Descriptor_ = nil
			for range n {
				c.Descriptor_ = append(c.Descriptor_, &sluicev1.Entry{Key: "k"})
			}
		}
	}
	for _, c := range []struct {
		field string
		spoil func(*sluicev1.Check)
	}{
		{"domain", func(c *sluicev1.Check) { c.Domain = "" }},
		{"domain", func(c *sluicev1.Check) { c.Domain = long }},
		{"descriptor", entries(0)},
		{"descriptor", entries(limiter.MaxEntries + 1)},
		{"descriptor", entries(5000)},
		{"descriptor[0].key", func(c *sluicev1.Check) { c.Descriptor_[0].Key = "" }},
		{"descriptor[0].key", func(c *sluicev1.Check) { c.Descriptor_[0].Key = long }},
		{"cost", func(c *sluicev1.Check) { c.Cost = proto.Int64(-1) }},
		{"verb", func(c *sluicev1.Check) { c.Verb = 5 }},
		{"verb", func(c *sluicev1.Check) { c.Verb = -1 }},
		{"verb", func(c *sluicev1.Check) { c.Verb = 256 }},
		{"limits[1].algorithm", limit(&sluicev1.Limit{Algorithm: 99, Count: 1, PeriodNs: 1e9})},
		{"limits[1].unit", limit(&sluicev1.Limit{Unit: 99, Count: 1, PeriodNs: 1e9})},
		{"limits[1].period", limit(&sluicev1.Limit{Count: 1})},
		{"limits[1].count", limit(&sluicev1.Limit{Count: -1, PeriodNs: 1e9})},
		{"limits", func(c *sluicev1.Check) { c.Limits = make([]*sluicev1.Limit, 5000); clearNil(c.Limits) }},
	} {
		d := openNode(t)
		res, err := d.client.Check(t.Context(), request(user("x"), change(user("x"), c.spoil), user("x")))
		if err != nil {
			t.Fatalf("%s: %v", c.field, err)
		}
		ds := res.GetDecisions()
		e := ds[1].GetError()
		if e.GetCode() != sluicev1.ErrorCode_ERROR_CODE_INVALID || e.GetField() != "checks[1]."+c.field || e.GetMessage() == "" || ds[1].GetAllowed() {
			t.Errorf("%s: %v", c.field, ds[1])
		}
		if !ds[0].GetAllowed() || !ds[2].GetAllowed() || ds[2].GetRemaining() != 1 {
			t.Errorf("%s: its neighbours: %v, %v", c.field, ds[0], ds[2])
		}
	}
}

// clearNil makes messages of nils, which cannot be sent.
func clearNil(limits []*sluicev1.Limit) {
	for i := range limits {
		limits[i] = &sluicev1.Limit{}
	}
}

func TestBadCalls(t *testing.T) {
	d := openNode(t)
	for _, n := range []int{0, limiter.MaxChecks + 1, 100_000} {
		checks := make([]*sluicev1.Check, n)
		for i := range checks {
			checks[i] = &sluicev1.Check{}
		}
		_, err := d.client.Check(t.Context(), &sluicev1.CheckRequest{Checks: checks})
		st, _ := status.FromError(err)
		if st.Code() != codes.InvalidArgument || !strings.HasPrefix(st.Message(), "checks: ") {
			t.Errorf("%d checks: %v", n, st)
		}
		if ds := st.Details(); len(ds) != 2 || ds[0].(*sluicev1.Error).GetField() != "checks" || ds[1].(*errdetails.ErrorInfo).GetReason() != "INVALID" {
			t.Errorf("%d checks: details %v", n, st.Details())
		}
	}
	big := request(user(strings.Repeat("x", maxMessage)))
	if _, err := d.client.Check(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message over the limit: %v", err)
	}
	if _, err := d.client.Check(t.Context(), request(user("x"))); err != nil {
		t.Errorf("afterwards: %v", err)
	}
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
	res, err := d.client.Check(t.Context(), request(user("x"), change(user("x"), func(c *sluicev1.Check) { c.Domain = "nowhere" })))
	if err != nil {
		t.Fatal(err)
	}
	if e := res.GetDecisions()[0].GetError(); e.GetCode() != sluicev1.ErrorCode_ERROR_CODE_OVERLOADED || e.GetField() != "" {
		t.Errorf("overload of one check: %v", e)
	}
}

func TestReset(t *testing.T) {
	d := openNode(t)
	three := int64(3)
	spend := change(user("x"), func(c *sluicev1.Check) { c.Cost = &three })
	for range 2 {
		res, err := d.client.Check(t.Context(), request(spend))
		if err != nil || !res.GetDecisions()[0].GetAllowed() {
			t.Fatal(res, err)
		}
		forget := func(c *sluicev1.Check) { c.Verb = sluicev1.Verb_VERB_RESET }
		reset, err := d.client.Check(t.Context(), request(change(user("x"), forget), change(&sluicev1.Check{}, forget)))
		if err != nil {
			t.Fatal(err)
		}
		ds := reset.GetDecisions()
		if ds[0].GetError() != nil || ds[0].GetOwner() != "n1" || ds[0].GetRule() != "shop/user" {
			t.Errorf("%v", ds[0])
		}
		if ds[1].GetError().GetField() != "checks[1].domain" {
			t.Errorf("%v", ds[1])
		}
	}
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
	for name, c := range map[string]struct {
		change func(*sluicev1.CheckRequest)
		code   sluicev1.ErrorCode
		field  string
	}{
		"a feature that it lacks": {func(r *sluicev1.CheckRequest) { r.Requires = []string{"regions"} }, sluicev1.ErrorCode_ERROR_CODE_UNSUPPORTED, "requires"},
		"a negative time":         {func(r *sluicev1.CheckRequest) { r.TimeoutNs = -1 }, sluicev1.ErrorCode_ERROR_CODE_INVALID, "timeout_ns"},
	} {
		if e := send(c.change).GetError(); e.GetCode() != c.code || e.GetField() != c.field {
			t.Errorf("%s: %v", name, e)
		}
	}
	unsupported := request(user("x"))
	unsupported.Requires = []string{"regions"}
	if _, err := d.client.Check(t.Context(), unsupported); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call: %v", err)
	}
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
