package client

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// TestRequestAsGenerated: what is written by hand is what the generated type reads.
func TestRequestAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := Check{Domain: rapid.String().Draw(t, "domain")}
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			q.Descriptor = append(q.Descriptor, Entry{rapid.String().Draw(t, "key"), rapid.String().Draw(t, "value")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "limits") {
			q.Limits = append(q.Limits, Limit{
				Algorithm: SlidingLog, Count: rapid.Int64().Draw(t, "count"), Period: time.Duration(rapid.Int64().Draw(t, "period")),
				TimeZone: rapid.String().Draw(t, "zone"), Soft: rapid.Int32().Draw(t, "soft"),
			})
		}
		cost, verb := rapid.Int64Range(0, math.MaxInt64).Draw(t, "cost"), sluicev1.Verb(rapid.IntRange(0, 3).Draw(t, "verb"))
		b, fault := appendCounter(nil, &q)
		if fault != nil {
			t.Fatal(fault)
		}
		var got sluicev1.Check
		if err := proto.Unmarshal(appendSpending(b, cost, verb), &got); err != nil {
			t.Fatal(err)
		}
		want := &sluicev1.Check{Domain: q.Domain, Verb: verb}
		if cost != 1 {
			want.Cost = proto.Int64(cost)
		}
		for _, e := range q.Descriptor {
			want.Descriptor_ = append(want.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: e.Value})
		}
		for i := range q.Limits {
			want.Limits = append(want.Limits, q.Limits[i].proto())
		}
		if !proto.Equal(&got, want) {
			t.Fatalf("%v\nwant %v", &got, want)
		}
	})
}

// TestAnswerAsGenerated: what the generated type writes is read in full.
func TestAnswerAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &sluicev1.Decision{
			Allowed: rapid.Bool().Draw(t, "allowed"), Verdict: sluicev1.Verdict(rapid.IntRange(1, 7).Draw(t, "verdict")),
			ResetAfterNs: rapid.Int64().Draw(t, "reset"), DelayNs: rapid.Int64().Draw(t, "delay"),
			Rule: rapid.String().Draw(t, "rule"), Source: sluicev1.Source(rapid.IntRange(0, 8).Draw(t, "source")), Owner: rapid.String().Draw(t, "owner"),
			LimitIndex: rapid.Uint32().Draw(t, "index"), PeriodNs: rapid.Int64().Draw(t, "period"), DeniedForNs: rapid.Int64().Draw(t, "denied for"),
			StalenessNs: rapid.Int64().Draw(t, "staleness"),
		}
		if rapid.Bool().Draw(t, "counted") {
			p.Limit, p.Remaining = new(rapid.Int64().Draw(t, "limit")), new(rapid.Int64().Draw(t, "remaining"))
		}
		if rapid.Bool().Draw(t, "helps to wait") && p.Verdict != sluicev1.Verdict_VERDICT_DENIED_NEVER {
			p.RetryAfterNs = new(rapid.Int64().Draw(t, "retry"))
		}
		b, err := proto.Marshal(&sluicev1.CheckResponse{Id: 7, Decisions: []*sluicev1.Decision{p, p}})
		if err != nil {
			t.Fatal(err)
		}
		id, decisions, failure, err := readResponse(b, nil)
		if id != 7 || len(decisions) != 2 || failure != nil || err != nil {
			t.Fatalf("%d, %d decisions, %v, %v", id, len(decisions), failure, err)
		}
		var names names
		for _, b := range decisions {
			var d Decision
			if fault, err := readDecision(b, &d, &names); fault != nil || err != nil {
				t.Fatalf("%v, %v", fault, err)
			}
			want := Decision{
				Allowed: p.Allowed, Source: Source(p.Source), LimitIndex: int(p.LimitIndex),
				Soft: p.Verdict == sluicev1.Verdict_VERDICT_ALLOWED_SOFT, Shadowed: p.Verdict == sluicev1.Verdict_VERDICT_ALLOWED_SHADOW,
				Elastic: p.Verdict == sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC,
				Limit:   p.GetLimit(), Remaining: p.GetRemaining(), Period: time.Duration(p.PeriodNs), ResetAfter: time.Duration(p.ResetAfterNs),
				RetryAfter: time.Duration(p.GetRetryAfterNs()), Delay: time.Duration(p.DelayNs), Rule: p.Rule, Owner: p.Owner,
				deniedFor: time.Duration(p.DeniedForNs), Staleness: time.Duration(p.StalenessNs),
			}
			if p.Verdict == sluicev1.Verdict_VERDICT_DENIED_NEVER {
				want.RetryAfter = Never
			}
			if want.Source == SourceUnmatched && want.Allowed {
				want.Limit, want.Remaining = math.MaxInt64, math.MaxInt64
			}
			if d != want {
				t.Fatalf("%+v\nwant %+v", d, want)
			}
		}
	})
}

// FuzzAnswer: no bytes of a node do worse than an error.
func FuzzAnswer(f *testing.F) {
	b, _ := proto.Marshal(&sluicev1.CheckResponse{Id: 7, Decisions: []*sluicev1.Decision{{Rule: "r", Response: &sluicev1.DenialResponse{Status: 1}}}, Error: &sluicev1.Error{Message: "m"}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, decisions, _, err := readResponse(b, nil)
		if err != nil && decisions != nil {
			t.Errorf("%d decisions with %v", len(decisions), err)
		}
		var names names
		for _, b := range decisions {
			var d Decision
			_, _ = readDecision(b, &d, &names)
		}
	})
}
