package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

const reserveRules = `
domain: llm
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: hour, requests_per_unit: 100}
    reservation: {ttl: 30s, max_ttl: 1m, estimate: 7}
  - key: team
    rate_limit: {name: per-team, unit: hour, requests_per_unit: 1000}
    reservation: {max_units: 60, on_expiry: release}
  - key: agent
    rate_limit: {unit: hour, requests_per_unit: 100}
    reservation: {max_units: 60, max_open: 2}
  - key: bare
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: watched
    shadow_mode: true
    rate_limit: {name: watched, unit: hour, requests_per_unit: 1}
  - key: queue
    rate_limit: {name: queued, algorithm: leaky_queue, count: 5, period: 1s}
  - key: brief
    rate_limit: {name: brief, algorithm: sliding_log, count: 5, period: 100ms}
  - key: free
    rate_limit: {unlimited: true}
  - key: tokens
    rate_limit: {name: tokens, algorithm: token_bucket, count: 10, period: 1m}
    reservation: {max_ttl: 5m}
`

// budgets is a Limiter on a table, with a clock.
type budgets struct {
	*Limiter
	t     *testing.T
	table *bucket.Table
	now   int64
	// fails are the keys of requests that no owner decides.
	fails map[bucket.Verb]bool
}

func newBudgets(t *testing.T) *budgets {
	table, err := bucket.NewTable(bucket.Config{Shards: 3})
	if err != nil {
		t.Fatal(err)
	}
	b := &budgets{t: t, table: table, now: start, fails: make(map[bucket.Verb]bool)}
	b.Limiter = newService(t, decideFunc(func(_ context.Context, q *check.Batch) {
		for i := range q.Requests {
			r := &q.Requests[i]
			if b.fails[r.Verb] && i == len(q.Requests)-1 {
				q.Answers[i] = check.Answer{Err: check.ErrNoOwner}
				continue
			}
			q.Answers[i] = check.Answer{Decision: table.Do(b.now, &r.Request), Source: check.Owned}
		}
	}))
	b.SetRules(parse(t, reserveRules))
	return b
}

// reserve reserves units of descriptors, each as key=value.
func (b *budgets) reserve(r ReserveRequest, key string, descriptors ...string) (Reservation, []Result, error) {
	batch := NewBatch()
	batch.IdempotencyKey = key
	for _, d := range descriptors {
		c := batch.Add()
		k, v, _ := strings.Cut(d, "=")
		c.Domain, c.Descriptor = "llm", append(c.Descriptor, rules.Entry{Key: k, Value: v})
	}
	x, err := b.Reserve(context.Background(), batch, r)
	return x, batch.Results, err
}

// left returns what is left of a descriptor's limit.
func (b *budgets) left(descriptor string) int64 {
	batch := NewBatch()
	c := batch.Add()
	k, v, _ := strings.Cut(descriptor, "=")
	c.Domain, c.Descriptor, c.Verb = "llm", append(c.Descriptor, rules.Entry{Key: k, Value: v}), bucket.Read
	if err := b.Check(context.Background(), batch); err != nil {
		b.t.Fatal(err)
	}
	return batch.Results[0].Remaining
}

func (b *budgets) wants(what string, left ...int64) {
	b.t.Helper()
	for i, d := range []string{"user=ann", "team=red"}[:len(left)] {
		if got := b.left(d); got != left[i] {
			b.t.Errorf("%s: %d left of %s, want %d", what, got, d, left[i])
		}
	}
}

func codeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// TestReserveBudgets: units of several budgets are reserved together, spent, extended and settled by one ID.
func TestReserveBudgets(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, results, err := b.reserve(ReserveRequest{Units: 40}, "", "user=ann", "team=red")
	if err != nil || x.Units != 40 || x.ExpiresAfter != 30*time.Second || len(results) != 2 || !results[0].Allowed || results[0].Remaining != 60 {
		t.Fatalf("%+v, %+v, %v", x, results, err)
	}
	b.wants("reserved", 60, 960)
	if domains, err := b.ReservationDomains(x.ID); err != nil || len(domains) != 1 || domains[0] != "llm" {
		t.Errorf("domains %q, %v", domains, err)
	}
	if s, err := b.Spend(ctx, x.ID, 15); err != nil || s != (Spent{true, 25}) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := b.Spend(ctx, x.ID, 26); err != nil || s != (Spent{false, 25}) {
		t.Errorf("more than is left: %+v, %v", s, err)
	}
	b.now += int64(10 * time.Second)
	if e, err := b.Extend(ctx, x.ID, 10, time.Minute); err != nil || e != (Extended{Allowed: true, Units: 35, ExpiresAfter: time.Minute}) {
		t.Errorf("%+v, %v", e, err)
	}
	b.wants("extended", 50, 950)
	if e, err := b.Extend(ctx, x.ID, 26, 0); err != nil || e.Allowed || e.Units != 35 || e.RetryAfter != bucket.Never {
		t.Errorf("above max_units: %+v, %v", e, err)
	}
	if s, err := b.Settle(ctx, x.ID, 5); err != nil || s != (Settlement{Charged: 5, Returned: 30}) {
		t.Errorf("%+v, %v", s, err)
	}
	b.wants("settled", 80, 980)
	if s, err := b.Settle(ctx, x.ID, 9); err != nil || s != (Settlement{Charged: 5, Repeated: true}) {
		t.Errorf("again: %+v, %v", s, err)
	}
	if _, err := b.Spend(ctx, x.ID, 1); codeOf(err) != NotFound {
		t.Errorf("spent after it: %v", err)
	}
	b.wants("settled", 80, 980)
}

// TestTrap01: if one budget denies or does not answer, nothing of the others is reserved.
func TestTrap01(t *testing.T) {
	b := newBudgets(t)
	x, _, err := b.reserve(ReserveRequest{Units: 50}, "", "team=red", "user=ann", "user=ann")
	if err != nil || x.Units != 50 {
		t.Fatalf("%+v, %v", x, err) // one budget twice is one reservation
	}
	x, results, err := b.reserve(ReserveRequest{Units: 51}, "", "team=red", "user=ann")
	if err != nil || x != (Reservation{}) || results[0].Verdict() != DeniedByOthers || results[1].Verdict() != Denied || results[1].RetryAfter == 0 {
		t.Errorf("%+v, %+v, %v", x, results, err)
	}
	b.wants("denied", 50, 950)
	b.fails[bucket.Reserve] = true
	x, results, err = b.reserve(ReserveRequest{Units: 5}, "", "user=ann", "team=red")
	if err != nil || x != (Reservation{}) || results[0].Allowed || results[1].Err == nil || results[1].Err.Code != Unavailable {
		t.Errorf("%+v, %+v, %v", x, results, err)
	}
	b.wants("without an owner", 50, 950)
}

// TestReserveLeast: as many as all budgets have, if that is enough.
func TestReserveLeast(t *testing.T) {
	b := newBudgets(t)
	x, _, err := b.reserve(ReserveRequest{Units: 90, Least: 20}, "", "user=ann", "team=red")
	if err != nil || x.Units != 60 {
		t.Fatalf("%+v, %v", x, err)
	}
	b.wants("60 of each", 40, 940)
	if x, _, err = b.reserve(ReserveRequest{Units: 50, Least: 41}, "", "user=ann", "team=red"); err != nil || x.Units != 0 {
		t.Errorf("%+v, %v", x, err)
	}
	if x, _, err = b.reserve(ReserveRequest{}, "", "user=ann", "team=red"); err != nil || x.Units != 7 {
		t.Errorf("the estimate: %+v, %v", x, err)
	}
	b.wants("and the estimate", 33, 933)
}

// TestReserveLeastAgain: of two attempts under way that both find too much in a budget, one gives it back.
func TestReserveLeastAgain(t *testing.T) {
	b := newBudgets(t)
	b.reserve(ReserveRequest{Units: 70}, "", "user=ann")
	least := ReserveRequest{Units: 50, Least: 20}
	first, decide := true, b.config.Decider
	b.config.Decider = decideFunc(func(ctx context.Context, q *check.Batch) {
		if q.Requests[0].Verb == bucket.Extend && first {
			first = false
			if x, _, err := b.reserve(least, "one", "user=ann", "team=red"); err != nil || x.Units != 30 {
				t.Errorf("the second attempt: %+v, %v", x, err)
			}
		}
		decide.Decide(ctx, q)
	})
	x, _, err := b.reserve(least, "one", "user=ann", "team=red")
	if err != nil || x.Units != 30 || first {
		t.Errorf("%+v, %v", x, err)
	}
	b.wants("30 of each", 0, 970)
}

// TestReserveAgain: a repeated request with one key is one reservation.
func TestReserveAgain(t *testing.T) {
	b := newBudgets(t)
	x, _, err := b.reserve(ReserveRequest{Units: 9}, "one", "user=ann", "team=red")
	again, _, err2 := b.reserve(ReserveRequest{Units: 9}, "one", "user=ann", "team=red")
	if err != nil || err2 != nil || again != x || x.Units != 9 {
		t.Errorf("%+v, then %+v, %v, %v", x, again, err, err2)
	}
	b.wants("once", 91, 991)
	for _, other := range []ReserveRequest{{Units: 8}} {
		if y, _, err := b.reserve(other, "one", "user=ann", "team=red"); err != nil || y.ID == x.ID {
			t.Errorf("other units: %+v, %v", y, err)
		}
	}
	if _, err := b.Settle(context.Background(), x.ID, 1); err != nil {
		t.Fatal(err)
	}
	if _, results, err := b.reserve(ReserveRequest{Units: 9}, "one", "user=ann", "team=red"); err != nil || results[0].Err == nil || results[0].Err.Code != Rejected {
		t.Errorf("settled: %+v, %v", results, err)
	}
}

// TestTrap04: rules say what happens to units that nobody settles.
func TestTrap04(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, _, err := b.reserve(ReserveRequest{Units: 10}, "", "user=ann", "team=red")
	if err != nil {
		t.Fatal(err)
	}
	b.now += int64(30 * time.Second)
	b.wants("one charges, one releases", 90, 1000)
	if s, err := b.Settle(ctx, x.ID, 4); err != nil || s != (Settlement{Charged: 10, Late: true}) {
		t.Errorf("%+v, %v", s, err)
	}
	b.wants("late", 90, 996)
}

// TestReserveShadow: a rule in shadow mode keeps nobody from reserving, and so does one without limits.
func TestReserveShadow(t *testing.T) {
	b := newBudgets(t)
	x, results, err := b.reserve(ReserveRequest{Units: 10}, "", "user=ann", "watched=x", "free=y")
	if err != nil || x.Units != 10 || !results[1].Allowed || !results[1].Shadowed || !results[2].Allowed {
		t.Errorf("%+v, %+v, %v", x, results, err)
	}
	if x, results, err = b.reserve(ReserveRequest{Units: 10}, "", "free=y"); err != nil || x != (Reservation{}) || !results[0].Allowed {
		t.Errorf("nothing is limited: %+v, %+v, %v", x, results, err)
	}
}

// TestReserveRejects: what cannot be is rejected with the field, and reserves nothing.
func TestReserveRejects(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	for _, c := range []struct {
		r     ReserveRequest
		field string
		list  []string
	}{
		{ReserveRequest{Units: -1}, "units", []string{"user=ann"}},
		{ReserveRequest{Units: 5, Least: 6}, "least", []string{"user=ann"}},
		{ReserveRequest{Units: 5, TTL: time.Microsecond}, "ttl", []string{"user=ann"}},
		{ReserveRequest{Units: 5, Least: -1}, "least", []string{"user=ann"}},
		{ReserveRequest{Units: 5, TTL: -1}, "ttl", []string{"user=ann"}},
		{ReserveRequest{Units: 5}, "checks", make([]string, MaxBudgets+1)},
		{ReserveRequest{Units: 5}, "checks", nil},
	} {
		var e *Error
		if _, _, err := b.reserve(c.r, "", c.list...); !errors.As(err, &e) || e.Code != Invalid || e.Field != c.field {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
	for _, c := range []struct {
		r     ReserveRequest
		field string
		list  []string
	}{
		{ReserveRequest{Units: 61}, "units", []string{"user=ann", "team=red"}},
		{ReserveRequest{}, "units", []string{"bare=x"}},
		{ReserveRequest{Units: 5, TTL: 61 * time.Second}, "ttl", []string{"team=red", "user=ann"}},
		{ReserveRequest{Units: 5}, "descriptor", []string{"user=ann", "queue=q"}},
	} {
		x, results, err := b.reserve(c.r, "", c.list...)
		last := results[len(results)-1]
		if c.field == "ttl" || c.field == "units" && len(c.list) > 1 {
			last = results[1]
		}
		allowed, _, _ := Overall(results)
		if err != nil || x != (Reservation{}) || allowed || last.Err == nil || last.Err.Field != c.field || last.Err.Code != Invalid {
			t.Errorf("%+v: allowed %v, %+v, %+v, %v", c.r, allowed, x, results, err)
		}
	}
	x, _, err := b.reserve(ReserveRequest{Units: 5}, "", "user=ann")
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.ID {
		other := []byte(x.ID)
		other[i] ^= 1
		if _, err := b.Settle(ctx, string(other), 0); codeOf(err) != Invalid {
			t.Errorf("with another byte %d: %v", i, err)
		}
	}
	for _, id := range []string{"", "x", strings.Repeat("A", 40), strings.Repeat("A", MaxReservationID+1)} {
		if _, err := b.Settle(ctx, id, 0); codeOf(err) != Invalid {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := b.Settle(ctx, x.ID, -1); codeOf(err) != Invalid {
		t.Error(err)
	}
	if _, err := b.Spend(ctx, x.ID, 0); codeOf(err) != Invalid {
		t.Error(err)
	}
	if _, err := b.Extend(ctx, x.ID, -1, 0); codeOf(err) != Invalid {
		t.Error(err)
	}
	for _, ttl := range []time.Duration{-1, 1, time.Millisecond - 1, 61 * time.Second} {
		if _, err := b.Extend(ctx, x.ID, 0, ttl); codeOf(err) != Invalid {
			t.Errorf("%v: %v", ttl, err)
		}
	}
	b.wants("only one", 95, 1000)
}

// TestReserveLost: what is known of a reservation is settled where a counter of it is lost, and counted.
func TestReserveLost(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, _, err := b.reserve(ReserveRequest{Units: 10}, "", "user=ann", "team=blue")
	if err != nil {
		t.Fatal(err)
	}
	ticket, e := b.ticketOf(x.ID)
	if e != nil {
		t.Fatal(e)
	}
	lost := ticket.cells[1].key.Shard(3)
	if ticket.cells[0].key.Shard(3) == lost {
		t.Fatal("both counters are in one shard; take another secret")
	}
	b.table.DropShard(lost)
	if s, err := b.Spend(ctx, x.ID, 3); err != nil || s != (Spent{true, 7}) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := b.Settle(ctx, x.ID, 4); err != nil || s != (Settlement{Charged: 4, Returned: 3}) {
		t.Errorf("%+v, %v", s, err)
	}
	b.wants("one is lost", 93, 1000)
	b.table.DropShard(ticket.cells[0].key.Shard(3))
	if _, err := b.Settle(ctx, x.ID, 4); codeOf(err) != NotFound {
		t.Error(err)
	}
	b.reserve(ReserveRequest{Units: 60, Least: 60}, "", "user=ann", "team=blue")
	b.reserve(ReserveRequest{Units: 60}, "", "user=ann", "team=blue")
	if got, want := b.Stats().Reservations, (ReservationStats{Made: 2, Denied: 1, Settled: 1, Unknown: 1, Reserved: 70, Charged: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTrap06: a reservation without units takes what most of those before it used under its rule, at most max_units, and all of
// that until enough is known.
func TestTrap06(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	b.SetRules(parse(t, `
domain: llm
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: hour, requests_per_unit: 1000000}
    reservation: {max_units: 500}
  - key: team
    rate_limit: {name: per-team, unit: hour, requests_per_unit: 300}
`))
	estimate := func(what string, want int64, descriptors ...string) Reservation {
		t.Helper()
		x, _, err := b.reserve(ReserveRequest{}, "", descriptors...)
		if err != nil || x.Units != want {
			t.Fatalf("%s: %+v, %v, want %d units", what, x, err, want)
		}
		return x
	}
	settle := func(x Reservation, actual int64) {
		t.Helper()
		if _, err := b.Settle(ctx, x.ID, actual); err != nil {
			t.Fatal(err)
		}
	}
	settle(estimate("of two rules", 300, "user=ann", "team=red"), 1)
	for range learnLeast - 1 {
		settle(estimate("nothing is known", 500, "user=ann"), 1)
	}
	x := estimate("little was used", 1, "user=bob")
	settle(x, 900)
	settle(x, 900) // a repeated settlement is not learned
	for i := range int64(learnFrom) {
		x, _, err := b.reserve(ReserveRequest{Units: 400}, "", "user=ann")
		if err != nil {
			t.Fatal(err)
		}
		used := i % 100
		if _, err := b.Spend(ctx, x.ID, 1+used/2); err != nil {
			t.Fatal(err)
		}
		settle(x, used-used/2)
	}
	x = estimate("1 to 100 of each, in two parts", 94, "user=new") // the 900 are forgotten
	b.SetRules(b.Rules())
	settle(x, 1)
	estimate("the rules were read again", 94, "user=new")
	for range learnFrom {
		x, _, _ := b.reserve(ReserveRequest{Units: 400}, "", "user=new")
		settle(x, 2000)
	}
	estimate("more was used than a reservation may have", 500, "user=new2")
	b.now += int64(time.Hour)
	for range learnFrom {
		x, _, _ := b.reserve(ReserveRequest{Units: 400}, "", "user=late")
		b.now += int64(time.Minute)
		settle(x, 7)
	}
	estimate("late settlements say what was used", 7, "user=new")
}

// TestTrap05: a caller cannot reserve more than max_units or oftener than max_open, and what it needs beyond its estimate is a debt.
func TestTrap05(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	if x, results, err := b.reserve(ReserveRequest{Units: 61}, "", "agent=a"); err != nil || x.Units != 0 || codeOf(results[0].Err) != Invalid {
		t.Errorf("too large: %+v, %+v, %v", x, results, err)
	}
	var open []Reservation
	for range 2 {
		x, _, err := b.reserve(ReserveRequest{Units: 1}, "", "agent=a")
		if err != nil || x.Units != 1 {
			t.Fatalf("%+v, %v", x, err)
		}
		open = append(open, x)
	}
	if x, results, err := b.reserve(ReserveRequest{Units: 1}, "", "agent=a"); err != nil || x.Units != 0 || results[0].Verdict() != Denied {
		t.Errorf("too many: %+v, %+v, %v", x, results, err)
	}
	if x, _, err := b.reserve(ReserveRequest{Units: 1}, "", "agent=b"); err != nil || x.Units != 1 {
		t.Errorf("another caller's: %+v, %v", x, err)
	}
	for i, left := range []int64{29, 0} { // of 100, beside the other one
		if s, err := b.Settle(ctx, open[i].ID, 70); err != nil || s != (Settlement{Charged: 70}) {
			t.Errorf("%+v, %v", s, err)
		}
		if got := b.left("agent=a"); got != left {
			t.Errorf("%d left after %d settlements", got, i+1)
		}
	}
	if x, _, err := b.reserve(ReserveRequest{Units: 1}, "", "agent=a"); err != nil || x.Units != 0 {
		t.Errorf("beside a debt of 40: %+v, %v", x, err)
	}
}

// TestTrap14: a stream keeps its units for as long as it extends their deadline, and no longer.
func TestTrap14(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, _, err := b.reserve(ReserveRequest{Units: 50}, "", "team=red", "user=ann")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) { // into the second hour
		if e, err := b.Extend(ctx, x.ID, 0, time.Minute); err != nil || !e.Allowed || e.ExpiresAfter != time.Minute {
			t.Fatalf("extended %d times: %+v, %v", i, e, err)
		}
		b.now += int64(time.Minute - 1)
		b.wants("extended", 50, 950)
	}
	b.now++
	if e, err := b.Extend(ctx, x.ID, 0, time.Minute); codeOf(err) != NotFound {
		t.Errorf("extended too late: %+v, %v", e, err)
	}
	b.wants("one charges, one releases", 50, 1000)
}

// TestIDTimes: the ID of a reservation says when it was made, unless its idempotency key does not.
func TestIDTimes(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_123)
	for ago := time.Duration(0); ago < 6*24*time.Hour; ago = 3*ago + time.Millisecond {
		if d := sinceID(timedID(now.Add(-ago), rand.Uint64()), now); d <= ago || d > ago+1025*time.Millisecond {
			t.Errorf("made %v ago: %v", ago, d)
		}
	}
	if d := sinceID(1<<63-1, now); d != 0 {
		t.Errorf("not known: %v", d)
	}
	for key, known := range map[string]bool{
		"018bcfe5-687b-7000-8000-000000000000": true, "018bcfe5-687b-4000-8000-000000000000": false, "018bcfe5-687x-7000-8000-000000000000": false, "a key": false,
	} {
		if at, ok := uuidTime(key); ok != known || known && !at.Equal(now) {
			t.Errorf("%s: %v, %v", key, at, ok)
		}
	}
}

// TestDeniedExtendAtHome: what one budget denies is given back where the others were asked, also if
// their counters have a home.
func TestDeniedExtendAtHome(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	b.SetRules(parse(t, strings.Replace(reserveRules, "\n  - key: team\n", "\n    scope: global\n    home: eu\n  - key: team\n", 1)))
	x, _, err := b.reserve(ReserveRequest{Units: 10}, "", "user=ann", "team=red")
	if err != nil {
		t.Fatal(err)
	}
	given, decide := false, b.config.Decider
	b.config.Decider = decideFunc(func(ctx context.Context, q *check.Batch) {
		decide.Decide(ctx, q)
		for i := range q.Requests {
			if r := &q.Requests[i]; r.Cost > 0 && i == 1 {
				q.Answers[i].Allowed = false
			} else if r.Cost < 0 {
				given = true
				if r.Home() != "eu" {
					t.Errorf("given back to home %q, want eu", r.Home())
				}
			}
		}
	})
	if got, err := b.Extend(ctx, x.ID, 5, 0); err != nil || got.Allowed || !given {
		t.Errorf("%+v, %v; given back: %v", got, err, given)
	}
}

// TestDeniedReservesLeaveNothing: of reservations that one of two budgets denies nothing is left
// soon after.
func TestDeniedReservesLeaveNothing(t *testing.T) {
	b := newBudgets(t)
	b.reserve(ReserveRequest{Units: 100}, "", "user=ann")
	for range 10_000 {
		if x, _, err := b.reserve(ReserveRequest{Units: 5}, "", "team=red", "user=ann"); err != nil || x != (Reservation{}) {
			t.Fatalf("%+v, %v", x, err)
		}
		b.now += int64(time.Millisecond)
	}
	b.now += int64(10 * time.Second)
	for shard := range 3 {
		b.table.Sweep(b.now, shard)
	}
	b.wants("held by the first", 0, 1000)
	if s := b.table.Stats(); s.Entries > 3 {
		t.Errorf("%d records in %d bytes are left", s.Entries, s.Bytes)
	}
}

// TestReserveBeforeDeadline: a reservation that fails because an owner does not answer in time does not wait for that owner again to
// give back what it may have, and gives back nothing if the owner was not asked.
func TestReserveBeforeDeadline(t *testing.T) {
	for _, early := range []check.Early{check.AtMargin, check.NotAsked} {
		var canceled, detached, ended bool
		l := newService(t, decideFunc(func(ctx context.Context, q *check.Batch) {
			for i := range q.Requests {
				q.Answers[i] = check.Answer{Err: check.ErrNoOwner, Early: early}
			}
			if q.Requests[0].Verb == bucket.Cancel {
				canceled, detached, ended = true, q.Detached, ctx.Err() != nil
			}
		}))
		l.SetRules(parse(t, reserveRules))
		b := NewBatch()
		defer b.Release()
		c := b.Add()
		c.Domain, c.Descriptor = "llm", append(c.Descriptor, rules.Entry{Key: "user", Value: "ann"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, _ = l.Reserve(ctx, b, ReserveRequest{Units: 1})
		if canceled != (early == check.AtMargin) || detached != canceled || ended != canceled {
			t.Errorf("%v: canceled %v, by a batch of its own %v, without a wait %v", early, canceled, detached, ended)
		}
	}
}

// TestSettlementIsBounded: a caller who may only check cannot block a bucket for longer than
// max_ttl.
func TestSettlementIsBounded(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, _, err := b.reserve(ReserveRequest{Units: 4}, "", "tokens=1")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := b.Settle(ctx, x.ID, 1<<62); err != nil || s.Charged != 60 {
		t.Errorf("%+v, %v; want 60 units charged, those of a bucket and of 5 minutes", s, err)
	}
	b.now += int64(5 * time.Minute)
	b.now += int64(6 * time.Second)
	if left := b.left("tokens=1"); left != 1 {
		t.Errorf("%d are left after max_ttl, want 1", left)
	}
}
