package grpcapi

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
)

// FuzzDecode holds question to the generated type: both accept the same bytes,
// and a question has the batch that would be made of the message.
func FuzzDecode(f *testing.F) {
	cost := int64(7)
	whole, err := proto.Marshal(&sluicev1.CheckRequest{
		Checks: []*sluicev1.Check{
			{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "ä"}, {}}, Cost: &cost, Verb: sluicev1.Verb_VERB_CHARGE},
			{Limits: []*sluicev1.Limit{{Count: 5, PeriodNs: 1e9, Timezone: "Europe/Berlin"}, {Algorithm: 99}}, Verb: 9},
			{Limits: []*sluicev1.Limit{{
				Algorithm: 2, Count: 3, PeriodNs: 5e9, Burst: 7, Weight: 11, Refill: 1, Align: 2, Unit: 3, Timezone: "UTC", MinIntervalNs: 13, SoftPercent: 17, CountDenied: true, SubWindows: 19,
				LogEntries: 23, BlockForNs: 29,
			}, {Unlimited: true}}},
		},
		AllOrNothing: true, Id: math.MaxUint64, TimeoutNs: 1e9, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Requires: []string{"reservations"}, IdempotencyKey: strings.Repeat("k", 200),
		Lease: &sluicev1.LeaseRequest{Units: 3, TtlNs: 1e7, Ended: "é", Actual: -1},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	var many sluicev1.CheckRequest // of which strings return, and others fill several chunks
	for i := range 300 {
		many.Checks = append(many.Checks, &sluicev1.Check{
			Domain: []string{"auth", "shop"}[i/100%2], Descriptor_: []*sluicev1.Entry{{Key: "user", Value: strings.Repeat("v", i)}, {Key: "path"}}[:1+i%2],
		})
	}
	long, err := proto.Marshal(&many)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(long)
	f.Add(whole[:len(whole)-3])
	f.Add([]byte{0x0a, 0x00})                                                                       // one empty check
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, requestChecks, protowire.VarintType), 3)) // a known field of another type
	f.Add([]byte{0x0a, 0x04, 0x0a, 0x02, 0xff, 0xfe})                                               // invalid UTF-8
	f.Add([]byte{0x0a, 0x03, 0x0a, 0x01, 'a', 0x0a, 0x04, 0x0a, 0x02, 'a', 0xff})                   // the same behind a check with a part of it
	f.Add([]byte{0x0a, 0x06, 0x12, 0x04, 0x1b, 0x20, 0x01, 0x1c})                                   // an unknown group in an entry
	f.Fuzz(func(t *testing.T, data []byte) {
		var m sluicev1.CheckRequest
		wantErr := proto.Unmarshal(data, &m)
		q := new(question)
		err := q.DecodeWire(data)
		defer q.batch.Release()
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("decode: %v, proto.Unmarshal: %v", err, wantErr)
		}
		if err != nil {
			return
		}
		want := limiter.NewBatch()
		defer want.Release()
		want.AllOrNothing = m.GetAllOrNothing()
		fill(want, m.GetChecks()[:min(len(m.GetChecks()), limiter.MaxChecks)])
		if !reflect.DeepEqual(normal(q.batch.Checks), normal(want.Checks)) || q.batch.AllOrNothing != want.AllOrNothing || q.id != m.GetId() {
			t.Fatalf("decode: %+v %v %d\nwant:   %+v %v %d", q.batch.Checks, q.batch.AllOrNothing, q.id, want.Checks, want.AllOrNothing, m.GetId())
		}
		if want := m.GetIdempotencyKey(); q.batch.IdempotencyKey != want[:min(len(want), limiter.MaxIdempotencyKey+1)] {
			t.Fatalf("idempotency key %q, want %q", q.batch.IdempotencyKey, want)
		}
		if q.timeout != time.Duration(m.GetTimeoutNs()) || q.traceparent != m.GetTraceparent()[:min(len(m.GetTraceparent()), maxTraceparent+1)] {
			t.Fatalf("timeout %v, traceparent %q; want %v, %q", q.timeout, q.traceparent, m.GetTimeoutNs(), m.GetTraceparent())
		}
		if !proto.Equal(q.lease, m.GetLease()) {
			t.Fatalf("lease %v, want %v", q.lease, m.GetLease())
		}
		if (q.fault == nil) != (limiter.CountError(len(m.GetChecks())) == nil &&
			!slices.ContainsFunc(m.GetRequires(), func(f string) bool { return !slices.Contains(limiter.Features, f) }) && m.GetTimeoutNs() >= 0) {
			t.Fatalf("fault %v with %d checks", q.fault, len(m.GetChecks()))
		}
	})
}

// normal makes empty slices equal, whatever memory they came with, and leaves out
// which of several faults is named: that follows the order on the wire.
func normal(checks []limiter.Check) []limiter.Check {
	list := make([]limiter.Check, len(checks))
	for i, c := range checks {
		c.Descriptor = append([]rules.Entry(nil), c.Descriptor...)
		c.Limits = append([]bucket.Limit(nil), c.Limits...)
		if c.Err != nil {
			c.Err = &limiter.Error{Code: c.Err.Code}
		}
		list[i] = c
	}
	return list
}

// TestEncode compares what answer puts on the wire with the generated type.
func TestEncode(t *testing.T) {
	// A name is longer than a one-byte length can say.
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(`
domain: d
descriptors:
  - key: plain
    limits:
      - {name: "` + strings.Repeat("r", 200) + `", algorithm: token_bucket, count: 200, burst: 1099511627776, period: 1h}
      - {count: 1, period: 1m}
  - {key: shared, on_failure: share, limits: [1/1m]}
  - {key: closed, on_failure: closed, limits: [1/1m]}
  - key: spoken
    limits:
      - {algorithm: token_bucket, count: 200, burst: 1099511627776, period: 1h}
      - {name: minutely, count: 1, period: 1m}
    on_failure: open
    response: {status: 503, headers: {X-Why: "` + strings.Repeat("v", 130) + `", X-Empty: ""}, body: "no"}
`)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	match := func(key string) *rules.Rule {
		r, _ := set.Match("d", []rules.Entry{{Key: key}})
		return r
	}
	rule, spoken := match("plain"), match("spoken")
	stated := map[*rules.Rule]sluicev1.OnFailure{
		match("shared"): sluicev1.OnFailure_ON_FAILURE_SHARE, match("closed"): sluicev1.OnFailure_ON_FAILURE_CLOSED,
		spoken: sluicev1.OnFailure_ON_FAILURE_OPEN,
	}
	limits := rule.Limits
	response := &sluicev1.DenialResponse{
		Status: 503, Headers: []*sluicev1.DenialHeader{{Name: "X-Why", Value: strings.Repeat("v", 130)}, {Name: "X-Empty"}}, Body: "no",
	}
	values := []int64{0, 1, 127, 128, math.MaxInt64, -1}
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func() int64 { return values[rng.IntN(len(values))] }
	coin := func() bool { return rng.IntN(2) == 0 }
	b := limiter.NewBatch()
	want := &sluicev1.CheckResponse{Id: 1 << 40}
	for i := range 300 {
		r := limiter.Result{
			Decision: bucket.Decision{
				Allowed: coin(), Soft: coin(), Index: uint8(rng.IntN(2)), Limit: pick(), Remaining: pick(),
				ResetAfter: time.Duration(pick()), RetryAfter: time.Duration(pick()), Delay: time.Duration(pick()),
			},
			Source: check.Source(rng.IntN(9)), Owner: []string{"", "n1"}[rng.IntN(2)], Period: time.Duration(pick()), Shadowed: coin(), Elastic: coin(), DeniedFor: time.Duration(pick()), Staleness: time.Duration(pick()),
		}
		if coin() {
			r.Limits = limits
		}
		if coin() {
			r.Rule = []*rules.Rule{rule, spoken}[rng.IntN(2)]
		}
		if r.Limits == nil && coin() { // nothing else comes from these rules
			r.Rule = match([]string{"shared", "closed"}[rng.IntN(2)])
		}
		d := &sluicev1.Decision{Rule: r.RuleName(), OnFailure: stated[r.Rule]}
		if rng.IntN(4) == 0 {
			r.Err = &limiter.Error{Code: limiter.Invalid, Field: "cost", Message: strings.Repeat("long ", rng.IntN(4000))}
			d.Error = errorAt(r.Err, i)
		} else {
			d.Allowed, d.Verdict, d.Source, d.Owner = r.Allowed, sluicev1.Verdict(r.Verdict()), sluicev1.Source(r.Source), r.Owner
			if l := limits.At(int(r.Index)); r.Counted() {
				d.Limit, d.Remaining, d.Count, d.Burst = new(r.Limit), new(r.Remaining), l.Count, l.Burst
				d.LimitIndex, d.PeriodNs = uint32(r.Index), int64(r.Period)
				if r.Rule != nil {
					d.LimitName = r.Rule.LimitName(int(r.Index))
				}
			}
			if wait, ok := r.RetryIn(); ok && !r.Allowed {
				d.RetryAfterNs = new(int64(wait))
			}
			d.ResetAfterNs, d.DelayNs, d.DeniedForNs, d.StalenessNs = int64(r.ResetAfter), int64(r.Delay), int64(r.DeniedFor), int64(r.Staleness)
			if r.Rule == spoken && !r.Allowed {
				d.Response = response
			}
		}
		b.Results = append(b.Results, r)
		want.Decisions = append(want.Decisions, d)
	}
	compareEncoded(t, &answer{batch: b, id: 1 << 40}, want)

	fault := &limiter.Error{Code: limiter.Overloaded, Message: "full"}
	compareEncoded(t, &answer{id: 5, fault: fault}, &sluicev1.CheckResponse{Id: 5, Error: callError(fault)})
	compareEncoded(t, &answer{}, &sluicev1.CheckResponse{})
}

// TestEncodeResponses: responses of rules never make a message larger than clients read by
// default, and a decision without one is whole otherwise.
func TestEncodeResponses(t *testing.T) {
	long := &rules.Rule{Name: "long", Response: &rules.Response{Body: strings.Repeat("b", 64<<10)}}
	short := &rules.Rule{Name: "short", Response: &rules.Response{Status: 503}}
	b := limiter.NewBatch()
	for range 9_999 {
		b.Results = append(b.Results, limiter.Result{Source: check.Owned, Rule: long})
	}
	b.Results = append(b.Results, limiter.Result{Source: check.Owned, Rule: short})
	data := (&answer{batch: b}).EncodeWire().MaterializeToBuffer(mem.DefaultBufferPool())
	defer data.Free()
	if n := data.Len(); n > 4<<20 {
		t.Errorf("%d bytes", n)
	}
	var got sluicev1.CheckResponse
	if err := proto.Unmarshal(data.ReadOnlyData(), &got); err != nil {
		t.Fatal(err)
	}
	spoken := 0
	for i, d := range got.Decisions {
		if d.Source != sluicev1.Source_SOURCE_OWNED || d.Rule == "" {
			t.Fatalf("decision %d: %v", i, d)
		}
		if d.Response != nil {
			spoken++
		}
	}
	if spoken != 16 || got.Decisions[0].GetResponse().GetBody() != long.Response.Body || got.Decisions[9_999].GetResponse().GetStatus() != 503 {
		t.Errorf("%d responses, the last %v; want 15 long ones and the short one", spoken, got.Decisions[9_999].Response)
	}
}

func compareEncoded(t *testing.T, a *answer, want *sluicev1.CheckResponse) {
	t.Helper()
	data := a.EncodeWire().MaterializeToBuffer(mem.DefaultBufferPool())
	var got sluicev1.CheckResponse
	if err := proto.Unmarshal(data.ReadOnlyData(), &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, want) {
		t.Errorf("got %v\nwant %v", &got, want)
	}
}

func BenchmarkDecode(b *testing.B) {
	m := &sluicev1.CheckRequest{}
	for i := range 100 {
		m.Checks = append(m.Checks, &sluicev1.Check{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: fmt.Sprintf("%010d", i)}}})
	}
	data, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("question", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q := new(question)
			if err := q.DecodeWire(data); err != nil {
				b.Fatal(err)
			}
			q.batch.Release()
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m sluicev1.CheckRequest
			if err := proto.Unmarshal(data, &m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	rule := &rules.Rule{Name: "login-per-user"}
	b.ReportAllocs()
	for b.Loop() {
		batch := limiter.NewBatch()
		for range 100 {
			batch.Results = append(batch.Results, limiter.Result{
				Decision: bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: 6 * time.Second},
				Source:   check.Owned, Owner: "n1", Rule: rule, Period: time.Minute,
			})
		}
		data := (&answer{batch: batch}).EncodeWire()
		data.Free()
	}
}

// fill adds checks, decoded by the generated type, to b. A value of the wire that a limiter.Check cannot hold becomes the check's Err.
func fill(b *limiter.Batch, checks []*sluicev1.Check) {
	for _, p := range checks {
		c := b.Add()
		c.Domain = p.GetDomain()
		entries := p.GetDescriptor_()
		// One too many is enough for it to be rejected.
		for _, e := range entries[:min(len(entries), limiter.MaxEntries+1)] {
			c.Descriptor = append(c.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if p != nil && p.Cost != nil {
			c.Cost = *p.Cost
		}
		setVerb(c, int32(p.GetVerb()))
		limits := p.GetLimits()
		for i, l := range limits[:min(len(limits), bucket.MaxLimits+1)] {
			addLimit(c, i, l)
		}
	}
}
