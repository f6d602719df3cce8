package local_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local"
)

func newLimiter(t testing.TB, yaml string, opts ...local.Option) *local.Limiter {
	t.Helper()
	l, err := local.New(local.Text(yaml), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustCheck(t testing.TB, k limit.Key, amount int64) limit.Decision {
	t.Helper()
	d, err := k.Check(t.Context(), amount)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestWindowsFollowTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLimiter(t, shop).Key("shop", "user", "ann")
		time.Sleep(59 * time.Minute) // bubbles begin with an hour
		if d := mustCheck(t, k, 3); !d.Allowed {
			t.Fatalf("within the limit: %+v", d)
		}
		d := mustCheck(t, k, 1)
		if in, ok := d.RetryIn(); d.Allowed || d.Verdict != limit.VerdictDenied || in != time.Minute || !ok {
			t.Fatalf("beyond the limit: %+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := mustCheck(t, k, 3); !d.Allowed {
			t.Fatalf("in the next window: %+v", d)
		}
	})
}

// TestWait: waiting works without a server, and a leaky queue says how long to wait.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLimiter(t, "domain: d\ndescriptors: [{key: job, limits: [{algorithm: leaky_queue, count: 1, period: 1s, burst: 3}]}]").Key("d", "job", "x")
		began := time.Now()
		for range 10 {
			if err := k.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 9*time.Second || took > 10*time.Second {
			t.Errorf("10 at one a second took %v", took)
		}
	})
}

func TestRejectedFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  string
	}{
		{"none", fstest.MapFS{"rules.txt": {}, ".a.yaml": {}, ".d/a.yaml": {}, "a_test.yaml": {}}, "no rule files (*.yaml"},
		{"not YAML", fstest.MapFS{"a.yaml": {Data: []byte("domain: [")}}, "a.yaml:1"},
		{"every error", fstest.MapFS{
			"d/a.yaml": {Data: []byte("domain: a\ndescriptors: [{key: user, limits: [x]}]")}, "b.yml": {Data: []byte("domain: b\nunmatched: no")},
		}, "b.yml:2: unmatched: "},
		{"its line", fstest.MapFS{"d/a.yaml": {Data: []byte("domain: a\ndescriptors: [{key: user, limits: [x]}]")}}, "d/a.yaml:2: a/user.limits[0]"},
		{"two of one domain", fstest.MapFS{"a.yaml": {Data: []byte("domain: a")}, "b.yaml": {Data: []byte("domain: a")}}, `domain "a" is already described in a.yaml:1`},
		{"a directory by name", fstest.MapFS{"a.yaml/x.txt": {}}, "no rule files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := local.New(c.files)
			if l != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, error %v, want one with %q", l, err, c.want)
			}
		})
	}
	if _, err := local.New(local.Text(shop), local.WithMemory(-1)); err == nil || !strings.Contains(err.Error(), "WithMemory: -1 bytes") {
		t.Errorf("error %v", err)
	}
}

// TestReloadThatFails keeps the rules.
func TestReloadThatFails(t *testing.T) {
	l := newLimiter(t, shop)
	if err := l.Reload(local.Text("domain: shop\nrules: []")); err == nil || !strings.Contains(err.Error(), "rules.yaml:2") {
		t.Errorf("error %v", err)
	}
	if d := mustCheck(t, l.Key("shop", "user", "ann"), 1); d.Rule != "shop/user" {
		t.Errorf("%+v", d)
	}
}

func TestInvalidChecks(t *testing.T) {
	l := newLimiter(t, shop)
	ann := l.Key("shop", "user", "ann")
	for _, c := range []struct {
		name  string
		check limit.Check
		field string
	}{
		{"no domain", limit.Check{Descriptor: []limit.Entry{{Key: "a"}}}, "domain"},
		{"no descriptor", limit.Check{Domain: "shop"}, "descriptor"},
		{"negative", ann.Spend(-1), "amount"},
		{"no such algorithm", ann.WithLimits(limit.Limit{Algorithm: 257, Count: 1, Period: 1}).Spend(1), "limits[0].algorithm"},
		{"no such unit", ann.WithLimits(limit.PerHour(1), limit.Limit{Align: limit.AlignCalendar, Unit: -1}).Spend(1), "limits[1].unit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := l.Check(t.Context(), c.check)
			e, ok := errors.AsType[*limit.Error](err)
			if !ok || e.Code != limit.CodeInvalid || e.Field != c.field {
				t.Errorf("error %v, want one about %s", err, c.field)
			}
			if _, err = l.CheckAll(t.Context(), ann.Spend(1), c.check); !errors.Is(err, limit.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "checks[1]."+c.field) {
				t.Errorf("in a batch: %v", err)
			}
		})
	}
	if d := mustCheck(t, ann, 3); !d.Allowed {
		t.Errorf("rejected batches have spent: %+v", d)
	}
	for _, k := range []limit.Verb{limit.VerbCharge, limit.VerbRefund, limit.VerbReset} {
		c := ann.Spend(1)
		c.Verb = k
		if _, err := l.CheckAll(t.Context(), c); err == nil || !strings.Contains(err.Error(), "checks[0].verb: "+k.String()) {
			t.Errorf("a batch with %v: error %v", k, err)
		}
	}
	_, all := l.CheckAll(t.Context())
	if _, each := l.CheckEach(t.Context(), make([]limit.Check, 10_001)...); all == nil || each == nil {
		t.Errorf("no checks: %v, too many: %v", all, each)
	}
	if _, err := new(local.Limiter).Key("shop", "user", "ann").Check(t.Context(), 1); !errors.Is(err, limit.ErrClosed) {
		t.Errorf("the zero Limiter: %v", err)
	}
}

// TestOnce: a charge or a refund with a name is made once, and others are made.
func TestOnce(t *testing.T) {
	l := newLimiter(t, "domain: d\ndescriptors: [{key: user, limits: [10/1h]}]")
	ann := l.Key("d", "user", "ann")
	charge := ann.Once("x").Spend(4)
	charge.Verb = limit.VerbCharge
	if _, err := l.CheckAll(t.Context(), charge); !errors.Is(err, limit.ErrInvalid) { // and so its name is not taken
		t.Fatal(err)
	}
	left := func(d limit.Decision, err error) int64 {
		t.Helper()
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		return d.Remaining
	}
	for _, c := range []struct {
		what string
		got  int64
		want int64
	}{
		{"first", left(ann.Once("x").Charge(ctx, 4)), 6},
		{"again", left(ann.Once("x").Charge(ctx, 4)), 6},
		{"another name", left(ann.Once("y").Charge(ctx, 4)), 2},
		{"a refund of that name", left(ann.Once("x").Refund(ctx, 4)), 6},
		{"again", left(ann.Once("x").Refund(ctx, 4)), 6},
		{"another counter", left(l.Key("d", "user", "bob").Once("x").Charge(ctx, 4)), 6},
		{"without a name", left(ann.Charge(ctx, 4)), 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d left, want %d", c.what, c.got, c.want)
		}
	}
}

// TestOwnLimits: limits that come with a check have a counter of their own.
func TestOwnLimits(t *testing.T) {
	k := newLimiter(t, shop).Key("shop", "user", "ann")
	mustCheck(t, k, 3)
	if d := mustCheck(t, k.WithLimits(limit.PerHour(9)), 1); !d.Allowed || d.Remaining != 8 || d.Rule != "" {
		t.Errorf("%+v", d)
	}
}

// TestShadowInAFailedBatch: what a check in shadow mode has counted as denied stays when its batch
// fails, and the others of its key say so, also those before it.
func TestShadowInAFailedBatch(t *testing.T) {
	l, err := local.New(local.Text("domain: shop\ndescriptors:\n  - key: user\n    shadow_mode: true\n" +
		"    limits: [{count: 1, algorithm: sliding_log, period: 1h, count_denied: true}]\n  - {key: all, limits: [1/1h]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	bob, all := l.Key("shop", "user", "bob"), l.Key("shop", "all", "")
	if _, err := l.Check(t.Context(), all.Spend(1)); err != nil {
		t.Fatal(err)
	}
	read := bob.Spend(1)
	read.Verb = limit.VerbRead
	batch, err := l.CheckAll(t.Context(), read, bob.Spend(2), all.Spend(1))
	if err != nil || batch.Allowed {
		t.Fatalf("%+v, %v", batch, err)
	}
	if d := batch.Decisions[0]; d.Remaining != 0 {
		t.Errorf("%d remain for a read before the check that counted as denied", d.Remaining)
	}
}

// TestPool: the limits of a rule with elastic count, and its pool admits nothing.
func TestPool(t *testing.T) {
	k := newLimiter(t, `
domain: d
pools: {spare: {limit: {count: 10, period: 1h}}}
descriptors: [{key: user, limits: [1/1h], elastic: {pool: spare}}]
`).Key("d", "user", "ann")
	mustCheck(t, k, 1)
	if d := mustCheck(t, k, 1); d.Allowed || d.Verdict != limit.VerdictDenied {
		t.Errorf("%+v", d)
	}
}

// TestMemory: many keys take no more than the bound, and a key in use is not forgotten for those that were used once.
func TestMemory(t *testing.T) {
	l := newLimiter(t, shop, local.WithMemory(1<<20))
	ann := l.Key("shop", "user", "ann")
	mustCheck(t, ann, 3)
	for i := range 40_000 {
		mustCheck(t, l.Key("shop", "user", fmt.Sprint(i)), 1)
	}
	if d := mustCheck(t, ann, 1); d.Allowed {
		t.Errorf("what has spent all was forgotten: %+v", d)
	}
	if d, err := l.Key("shop", "user", "0").Read(t.Context(), 1); err != nil || d.Remaining != 3 {
		t.Errorf("what was used once, long ago, is remembered: %+v %v", d, err)
	}
}

// TestConcurrent: whatever comes at once, alone and in batches, no more is admitted than the limits say, and a batch is all or
// nothing.
func TestConcurrent(t *testing.T) {
	l := newLimiter(t, "domain: d\ndescriptors: [{key: a, limits: [500/1h]}, {key: b, limits: [300/1h]}]")
	a, b := l.Key("d", "a", ""), l.Key("d", "b", "")
	var admittedA, admittedB atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 200 {
				if i%10 == 0 {
					if err := l.Reload(local.Text("domain: d\ndescriptors: [{key: a, limits: [500/1h]}, {key: b, limits: [300/1h]}]")); err != nil {
						t.Error(err)
					}
				}
				if allowed, err := a.Allow(t.Context()); err != nil {
					t.Error(err)
				} else if allowed {
					admittedA.Add(1)
				}
				if batch, err := l.CheckAll(t.Context(), a.Spend(1), b.Spend(1)); err != nil {
					t.Error(err)
				} else if batch.Allowed {
					admittedA.Add(1)
					admittedB.Add(1)
				}
			}
		})
	}
	group.Wait()
	left := func(k limit.Key) int64 {
		d, err := k.Read(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	if got := admittedA.Load() + left(a); got != 500 {
		t.Errorf("of a %d were admitted or are left, want 500", got)
	}
	if got := admittedB.Load() + left(b); got != 300 {
		t.Errorf("of b %d were admitted or are left, want 300", got)
	}
}

func TestAllocations(t *testing.T) {
	l := newLimiter(t, shop)
	c := l.Key("shop", "user", "ann").Spend(1)
	if n := testing.AllocsPerRun(100, func() { _, _ = l.Check(ctx, c) }); n > 0 {
		t.Errorf("%v allocations a check, want none", n)
	}
}
