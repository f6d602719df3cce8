package bucket_test

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// tape turns fuzzed bytes into numbers; past its end it reads zeros.
type tape []byte

func (b *tape) byte() byte {
	if len(*b) == 0 {
		return 0
	}
	c := (*b)[0]
	*b = (*b)[1:]
	return c
}

var landmarks = []int64{
	0, 1, -1, 2, 3, 10, 100, 1000, 1001, 7777, 1e6, 1e9, 6e10, 36e11, 864e11, 1_700_000_000_123_456_789,
	math.MaxInt32, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -6e10, 1 << 53,
}

// number reads a landmark, a small number or any number.
func (b *tape) number() int64 {
	tag := b.byte()
	if int(tag) < len(landmarks) {
		return landmarks[tag]
	}
	if tag < 200 {
		return int64(tag) - int64(len(landmarks))
	}
	var eight [8]byte
	for i := range eight[:1+int(tag)%8] {
		eight[i] = b.byte()
	}
	return int64(binary.LittleEndian.Uint64(eight[:]))
}

// limit reads any limit, of valid and of invalid fields.
func (b *tape) limit() bucket.Limit {
	l := bucket.Limit{
		Algorithm: bucket.Algorithm(b.byte()%7 + 1),
		Count:     b.number(),
		Period:    time.Duration(b.number()),
	}
	options := b.byte()
	if options&1 != 0 {
		l.Burst = b.number()
	}
	if options&2 != 0 {
		l.Cost = b.number()
	}
	if options&4 != 0 {
		l.MinInterval, l.BlockFor = time.Duration(b.number()), 0
		if options&8 != 0 {
			l.MinInterval, l.BlockFor = 0, l.MinInterval
		}
	}
	if options&8 != 0 {
		l.Soft = int32(b.number())
	}
	if options&16 != 0 {
		l.Refill = bucket.Refill(b.byte())
	}
	if options&32 != 0 {
		l.Align, l.Unit = bucket.Align(b.byte()), bucket.Unit(b.byte())
		l.Zone = []string{"", "UTC", "America/New_York", "Local", "../etc", "No/Where"}[b.byte()%6]
	}
	if options&64 != 0 {
		l.SubWindows, l.LogEntries = int32(b.number()), int32(b.number())
	}
	if options&128 != 0 {
		odd := b.byte()
		l.CountDenied, l.Unlimited = odd&1 != 0, odd&2 != 0
		if odd&4 != 0 {
			l.Algorithm = bucket.Algorithm(odd)
		}
	}
	return l
}

// limits reads sets until one is valid, at most three.
func (b *tape) limits() *bucket.Limits {
	for range 3 {
		list := make([]bucket.Limit, 1+b.byte()%3)
		for i := range list {
			list[i] = b.limit()
		}
		if l, err := bucket.NewLimits(list...); err == nil {
			return l
		}
	}
	return nil
}

// fuzzRun is one fuzzed conversation with one key.
type fuzzRun struct {
	t     *testing.T
	tape  tape
	table *bucket.Table
	// account is nil once something happened that the exact model does not know.
	account *account
	now     int64
	rc      bucket.Receipt
}

// FuzzTake plays any sequence of requests, with any limits, costs and times.
// Nothing panics, every decision is well formed, reads change nothing, a step
// back of the clock gains nothing, and as long as the exact model knows what is
// asked it agrees.
func FuzzTake(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		run := &fuzzRun{t: t, tape: data, table: smallTable(t)}
		limits := run.tape.limits()
		if limits == nil {
			return
		}
		if modelled(limits) {
			run.account = newAccount(limits)
		}
		run.now = run.tape.number()
		for n := 0; n < 60 && len(run.tape) > 0; n++ {
			limits = run.step(limits)
		}
	})
}

// modelled reports whether the exact model knows all of the limits.
func modelled(limits *bucket.Limits) bool {
	denied := false
	for i := range limits.Len() {
		l := limits.At(i)
		denied = denied || l.CountDenied
		switch {
		case l.Unlimited:
		case l.Align == bucket.AlignCalendar, l.LogEntries != 0, l.Soft != 0 && l.Burst != 0:
			return false
		case l.Count > math.MaxInt64/4, l.Burst > math.MaxInt64/4, l.Cost > 1<<20, l.Soft > 0 && l.Count > 1<<40:
			return false
		case l.Cost > 1 && (l.Count > 1<<40 || l.Burst > 1<<40):
			return false
		}
	}
	return !denied || limits.Len() == 1
}

func (run *fuzzRun) step(limits *bucket.Limits) *bucket.Limits {
	t, op := run.t, run.tape.byte()
	switch op % 16 {
	case 13: // other limits
		if l := run.tape.limits(); l != nil {
			limits, run.account = l, nil
		}
	case 14: // any time, also far back
		before := run.read(run.now, limits)
		to := run.tape.number()
		if after := run.read(to, limits); to < run.now && after.Allowed && !before.Allowed {
			t.Fatalf("a step back from %d to %d admits: %+v", run.now, to, after)
		}
		run.now, run.account = to, nil
		return limits
	case 15: // give back, once or again
		before := run.read(run.now, limits)
		run.table.GiveBack(run.now, &run.rc)
		if after := run.read(run.now, limits); before.Allowed && !after.Allowed {
			t.Fatalf("giving back took away: %+v, then %+v", before, after)
		}
		run.account = nil
		return limits
	}
	if step := run.tape.number(); step > 0 && run.now <= math.MaxInt64-step {
		run.now += step
	}
	if run.now > exactly || run.now < -exactly {
		run.account = nil
	}
	run.request(&bucket.Request{
		Limits: limits, Verb: bucket.Verb(op % 5), Cost: run.tape.number(), Drain: op&32 != 0, NoDelay: op&64 != 0,
	}, op&128 != 0)
	return limits
}

func (run *fuzzRun) request(r *bucket.Request, hold bool) {
	t, limits, verb, cost := run.t, r.Limits, r.Verb, r.Cost
	before := run.read(run.now, limits)
	if again := run.read(run.now, limits); again != before {
		t.Fatalf("reading changed what is read: %+v, then %+v", before, again)
	}
	if cost < 0 {
		run.account = nil
		run.table.Do(run.now, r)
		if after := run.read(run.now, limits); verb != bucket.Reset && after.Allowed && !before.Allowed {
			t.Fatalf("cost %d, verb %d minted: %+v, then %+v", cost, verb, before, after)
		}
		return
	}
	known := run.account.follows(run.now, r) != nil
	if hold {
		d, charged := run.table.DoHeld(run.now, r, &run.rc)
		if charged && !d.Allowed {
			t.Fatalf("charged, but not allowed: %+v", d)
		}
		run.check(r, d, known)
		return
	}
	run.check(r, run.table.Do(run.now, r), known)
}

func (run *fuzzRun) check(r *bucket.Request, d bucket.Decision, known bool) {
	run.t.Helper()
	if !known {
		if r.Verb != bucket.Read {
			run.account = nil
		}
		wellFormed(run.t, r.Limits, r.Verb, d)
		return
	}
	run.account.compare(run.t, run.account.do(run.now, r), d)
}

func (run *fuzzRun) read(now int64, limits *bucket.Limits) bucket.Decision {
	d := run.table.Do(now, &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Read})
	wellFormed(run.t, limits, bucket.Read, d)
	return d
}

// fuzzSeeds reach each algorithm, some options, a change and a give-back.
var fuzzSeeds = [][]byte{
	{0, 0, 4, 12, 0, 15, 0, 0, 2, 0, 1, 1, 128, 12, 3, 15, 1, 2, 9},
	{0, 1, 5, 11, 1, 4, 0, 0, 2, 0, 1, 5, 4, 1, 2, 2, 11, 4},
	{0, 2, 5, 11, 4, 11, 0, 0, 2, 0, 1, 5, 14, 20, 0, 1, 1},
	{0, 3, 4, 12, 32, 2, 0, 0, 0, 0, 1, 0, 12, 3, 14, 21, 0, 1, 1},
	{0, 4, 4, 12, 128, 1, 15, 0, 0, 1, 0, 1, 1, 5, 1, 1, 0, 12, 1},
	{1, 5, 5, 12, 0, 6, 4, 10, 0, 15, 0, 1, 3, 0, 12, 3, 10, 12, 1, 0, 0, 1},
	{0, 6, 5, 12, 64, 3, 0, 15, 0, 1, 3, 13, 0, 0, 4, 12, 0, 0, 0, 1, 15, 0, 1, 1},
	{0, 0, 19, 8, 1, 19, 15, 2, 0, 19, 2, 0, 19, 0, 0, 1, 3, 0, 19},
}

// fieldNames are the fields of a limit as rule files and the API spell them.
var fieldNames = []string{
	"algorithm", "count", "period", "unlimited", "burst", "cost", "refill", "align", "unit", "timezone", "zone",
	"min_interval", "soft", "count_denied", "sub_windows", "log_entries", "limits",
}

// FuzzNewLimits: any limit is either rejected with the name of its field or usable.
func FuzzNewLimits(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add(seed[1:])
	}
	f.Add([]byte{0, 2, 2, 1, 2})
	f.Add([]byte{0, 4, 12, 32, 1, 9, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		b := tape(data)
		l := b.limit()
		limits, err := bucket.NewLimits(l)
		if err != nil {
			var field *bucket.FieldError
			if !errors.As(err, &field) || field.Index != 0 || field.Reason == "" || !slices.Contains(fieldNames, field.Field) {
				t.Fatalf("%+v: %#v names no field", l, err)
			}
			return
		}
		if limits.Len() != 1 || limits.Unlimited() != l.Unlimited {
			t.Fatalf("%+v: %d limits, unlimited %v", l, limits.Len(), limits.Unlimited())
		}
		again, err := bucket.NewLimits(l)
		if err != nil || !limits.Equal(again) {
			t.Fatalf("%+v: not equal to itself, %v", l, err)
		}
		for _, each := range []*bucket.Limits{limits, limits.Share(1), limits.Share(3)} {
			run := &fuzzRun{t: t, table: smallTable(t), now: b.number()}
			run.request(&bucket.Request{Limits: each, Cost: 1}, false)
			run.request(&bucket.Request{Limits: each, Cost: b.number(), Drain: true, NoDelay: true}, false)
			run.request(&bucket.Request{Limits: each, Verb: bucket.Charge, Cost: b.number()}, true)
			run.request(&bucket.Request{Limits: each, Verb: bucket.Refund, Cost: b.number()}, false)
			run.request(&bucket.Request{Limits: each, Verb: bucket.Reset}, false)
		}
	})
}
