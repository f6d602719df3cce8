package sluice

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// source draws random values.
type source struct{ *rand.Rand }

// number is of any magnitude.
func (r source) number() int64 { return int64(r.Uint64()) >> r.IntN(64) }

func (r source) flag() bool { return r.IntN(2) == 0 }

// text is valid UTF-8, often empty.
func (r source) text() string {
	runes := make([]rune, r.IntN(8))
	for i := range runes {
		runes[i] = []rune("ab/\x00é漢\U0010ffff")[r.IntN(7)]
	}
	return string(runes)
}

// random calls f a thousand times with another source.
func random(t *testing.T, f func(t *testing.T, r source)) {
	t.Helper()
	for seed := range uint64(1000) {
		if f(t, source{rand.New(rand.NewPCG(seed, 0))}); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestRequestAsGenerated: what is written by hand is what the generated type reads.
func TestRequestAsGenerated(t *testing.T) {
	random(t, func(t *testing.T, r source) {
		q, want := Check{Domain: r.text()}, &sluicev1.Check{}
		for range r.IntN(5) {
			q.Descriptor = append(q.Descriptor, Entry{Key: r.text(), Value: r.text()})
		}
		for range r.IntN(3) {
			p := &sluicev1.Limit{
				Algorithm: sluicev1.Algorithm(r.IntN(8)), Count: r.number(),
				PeriodNs: r.number(), Unlimited: r.flag(), Burst: r.number(),
				Weight: r.number(), Refill: sluicev1.Refill(r.IntN(2)),
				Align: sluicev1.Align(r.IntN(3)), Unit: sluicev1.CalendarUnit(r.IntN(7)),
				Timezone: r.text(), MinIntervalNs: r.number(), SoftPercent: int32(r.number()),
				CountDenied: r.flag(), SubWindows: int32(r.number()), LogEntries: int32(r.number()),
				BlockForNs: r.number(),
			}
			want.Limits = append(want.Limits, p)
			q.Limits = append(q.Limits, Limit{
				Algorithm: limit.Algorithm(p.Algorithm), Count: p.Count, Period: time.Duration(p.PeriodNs), Unlimited: p.Unlimited, Burst: p.Burst,
				Weight: p.Weight, Refill: limit.Refill(p.Refill), Align: limit.Align(p.Align), Unit: limit.Unit(p.Unit), TimeZone: p.Timezone,
				MinInterval: time.Duration(p.MinIntervalNs), SoftPercent: p.SoftPercent, CountDenied: p.CountDenied, SubWindows: p.SubWindows,
				LogEntries: p.LogEntries, BlockFor: time.Duration(p.BlockForNs),
			})
		}
		q.Amount, q.Verb = r.number()&math.MaxInt64, limit.Verb(r.IntN(5))
		b, err := appendCounter(nil, &q)
		do(t, err)
		var got sluicev1.Check
		do(t, proto.Unmarshal(appendSpending(b, &q), &got))
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

func TestSessionAsGenerated(t *testing.T) {
	random(t, func(t *testing.T, r source) {
		want := new(sluicev1.SessionRequest)
		var out sessionRequest
		now, asking := time.Now(), map[uint64]*asked{}
		for i := range r.IntN(4) {
			w := &sluicev1.SlotRequest{Number: uint64(i + 1), Units: r.number(), Wait: r.flag(), Tenant: r.text(), Weight: r.number()}
			ask := AcquireRequest{Units: w.Units, Tenant: w.Tenant, Weight: w.Weight}
			if !w.Wait {
				ask.MaxWait = -1
			}
			for j := range 1 + r.IntN(3) {
				c := &sluicev1.Check{Domain: "d" + r.text(), Descriptor_: []*sluicev1.Entry{{Key: "k", Value: r.text()}}}
				key := limit.NewKey(nil, c.Domain, "k", c.Descriptor_[0].Value)
				if j == 0 {
					w.Check, ask.Key = c, key
				} else {
					w.Also, ask.With = append(w.Also, c), append(ask.With, key)
				}
			}
			body, _, err := ask.encode()
			do(t, err)
			q := &asked{body: body}
			if r.flag() {
				w.WaitedNs = int64(time.Second)
				q.began = now.Add(-time.Second)
			}
			out.acquire = append(out.acquire, w.Number)
			if r.flag() {
				asking[w.Number] = q
				want.Acquire = append(want.Acquire, w)
			}
		}
		for range r.IntN(3) {
			x := &Slot{number: 1 + uint64(r.number()&math.MaxInt64), ID: r.text()}
			out.release, out.resume = append(out.release, x.number), append(out.resume, x)
			want.Release = append(want.Release, x.number)
			want.Resume = append(want.Resume, &sluicev1.HeldSlot{Number: x.number, Reservation: x.ID})
		}
		want.Heartbeat = uint64(r.number())
		var got sluicev1.SessionRequest
		if err := proto.Unmarshal(*out.encode(now, want.Heartbeat, asking).out, &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("%v %v\nwant %v", err, &got, want)
		}
		if len(out.acquire)+len(out.release)+len(out.resume) != 0 {
			t.Fatal("it would be sent twice")
		}
	})
	random(t, func(t *testing.T, r source) {
		w := &sluicev1.SlotResponse{
			Number: uint64(r.number()), Decision: &sluicev1.Decision{Allowed: r.flag(), Remaining: new(r.number()), Rule: r.text()}, Reservation: r.text(), Fence: uint64(r.number()),
			ExpiresAfterNs: r.number(), Heartbeat: uint64(r.number()), Moved: r.flag(), Owner: r.text(), Waited: r.flag(),
		}
		if r.flag() {
			w.Error = &sluicev1.Error{Field: r.text()}
		}
		b, err := proto.Marshal(w)
		do(t, err)
		m := slotResponse{names: &names{}}
		if err := readFields(b, m.field); err != nil || m.number != w.Number || m.decision.Allowed != w.Decision.Allowed || m.decision.Remaining != *w.Decision.Remaining ||
			m.decision.Rule != w.Decision.Rule || m.id != w.Reservation || m.fence != w.Fence || m.expires != w.ExpiresAfterNs || m.heartbeat != w.Heartbeat || m.moved != w.Moved ||
			m.owner != w.Owner || m.waited != w.Waited || !proto.Equal(m.failure, w.Error) && w.Error != nil {
			t.Fatalf("%v %+v\nwant %v", err, m, w)
		}
		all := &sluicev1.SessionResponse{Heartbeat: uint64(r.number()), ExpiresAfterNs: r.number(), NotRenewed: []uint64{5, 1 << 50}}
		if b, err = proto.Marshal(all); err != nil {
			t.Fatal(err)
		}
		b = append(b, 0x20, 9) // not packed
		var h heartbeatAnswer
		if err := readFields(b, h.field); err != nil || h.heartbeat != all.Heartbeat || h.expires != all.ExpiresAfterNs || len(h.lost) != 3 || !h.lost[5] || !h.lost[1<<50] || !h.lost[9] {
			t.Fatalf("%v %+v\nwant %v", err, h, all)
		}
	})
	for _, b := range [][]byte{{0x0a, 5, 1}, {0x08}, {0x0d, 1}, {0xff}} {
		if err := readFields(b, new(heartbeatAnswer).field); err == nil {
			t.Errorf("%x is read", b)
		}
	}
	if err := readFields([]byte{0x22, 1, 0xff}, new(heartbeatAnswer).field); err == nil {
		t.Error("a number that ends too early is read")
	}
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
	random(t, func(t *testing.T, r source) {
		p := &sluicev1.Decision{
			Allowed: r.flag(), Verdict: sluicev1.Verdict(r.IntN(17)),
			ResetAfterNs: r.number(), DelayNs: r.number(),
			Rule: r.text(), Source: sluicev1.Source([]int{0, 1, 2, 9, 10, 128, 257}[r.IntN(7)]), Owner: r.text(),
			LimitIndex: uint32(r.number()), PeriodNs: r.number(), DeniedForNs: r.number(),
			StalenessNs: r.number(), LimitName: r.text(), Count: r.number(),
			Burst: r.number(),
		}
		if r.flag() {
			p.Limit, p.Remaining = new(r.number()), new(r.number())
		}
		if r.flag() && p.Verdict != sluicev1.Verdict_VERDICT_DENIED_NEVER {
			p.RetryAfterNs = new(r.number())
		}
		b, err := proto.Marshal(&sluicev1.CheckResponse{Id: 7, Decisions: []*sluicev1.Decision{p, p}, Lease: &sluicev1.Lease{Units: 3}})
		do(t, err)
		got, err := readResponse(b, nil)
		if got.id != 7 || len(got.decisions) != 2 || got.failure != nil || got.lease.GetUnits() != 3 || err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		var names names
		for _, b := range got.decisions {
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
	b, _ := proto.Marshal(&sluicev1.CheckResponse{Id: 7, Decisions: []*sluicev1.Decision{{Rule: "r", Response: &sluicev1.DenialResponse{Status: 1}}}, Error: &sluicev1.Error{Message: "m"}, Lease: &sluicev1.Lease{Id: "l"}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readResponse(b, nil)
		if err != nil && r.decisions != nil {
			t.Errorf("%d decisions with %v", len(r.decisions), err)
		}
		var names names
		for _, b := range r.decisions {
			var d answer
			_, _ = readDecision(b, &d, &names)
		}
	})
}
