package bucket_test

import (
	"math"
	"math/big"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// failer is the part of testing.TB and of *rapid.T that checks need.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// account is the exact account of one key: one model for each of its limits.
type account struct {
	limits *bucket.Limits
	models []*model
}

func newAccount(limits *bucket.Limits) *account {
	a := &account{limits: limits}
	for i := range limits.Len() {
		a.models = append(a.models, &model{limit: limits.At(i)})
	}
	return a
}

// admits reports whether every limit admits a check of this cost at time at.
func (a *account) admits(at, cost int64) bool {
	for _, m := range a.models {
		if !m.admits(at, m.units(cost)) {
			return false
		}
	}
	return true
}

// leaves reports whether every limit has reserve units over when it has admitted cost.
func (a *account) leaves(at, cost, reserve int64) bool {
	for _, m := range a.models {
		need := m.units(cost)
		if !m.admits(at, need.Add(need, big.NewInt(reserve))) {
			return false
		}
	}
	return true
}

// charge records cost in every limit, as an admitted check if checked.
func (a *account) charge(at, cost int64, checked bool) {
	for _, m := range a.models {
		m.add(at, m.units(cost))
		if checked && m.limit.BlockFor == 0 {
			m.last = &at
		}
	}
}

// chargeOthers is charge for what other limits have admitted.
func (a *account) chargeOthers(at, cost int64) {
	for _, m := range a.models {
		m.addOthers(at, m.units(cost))
	}
}

func (a *account) reset() { a.models = newAccount(a.limits).models }

// follows returns a, or nil if a is nil or the exact models do not know what r
// does: what counters do near the ends of int64, and which units a refund takes
// back, is only bounded.
func (a *account) follows(now int64, r *bucket.Request) *account {
	if a == nil || a.limits.Unlimited() {
		return nil
	}
	known := len(a.models[0].charges) < 100 // replaying them all becomes slow
	switch r.Verb {
	case bucket.Charge:
		known = r.Cost > 0 && a.roomFor(now, r.Cost)
	case bucket.Refund:
		known = r.Cost > 0 && a.refundable(now, r.Cost)
	case bucket.Check:
		for _, m := range a.models {
			known = known && (!m.limit.CountDenied || r.Cost < 1<<40)
		}
	}
	if !known {
		return nil
	}
	return a
}

// do says what a request must be answered and records what it changes.
// Times must not run backwards.
func (a *account) do(now int64, r *bucket.Request) expected {
	e := expected{now: now, verb: r.Verb, cost: max(r.Cost, 1), reserve: max(r.Reserve, 0), noDelay: r.NoDelay}
	switch r.Verb {
	case bucket.Charge:
		a.charge(now, r.Cost, false)
		e.allowed = true
	case bucket.Refund:
		a.charge(now, -r.Cost, false)
		e.allowed = true
	case bucket.Reset:
		a.reset()
		e.allowed = true
	default:
		e.allowed = a.admits(now, e.cost) && a.leaves(now, e.cost, e.reserve)
		for _, m := range a.models {
			if e.allowed {
				e.soft = e.soft || m.soft(now, m.units(e.cost))
				e.delay = max(e.delay, m.delay(now))
			}
		}
		if r.NoDelay && e.delay > 0 {
			e.allowed, e.soft, e.delay = false, false, 0
		}
		switch {
		case r.Verb == bucket.Read || r.Cost == 0:
		case e.allowed:
			a.charge(now, r.Cost, true)
		default:
			a.denied(now, r.Cost)
			if r.Drain {
				a.drain(now, r.Cost, e.reserve)
			}
		}
	}
	return e
}

// denied records a denied check where the limit says that it counts, or blocks.
func (a *account) denied(now, cost int64) {
	for _, m := range a.models {
		if m.limit.BlockFor > 0 && m.rested(now) && !m.hopeless(m.units(cost)) && !m.counted(now, m.units(cost)) {
			m.last = &now
		}
		if !m.limit.CountDenied {
			continue
		}
		if m.limit.BlockFor == 0 {
			m.last = &now
		}
		if m.limit.Algorithm == bucket.SlidingLog {
			m.add(now, m.units(cost))
		}
	}
}

// drain records that limits without room for cost are emptied, queues aside, but for reserve.
func (a *account) drain(now, cost, reserve int64) {
	for _, m := range a.models {
		if m.limit.Unlimited || m.limit.Count == 0 || m.limit.Algorithm == bucket.LeakyQueue {
			continue
		}
		left := m.left(now)
		left.Sub(left, big.NewInt(reserve))
		if left.Sign() > 0 && m.units(cost).Cmp(left) > 0 {
			m.add(now, left)
		}
	}
}

// expected is what a request must be answered.
type expected struct {
	now     int64
	verb    bucket.Verb
	cost    int64
	reserve int64
	noDelay bool
	allowed bool
	soft    bool
	delay   time.Duration
}

// admits reports whether m admits what was asked at time at, at once if it cannot wait.
func (e *expected) admits(m *model, at int64) bool {
	units := m.units(e.cost)
	return m.admits(at, units.Add(units, big.NewInt(e.reserve))) && (!e.noDelay || m.delay(at) == 0)
}

// roomFor reports whether charging cost stays far from the ends of int64, where
// counters saturate and the model does not, and leaves MinInterval and BlockFor out of it.
func (a *account) roomFor(now, cost int64) bool {
	for _, m := range a.models {
		if m.limit.Unlimited {
			continue
		}
		after := m.units(cost)
		used := m.used(now)
		after.Add(after, used.Num().Div(used.Num(), used.Denom()))
		if !after.IsInt64() || after.Int64() > math.MaxInt64/2 || m.limit.MinInterval+m.limit.BlockFor > 0 {
			return false
		}
	}
	return true
}

// refundable reports whether it is fixed which units a refund takes back.
func (a *account) refundable(now, cost int64) bool {
	for _, m := range a.models {
		period, units := int64(m.limit.Period), m.units(cost)
		switch {
		case m.limit.Unlimited:
		case !units.IsInt64() || m.limit.Align == bucket.AlignFirstHit:
			return false
		case m.limit.Algorithm == bucket.SlidingLog:
			return false
		case m.limit.Algorithm == bucket.SlidingCounter:
			if bin(m.bins(period), floorDiv(now, period)).Cmp(units) < 0 {
				return false
			}
		case m.limit.Algorithm == bucket.SlidingWindow:
			n := int64(m.limit.SubWindows)
			if n == 0 {
				n = 60
			}
			width := (period-1)/n + 1
			if bin(m.bins(width), floorDiv(now, width)).Cmp(units) < 0 {
				return false
			}
		}
	}
	return true
}

// compare fails t unless d is the exact answer e of account a.
func (a *account) compare(t failer, e expected, d bucket.Decision) {
	t.Helper()
	wellFormed(t, a.limits, e.verb, d)
	if d.Allowed != e.allowed {
		t.Fatalf("at %d: allowed %v, exact %v (%+v)", e.now, d.Allowed, e.allowed, d)
	}
	if e.verb == bucket.Reset || e.verb == bucket.Refund || a.limits.Unlimited() {
		return
	}
	m := a.models[d.Index]
	if m.limit.Count > 0 && !m.limit.Unlimited || m.limit.Burst == 0 {
		if d.Limit != m.capacity() {
			t.Fatalf("at %d: limit %d, exact %d", e.now, d.Limit, m.capacity())
		}
		if want := m.remaining(e.now); d.Remaining != want {
			t.Fatalf("at %d: remaining %d, exact %d (%+v)", e.now, d.Remaining, want, d)
		}
	}
	a.compareReset(t, e, d)
	if e.verb == bucket.Charge {
		return
	}
	if d.Soft != e.soft {
		t.Fatalf("at %d: soft %v, exact %v", e.now, d.Soft, e.soft)
	}
	if d.Delay != e.delay {
		t.Fatalf("at %d: delay %d, exact %d", e.now, d.Delay, e.delay)
	}
	if !d.Allowed {
		a.compareRetry(t, e, d)
		return
	}
	for i, other := range a.models {
		if other.remaining(e.now) < d.Remaining {
			t.Fatalf("at %d: limit %d decides with %d left, limit %d has less: %d",
				e.now, d.Index, d.Remaining, i, other.remaining(e.now))
		}
	}
}

// compareRetry asks the model whether the cost is admitted after exactly
// RetryAfter and not a nanosecond earlier, and whether the limit that decided is
// one that denies until then.
func (a *account) compareRetry(t failer, e expected, d bucket.Decision) {
	t.Helper()
	decides := a.models[d.Index]
	for _, m := range a.models {
		units := m.units(e.cost)
		if !m.hopeless(units.Add(units, big.NewInt(e.reserve))) {
			continue
		}
		if d.RetryAfter != bucket.Never {
			t.Fatalf("at %d: retry after %d for cost %d that can never be admitted", e.now, d.RetryAfter, e.cost)
		}
		return
	}
	at, ok := later(e.now, d.RetryAfter)
	if !ok {
		if e.admits(decides, reach(e.now)-1) {
			t.Fatalf("at %d: cost %d never admitted, the exact model admits it later", e.now, e.cost)
		}
		return
	}
	for i, m := range a.models {
		if !e.admits(m, at) {
			t.Fatalf("at %d: limit %d does not admit after retry-after %d (%+v)", e.now, i, d.RetryAfter, d)
		}
	}
	if e.admits(decides, at-1) {
		t.Fatalf("at %d: limit %d admits already 1 ns before retry-after %d (%+v)", e.now, d.Index, d.RetryAfter, d)
	}
}

// compareReset asks the model whether the deciding limit is completely free after
// exactly ResetAfter and not a nanosecond earlier. A minimum interval that has
// not passed may hold it longer.
func (a *account) compareReset(t failer, e expected, d bucket.Decision) {
	t.Helper()
	m := a.models[d.Index]
	if m.limit.Count == 0 {
		return // what blocks everything has nothing to free
	}
	at, ok := later(e.now, d.ResetAfter)
	if !ok {
		if m.free(reach(e.now) - 1) {
			t.Fatalf("at %d: reset after %d, exact: earlier", e.now, d.ResetAfter)
		}
		return
	}
	if !m.free(at) {
		t.Fatalf("at %d: not free after reset-after %d (%+v)", e.now, d.ResetAfter, d)
	}
	if d.ResetAfter > 0 && m.free(at-1) && (m.rested(at-1) || !m.rested(at)) {
		t.Fatalf("at %d: free already 1 ns before reset-after %d (%+v)", e.now, d.ResetAfter, d)
	}
}

// wellFormed fails t unless d keeps what holds for every decision on limits.
func wellFormed(t failer, limits *bucket.Limits, verb bucket.Verb, d bucket.Decision) {
	t.Helper()
	switch {
	case int(d.Index) >= limits.Len():
		t.Fatalf("index %d of %d limits", d.Index, limits.Len())
	case d.Remaining < 0 || d.Remaining > d.Limit:
		t.Fatalf("remaining %d of %d", d.Remaining, d.Limit)
	case d.ResetAfter < 0 || d.RetryAfter < 0 || d.Delay < 0:
		t.Fatalf("negative time in %+v", d)
	case d.Allowed && d.RetryAfter != 0:
		t.Fatalf("allowed with retry-after %d", d.RetryAfter)
	case !d.Allowed && d.RetryAfter == 0:
		t.Fatalf("denied with retry-after 0: %+v", d)
	case !d.Allowed && verb != bucket.Check && verb != bucket.Read:
		t.Fatalf("verb %d denied", verb)
	case !d.Allowed && (d.Soft || d.Delay != 0):
		t.Fatalf("denied, yet soft or with a delay: %+v", d)
	}
}

// later is now+d, unless that is past what a time or a duration can say.
func later(now int64, d time.Duration) (int64, bool) {
	if int64(d) >= reach(now)-now {
		return 0, false
	}
	return now + int64(d), true
}

// reach is the last moment that can be told at now: longer waits are cut to it.
func reach(now int64) int64 {
	if now < 0 {
		return now + math.MaxInt64
	}
	return math.MaxInt64
}

func mustLimits(t failer, list ...bucket.Limit) *bucket.Limits {
	t.Helper()
	l, err := bucket.NewLimits(list...)
	if err != nil {
		t.Fatalf("NewLimits(%+v): %v", list, err)
	}
	return l
}

func mustTable(t failer, c bucket.Config) *bucket.Table {
	t.Helper()
	table, err := bucket.NewTable(c)
	if err != nil {
		t.Fatalf("NewTable(%+v): %v", c, err)
	}
	return table
}

// smallTable holds a few counters in one shard.
func smallTable(t failer) *bucket.Table {
	t.Helper()
	return mustTable(t, bucket.Config{Shards: 1, MaxEntries: 64})
}
