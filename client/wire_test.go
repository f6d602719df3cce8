package client

import (
	"math"
	"math/rand"
	"reflect"
	"testing"
	"testing/quick"
	"time"

	"google.golang.org/protobuf/proto"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// number is of any magnitude.
type number int64

func (number) Generate(r *rand.Rand, _ int) reflect.Value {
	return reflect.ValueOf(number(int64(r.Uint64()) >> r.Intn(64)))
}

// random calls f with random arguments, a thousand times.
func random(t *testing.T, f any) {
	if err := quick.Check(f, &quick.Config{MaxCount: 1000}); err != nil {
		t.Fatal(err)
	}
}

// TestRequestAsGenerated: what is written by hand is what the generated type reads.
func TestRequestAsGenerated(t *testing.T) {
	random(t, func(domain string, descriptor []Entry, limits []struct {
		Count, Period, Soft number
		Zone                string
	}, amount number, verb sluicev1.Verb) bool {
		q := Check{Domain: domain, Descriptor: descriptor}
		for _, l := range limits {
			q.Limits = append(q.Limits, Limit{Algorithm: SlidingLog, Count: int64(l.Count), Period: time.Duration(l.Period), TimeZone: l.Zone, Soft: int32(l.Soft)})
		}
		cost, verb := int64(amount)&math.MaxInt64, verb&3
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
		return true
	})
}

// TestAnswerAsGenerated: what the generated type writes is read in full.
func TestAnswerAsGenerated(t *testing.T) {
	random(t, func(allowed, counted, waits bool, verdict, source uint8, rule, owner string, n [9]number) bool {
		p := &sluicev1.Decision{
			Allowed: allowed, Verdict: sluicev1.Verdict(1 + verdict%7), Source: sluicev1.Source(source % 9), Rule: rule, Owner: owner,
			ResetAfterNs: int64(n[0]), DelayNs: int64(n[1]), PeriodNs: int64(n[2]), DeniedForNs: int64(n[3]), StalenessNs: int64(n[4]),
			LimitIndex: uint32(n[5]),
		}
		if counted {
			p.Limit, p.Remaining = new(int64(n[6])), new(int64(n[7]))
		}
		if waits && p.Verdict != sluicev1.Verdict_VERDICT_DENIED_NEVER {
			p.RetryAfterNs = new(int64(n[8]))
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
		return true
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
