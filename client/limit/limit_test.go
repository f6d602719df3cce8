package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// queue is a leaky queue of one start per period.
type queue struct {
	Limiter
	mu      sync.Mutex
	period  time.Duration
	free    time.Time // when the next may start
	refunds int
	cause   error // of a failure policy that decides
}

func (q *queue) Check(_ context.Context, c Check) (Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.Verb == VerbRefund {
		q.refunds++
		q.free = q.free.Add(-q.period)
		return Decision{Allowed: true}, nil
	}
	now := time.Now()
	if q.free.Before(now) {
		q.free = now
	}
	d := Decision{Allowed: true, Delay: q.free.Sub(now), Counted: true, Degraded: q.cause}
	q.free = q.free.Add(q.period)
	return d, nil
}

// answers are given one after the other; the last one stands.
type answers struct {
	Limiter
	list  []Decision
	took  time.Duration // of each answer
	asked int
}

func (a *answers) Check(ctx context.Context, _ Check) (Decision, error) {
	if a.took > 0 {
		select {
		case <-time.After(a.took):
		case <-ctx.Done():
			return Decision{}, ctx.Err()
		}
	}
	d := a.list[min(a.asked, len(a.list)-1)]
	a.asked++
	return d, nil
}

func denied(after time.Duration) Decision {
	return Decision{RetryAfter: after, Verdict: VerdictDenied}
}

var allowed, never = Decision{Allowed: true}, Decision{Verdict: VerdictNever}

// TestAdmit: a denial is waited for as long as it may be, and no longer.
func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		name     string
		limiter  *answers
		most     time.Duration
		allowed  bool
		from, to time.Duration
		asked    int
	}{
		{"at once", &answers{list: []Decision{allowed}}, 0, true, 0, 0, 1},
		{"not at all", &answers{list: []Decision{denied(1)}}, 0, false, 0, 0, 1},
		{"soon enough", &answers{list: []Decision{denied(2 * time.Second), allowed}}, 3 * time.Second, true, 2 * time.Second, 2100 * time.Millisecond, 2},
		{"in the last moment", &answers{list: []Decision{denied(3 * time.Second), allowed}}, 3 * time.Second, true, 3 * time.Second, 3 * time.Second, 2},
		{"too late", &answers{list: []Decision{denied(4 * time.Second)}}, 3 * time.Second, false, 0, 0, 1},
		{"never", &answers{list: []Decision{never}}, 3 * time.Second, false, 0, 0, 1},
		{"never, later", &answers{list: []Decision{denied(time.Second), never}}, 3 * time.Second, false, time.Second, 1100 * time.Millisecond, 2},
		// A denial that tells no time must not be asked about without end: 1, 2, 4 … ms.
		{"of no duration", &answers{list: []Decision{denied(0)}}, time.Second, false, 511 * time.Millisecond, time.Second, 10},
		// The bound is on the time that passes, also without an answer.
		{"slow answers", &answers{list: []Decision{denied(time.Millisecond)}, took: 700 * time.Millisecond}, time.Second, false, 1400 * time.Millisecond, 2500 * time.Millisecond, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				d, err := Admit(t.Context(), c.limiter, c.most, Check{})
				took := time.Since(began)
				if err != nil || d.Allowed != c.allowed || took < c.from || took > c.to || c.limiter.asked > c.asked {
					t.Errorf("%v, %v after %v, asked %d times", d.Allowed, err, took, c.limiter.asked)
				}
			})
		})
	}
}

// TestDeadline: nothing waits beyond the deadline of its context, and WaitN says why at once.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		late := &answers{list: []Decision{denied(2 * time.Second)}}
		if d, err := Admit(ctx, late, time.Minute, Check{}); err != nil || d.Allowed {
			t.Errorf("%v, %v", d.Allowed, err)
		}
		if err := NewKey(late, "shop", "user", "a").Wait(ctx); !errors.Is(err, ErrWouldExceedDeadline) || !errors.Is(err, ErrDenied) {
			t.Errorf("Wait: %v", err)
		}
		if err := NewKey(&answers{list: []Decision{never}}, "shop", "user", "a").Wait(ctx); !errors.Is(err, ErrNever) || errors.Is(err, ErrWouldExceedDeadline) {
			t.Errorf("Wait: %v", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// TestGone: a request that ends while it waits returns, and its place in the queue goes to others.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{period: 2 * time.Second}
		q.Check(t.Context(), Check{})
		for _, l := range []Limiter{q, &answers{list: []Decision{denied(2 * time.Second)}}} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			began := time.Now()
			if err := NewKey(l, "shop", "user", "a").Wait(ctx); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Millisecond, cancel)
		q.refunds = 0
		q.Check(t.Context(), Check{})
		if d, err := Admit(ctx, q, time.Minute, Check{}); err == nil || d.Allowed {
			t.Errorf("allowed %v beside %v, and given back", d.Allowed, err)
		}
		if q.refunds != 1 {
			t.Errorf("%d refunds", q.refunds)
		}
	})
}

// TestQueue: under twice the rate, requests that would wait too long leave the queue to others, so
// that the rate is used up however short the bound is.
func TestQueue(t *testing.T) {
	for _, most := range []time.Duration{0, 25 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			q := &queue{period: 10 * time.Millisecond}
			admitted := make(chan bool, 200)
			for range 200 { // 5 ms apart, 1 s in all
				go func() {
					d, err := Admit(t.Context(), q, most, Check{})
					if err != nil {
						t.Error(err)
					}
					if wait, known := d.RetryIn(); !d.Allowed && (!known || wait > q.period) {
						t.Errorf("come back after %v", wait)
					}
					admitted <- d.Allowed
				}()
				time.Sleep(5 * time.Millisecond)
			}
			count := 0
			for range 200 {
				if <-admitted {
					count++
				}
			}
			if count < 98 || count > 104 {
				t.Errorf("bound %v: %d of 200 admitted, want the 100 of the rate", most, count)
			}
		})
	}
}

// TestNoRefundOfPolicies: what a failure policy has admitted is not given back, since no node may have charged it.
func TestNoRefundOfPolicies(t *testing.T) {
	for want, cause := range []error{ErrUnavailable, nil} {
		q := &queue{period: time.Hour, cause: cause}
		for _, allowed := range []bool{true, false} {
			if d, err := Admit(t.Context(), q, time.Second, Check{}); err != nil || d.Allowed != allowed {
				t.Errorf("%+v, %v", d, err)
			}
		}
		if q.refunds != want {
			t.Errorf("%d refunds of decisions because of %v, want %d", q.refunds, cause, want)
		}
	}
}

// TestBatch: what a batch says of its decisions.
func TestBatch(t *testing.T) {
	counted := func(remaining int64) Decision {
		return Decision{Allowed: true, Counted: true, Remaining: remaining}
	}
	slow := counted(7)
	slow.Delay = time.Second
	others := func(remaining int64) Decision {
		return Decision{Counted: true, Remaining: remaining, Verdict: VerdictDeniedByOthers}
	}
	for _, c := range []struct {
		name      string
		all       []Decision
		strictest Decision
		denied    []int
		retry     time.Duration
		known     bool
	}{
		{"nothing", nil, Decision{}, nil, 0, true},
		{"the least left", []Decision{counted(5), counted(3), counted(4)}, counted(3), nil, 0, true},
		{"one that is counted", []Decision{{Allowed: true, Source: SourceOpen}, counted(5)}, counted(5), nil, 0, true},
		{"the longest delay", []Decision{counted(5), slow}, Decision{Allowed: true, Counted: true, Remaining: 5, Delay: time.Second}, nil, 0, true},
		{"a denial", []Decision{others(5), denied(2)}, denied(2), []int{1}, 2, true},
		{"the longest denial", []Decision{denied(1), denied(3), denied(2)}, denied(3), []int{0, 1, 2}, 3, true},
		{"one that never is admitted", []Decision{denied(5), never, others(1)}, never, []int{0, 1}, 0, false},
		{"no time", []Decision{denied(5), denied(0), others(1)}, denied(5), []int{0, 1}, 0, false},
	} {
		b := NewBatch(c.all)
		retry, known := b.RetryIn()
		if b.Strictest() != c.strictest || !slices.Equal(b.Denied(), c.denied) || b.Allowed != (c.denied == nil) || retry != c.retry || known != c.known {
			t.Errorf("%s: %+v, denied %v, again in %v, %v", c.name, b.Strictest(), b.Denied(), retry, known)
		}
	}
}

// TestKey: what a key asks, and what is wrong with one.
func TestKey(t *testing.T) {
	var got Check
	l := limiterFunc(func(c Check) (Decision, error) { got = c; return Decision{Allowed: true}, nil })
	key := NewKey(l, "shop", "user", "a", "route", "/")
	own, policy := PerMinute(5), FailClosed()
	for verb, call := range map[Verb]func(context.Context, int64) (Decision, error){
		VerbCheck: key.Check, VerbRead: key.Read, VerbCharge: key.Charge, VerbRefund: key.Refund,
	} {
		if _, err := call(t.Context(), 7); err != nil || got.Verb != verb || got.Amount != 7 || got.Domain != "shop" ||
			!slices.Equal(got.Descriptor, []Entry{{"user", "a"}, {"route", "/"}}) {
			t.Errorf("%v: %+v, %v", verb, got, err)
		}
	}
	if ok, err := key.WithLimits(own).OnFailure(policy).Allow(t.Context()); !ok || err != nil || got.Amount != 1 || !slices.Equal(got.Limits, []Limit{own}) || got.OnFailure != policy {
		t.Errorf("%+v", got)
	}
	if err := key.Reset(t.Context()); err != nil || got.Verb != VerbReset || got.Amount != 0 || got.Limits != nil {
		t.Errorf("reset: %+v, %v", got, err)
	}
	if _, err := key.Once("id").Charge(t.Context(), 1); err != nil || got.IdempotencyKey != "id" {
		t.Errorf("once: %+v, %v", got, err)
	}
	for name, bad := range map[string]Key{"no value": NewKey(l, "shop", "user"), "no share": key.OnFailure(FailLocal(2)), "no policy": key.OnFailure(FailurePolicy{}), "zero": {}} {
		if err := bad.Wait(t.Context()); err == nil {
			t.Errorf("%s: Wait is no error", name)
		}
		if _, err := bad.Allow(t.Context()); err == nil {
			t.Errorf("%s: Allow is no error", name)
		}
	}
}

// limiterFunc decides single checks.
type limiterFunc func(Check) (Decision, error)

func (f limiterFunc) Check(_ context.Context, c Check) (Decision, error)    { return f(c) }
func (limiterFunc) CheckAll(context.Context, ...Check) (Batch, error)       { panic("not called") }
func (limiterFunc) CheckEach(context.Context, ...Check) ([]Decision, error) { panic("not called") }

// TestValidate: the error names the first field that is wrong.
func TestValidate(t *testing.T) {
	good := Check{Domain: "shop", Descriptor: []Entry{{"user", "a"}}, Amount: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Check){
		"domain":            func(c *Check) { c.Domain = strings.Repeat("x", maxText+1) },
		"descriptor":        func(c *Check) { c.Descriptor = slices.Repeat(c.Descriptor, maxEntries+1) },
		"descriptor[0].key": func(c *Check) { c.Descriptor = []Entry{{}} },
		"verb":              func(c *Check) { c.Verb = 9 },
		"amount":            func(c *Check) { c.Amount = math.MinInt64 },
		"limits":            func(c *Check) { c.Limits = make([]Limit, maxLimits+1) },
		"idempotency_key":   func(c *Check) { c.IdempotencyKey = "a" },
	} {
		c := good
		spoil(&c)
		if e, ok := errors.AsType[*Error](c.Validate()); !ok || e.Field != field || !errors.Is(e, ErrInvalid) || errors.Is(e, ErrForbidden) {
			t.Errorf("%s: %v", field, e)
		}
	}
	for key, ok := range map[string]bool{"order-4711": true, strings.Repeat("x", maxIdempotencyKey): true, strings.Repeat("x", maxIdempotencyKey+1): false, "a b": false, "ü": false} {
		c := good
		c.Verb, c.IdempotencyKey = VerbCharge, key
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("idempotency key %.20q: %v", key, err)
		}
	}
}

// TestErrors: an error is of its code's kind and of no other, whatever it says.
func TestErrors(t *testing.T) {
	kinds := []error{ErrInvalid, ErrUnknownDomain, ErrNotFound, ErrRejected, ErrForbidden, ErrUnauthenticated, ErrUnsupported}
	for i, kind := range kinds {
		e := fmt.Errorf("wrapped: %w", &Error{Code: kind.(*Error).Code, Field: "f", Message: "m"})
		for j, other := range kinds {
			if errors.Is(e, other) != (i == j) {
				t.Errorf("%v is %v: %v", e, other, i != j)
			}
		}
	}
	if got := (&Error{Code: 99}).Error(); got != "sluice: unknown(99)" {
		t.Error(got)
	}
}
