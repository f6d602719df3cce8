package admit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/leaf/pause"
)

// queue is a leaky queue of one start per period, and remembers what was asked.
type queue struct {
	mu      sync.Mutex
	period  time.Duration
	free    time.Time // when the next may start
	asked   int
	refunds int
}

func (q *queue) Check(context.Context, client.Check) (client.Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked++
	now := time.Now()
	if q.free.Before(now) {
		q.free = now
	}
	d := client.Decision{Allowed: true, Delay: q.free.Sub(now), Period: q.period}
	q.free = q.free.Add(q.period)
	return d, nil
}

func (q *queue) Refund(context.Context, client.Check) (client.Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refunds++
	q.free = q.free.Add(-q.period)
	return client.Decision{}, nil
}

// answers are given one after the other; the last one stands.
type answers struct {
	list  []client.Decision
	took  time.Duration // of each answer
	asked int
}

func (a *answers) Check(ctx context.Context, _ client.Check) (client.Decision, error) {
	if a.took > 0 && !pause.For(ctx, a.took) {
		return client.Decision{}, ctx.Err()
	}
	d := a.list[min(a.asked, len(a.list)-1)]
	a.asked++
	return d, nil
}

func denied(after time.Duration) client.Decision { return client.Decision{RetryAfter: after} }

var allowed = client.Decision{Allowed: true}

// TestCheck: a denial is waited for as long as it may be, and no longer.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name     string
		checker  *answers
		most     time.Duration
		allowed  bool
		from, to time.Duration
		asked    int
	}{
		{"at once", &answers{list: []client.Decision{allowed}}, 0, true, 0, 0, 1},
		{"not at all", &answers{list: []client.Decision{denied(1)}}, 0, false, 0, 0, 1},
		{"soon enough", &answers{list: []client.Decision{denied(2 * time.Second), allowed}}, 3 * time.Second, true, 2 * time.Second, 2100 * time.Millisecond, 2},
		{"in the last moment", &answers{list: []client.Decision{denied(3 * time.Second), allowed}}, 3 * time.Second, true, 3 * time.Second, 3 * time.Second, 2},
		{"too late", &answers{list: []client.Decision{denied(4 * time.Second)}}, 3 * time.Second, false, 0, 0, 1},
		{"never", &answers{list: []client.Decision{denied(client.Never)}}, 3 * time.Second, false, 0, 0, 1},
		// A denial that tells no time must not be asked about without end: 1, 2, 4 … ms.
		{"of no duration", &answers{list: []client.Decision{denied(0)}}, time.Second, false, 511 * time.Millisecond, time.Second, 10},
		// The bound is on the time that passes, also without an answer.
		{"slow answers", &answers{list: []client.Decision{denied(time.Millisecond)}, took: 700 * time.Millisecond}, time.Second, false, 1400 * time.Millisecond, 2500 * time.Millisecond, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				d, err := New(c.checker, c.most).Check(t.Context(), client.Check{})
				took := time.Since(began)
				if err != nil || d.Allowed != c.allowed || took < c.from || took > c.to || c.checker.asked > c.asked {
					t.Errorf("%v, %v after %v, asked %d times", d.Allowed, err, took, c.checker.asked)
				}
			})
		})
	}
}

// TestDeadline: no request waits beyond its deadline.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		d, err := New(&answers{list: []client.Decision{denied(2 * time.Second)}}, time.Minute).Check(ctx, client.Check{})
		if err != nil || d.Allowed || time.Since(began) != 0 {
			t.Errorf("%v, %v after %v", d.Allowed, err, time.Since(began))
		}
	})
}

// TestGone: a request that ends while it waits returns, and its place in the queue goes to others.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{period: 2 * time.Second}
		q.Check(t.Context(), client.Check{})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, err := New(q, time.Minute).Check(ctx, client.Check{}); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if q.refunds != 1 {
			t.Errorf("%d refunds", q.refunds)
		}
		a := &answers{list: []client.Decision{denied(2 * time.Second)}}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := New(a, time.Minute).Check(ctx, client.Check{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// TestQueue: under twice the rate, requests that would wait too long leave the queue to others, so
// that the rate is used up however short the bound is.
func TestQueue(t *testing.T) {
	for _, most := range []time.Duration{0, 25 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			q := &queue{period: 10 * time.Millisecond}
			g := New(q, most)
			admitted := make(chan bool, 200)
			for range 200 { // 5 ms apart, 1 s in all
				go func() {
					d, err := g.Check(t.Context(), client.Check{})
					if err != nil {
						t.Error(err)
					}
					if !d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > q.period) {
						t.Errorf("come back after %v", d.RetryAfter)
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

// TestForemost: which of several decisions the answer is about.
func TestForemost(t *testing.T) {
	counted := func(remaining int64) client.Decision {
		return client.Decision{Allowed: true, Period: time.Minute, Remaining: remaining}
	}
	slow := counted(7)
	slow.Delay = time.Second
	rejected := func(after time.Duration, remaining int64) client.Decision {
		return client.Decision{Period: time.Minute, RetryAfter: after, Remaining: remaining}
	}
	for _, c := range []struct {
		name string
		all  []client.Decision
		want client.Decision
	}{
		{"the least left", []client.Decision{counted(5), counted(3), counted(4)}, counted(3)},
		{"one that is counted", []client.Decision{{Allowed: true, Source: client.SourceOpen}, counted(5)}, counted(5)},
		{"the longest delay", []client.Decision{counted(5), slow}, client.Decision{Allowed: true, Period: time.Minute, Remaining: 5, Delay: time.Second}},
		{"a denial", []client.Decision{counted(5), rejected(0, 0)}, rejected(0, 0)},
		{"the longest denial", []client.Decision{rejected(1, 0), rejected(client.Never, 9), rejected(2, 0)}, rejected(client.Never, 9)},
		{"who was not just denied with others", []client.Decision{rejected(5, 9), rejected(5, 2), rejected(5, 3)}, rejected(5, 2)},
	} {
		if got := foremost([]client.Check{{Cost: 3}, {Cost: 3}, {Cost: 3}}, c.all); got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
