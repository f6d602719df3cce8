package sluice

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/sluice-project/sluice/client/limit"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// TestRequestAsGenerated: what is written by hand is what the generated type reads.
func TestRequestAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, want := Check{Domain: rapid.String().Draw(t, "domain")}, &sluicev1.Check{}
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			q.Descriptor = append(q.Descriptor, Entry{Key: rapid.String().Draw(t, "key"), Value: rapid.String().Draw(t, "value")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "limits") {
			p := &sluicev1.Limit{
				Algorithm: sluicev1.Algorithm(rapid.IntRange(0, 7).Draw(t, "algorithm")), Count: rapid.Int64().Draw(t, "count"),
				PeriodNs: rapid.Int64().Draw(t, "period"), Unlimited: rapid.Bool().Draw(t, "unlimited"), Burst: rapid.Int64().Draw(t, "burst"),
				Weight: rapid.Int64().Draw(t, "weight"), Refill: sluicev1.Refill(rapid.IntRange(0, 1).Draw(t, "refill")),
				Align: sluicev1.Align(rapid.IntRange(0, 2).Draw(t, "align")), Unit: sluicev1.CalendarUnit(rapid.IntRange(0, 6).Draw(t, "unit")),
				Timezone: rapid.String().Draw(t, "zone"), MinIntervalNs: rapid.Int64().Draw(t, "interval"), SoftPercent: rapid.Int32().Draw(t, "soft"),
				CountDenied: rapid.Bool().Draw(t, "denied"), SubWindows: rapid.Int32().Draw(t, "windows"), LogEntries: rapid.Int32().Draw(t, "entries"),
				BlockForNs: rapid.Int64().Draw(t, "block"),
			}
			want.Limits = append(want.Limits, p)
			q.Limits = append(q.Limits, Limit{
				Algorithm: limit.Algorithm(p.Algorithm), Count: p.Count, Period: time.Duration(p.PeriodNs), Unlimited: p.Unlimited, Burst: p.Burst,
				Weight: p.Weight, Refill: limit.Refill(p.Refill), Align: limit.Align(p.Align), Unit: limit.Unit(p.Unit), TimeZone: p.Timezone,
				MinInterval: time.Duration(p.MinIntervalNs), SoftPercent: p.SoftPercent, CountDenied: p.CountDenied, SubWindows: p.SubWindows,
				LogEntries: p.LogEntries, BlockFor: time.Duration(p.BlockForNs),
			})
		}
		q.Amount, q.Verb = rapid.Int64Range(0, math.MaxInt64).Draw(t, "amount"), limit.Verb(rapid.IntRange(0, 4).Draw(t, "verb"))
		b, err := appendCounter(nil, &q)
		if err != nil {
			t.Fatal(err)
		}
		var got sluicev1.Check
		if err := proto.Unmarshal(appendSpending(b, &q), &got); err != nil {
			t.Fatal(err)
		}
		want.Domain, want.Verb = q.Domain, sluicev1.Verb(q.Verb)
		if q.Amount != 1 {
			want.Cost = &q.Amount
		}
		for _, e := range q.Descriptor {
			want.Descriptor_ = append(want.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: e.Value})
		}
		if !proto.Equal(&got, want) {
			t.Fatalf("%v\nwant %v", &got, want)
		}
	})
}

// TestNumbers: the constants of package limit have the numbers and names of the generated ones.
func TestNumbers(t *testing.T) {
	for _, e := range []struct {
		prefix string
		names  map[int32]string
		name   func(int32) string
	}{
		{"VERB_", sluicev1.Verb_name, func(n int32) string { return limit.Verb(n).String() }},
		{"VERDICT_", sluicev1.Verdict_name, func(n int32) string { return limit.Verdict(n).String() }},
		{"SOURCE_", sluicev1.Source_name, func(n int32) string { return limit.Source(n).String() }},
		{"ALGORITHM_", sluicev1.Algorithm_name, func(n int32) string { return limit.Algorithm(n).String() }},
		{"REFILL_", sluicev1.Refill_name, func(n int32) string { return limit.Refill(n).String() }},
		{"ALIGN_", sluicev1.Align_name, func(n int32) string { return limit.Align(n).String() }},
		{"CALENDAR_UNIT_", sluicev1.CalendarUnit_name, func(n int32) string { return limit.Unit(n).String() }},
		{"ERROR_CODE_", sluicev1.ErrorCode_name, func(n int32) string { return strings.ReplaceAll(limit.Code(n).String(), " ", "_") }},
	} {
		for n, name := range e.names {
			want := strings.ToLower(strings.TrimPrefix(name, e.prefix))
			if got := e.name(n); got != want && want != "unspecified" {
				t.Errorf("%s is %q here", name, got)
			}
		}
		if got := e.name(int32(len(e.names))); !strings.HasPrefix(got, "unknown") {
			t.Errorf("%s%d is %q here", e.prefix, len(e.names), got)
		}
	}
}

// TestAnswerAsGenerated: what the generated type writes is read in full.
func TestAnswerAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &sluicev1.Decision{
			Allowed: rapid.Bool().Draw(t, "allowed"), Verdict: sluicev1.Verdict(rapid.IntRange(0, 16).Draw(t, "verdict")),
			ResetAfterNs: rapid.Int64().Draw(t, "reset"), DelayNs: rapid.Int64().Draw(t, "delay"),
			Rule: rapid.String().Draw(t, "rule"), Source: sluicev1.Source(rapid.SampledFrom([]int{0, 1, 2, 9, 10, 128, 257}).Draw(t, "source")), Owner: rapid.String().Draw(t, "owner"),
			LimitIndex: rapid.Uint32().Draw(t, "index"), PeriodNs: rapid.Int64().Draw(t, "period"), DeniedForNs: rapid.Int64().Draw(t, "denied for"),
			StalenessNs: rapid.Int64().Draw(t, "staleness"), LimitName: rapid.String().Draw(t, "name"), Count: rapid.Int64().Draw(t, "count"),
			Burst: rapid.Int64().Draw(t, "burst"),
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
			var d answer
			if fault, err := readDecision(b, &d, &names); fault != nil || err != nil {
				t.Fatalf("%v, %v", fault, err)
			}
			want := answer{Decision: Decision{
				Allowed: p.Allowed, Verdict: limit.Verdict(p.Verdict), Source: limit.Source(p.Source), LimitIndex: int(p.LimitIndex), LimitName: p.LimitName,
				Counted: p.Limit != nil, Limit: p.GetLimit(), Remaining: p.GetRemaining(), Count: p.Count, Burst: p.Burst,
				Period: time.Duration(p.PeriodNs), ResetAfter: time.Duration(p.ResetAfterNs), Delay: time.Duration(p.DelayNs), Rule: p.Rule, Owner: p.Owner,
				Staleness: time.Duration(p.StalenessNs),
			}, deniedFor: time.Duration(p.DeniedForNs)}
			if p.RetryAfterNs != nil {
				want.RetryAfter = max(1, time.Duration(*p.RetryAfterNs))
			}
			if p.Verdict > sluicev1.Verdict_VERDICT_DENIED_BY_OTHERS {
				want.Verdict = limit.VerdictUnknown
			}
			if p.Source > sluicev1.Source_SOURCE_LOST_STATE {
				want.Source = limit.SourceUnknown
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
			var d answer
			_, _ = readDecision(b, &d, &names)
		}
	})
}
