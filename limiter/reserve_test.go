package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

func newBudgets(t *testing.T) *script {
	t.Helper()
	return newScript(t, reserveRules)
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
	s := newBudgets(t)
	s.play(`
		reserve x 40 user=ann team=red => 40 for 30s
		user=ann read | team=red read => allowed 60/100 | allowed 960/1000
		spend x 15 => allowed true, 25 left
		spend x 26 => allowed false, 25 left
		after 10s =>
		extend x 10 1m => allowed true, 35 for 1m
		user=ann read | team=red read => allowed 50/100 | allowed 950/1000
		extend x 26 => allowed false, 35 for 1m, never
		settle x 5 => 5 charged, 30 returned
		user=ann read | team=red read => allowed 80/100 | allowed 980/1000
		settle x 9 => 5 charged, 0 returned, repeated
		spend x 1 => not_found reservation
		user=ann read | team=red read => allowed 80/100 | allowed 980/1000
	`)
	if domains, err := s.ReservationDomains(s.made["x"].ID); err != nil || !slices.Equal(domains, []string{"llm"}) {
		t.Errorf("domains %q, %v", domains, err)
	}
}

// TestTrap01: if one budget denies or does not answer, nothing of the others is reserved. One budget twice is one reservation.
func TestTrap01(t *testing.T) {
	s := newBudgets(t)
	s.play(`
		reserve x 50 team=red user=ann user=ann => 50 for 30s
		reserve y 51 team=red user=ann => denied_by_others 950/1000 | denied 50/100, in 1h
		user=ann read | team=red read => allowed 50/100 | allowed 950/1000
	`)
	s.fails[bucket.Reserve] = true
	s.play(`
		reserve y 5 user=ann team=red => denied_by_others 50/100 | unavailable
		user=ann read | team=red read => allowed 50/100 | allowed 950/1000
	`)
}

// TestReserveLeast: as many as all budgets have, if that is enough, and the estimate if none are named.
func TestReserveLeast(t *testing.T) {
	newBudgets(t).play(`
		reserve x 90 least=20 user=ann team=red => 60 for 30s
		user=ann read | team=red read => allowed 40/100 | allowed 940/1000
		reserve x 50 least=41 user=ann team=red => denied 40/100, in 1h | denied_by_others 940/1000
		reserve x user=ann team=red => 7 for 30s
		user=ann read | team=red read => allowed 33/100 | allowed 933/1000
	`)
}

// TestReserveLeastAgain: of two attempts under way that both find too much in a budget, one gives it back.
func TestReserveLeastAgain(t *testing.T) {
	s := newBudgets(t)
	s.do("reserve before 70 user=ann")
	first, decide := true, s.config.Decider
	s.config.Decider = decideFunc(func(ctx context.Context, q *check.Batch) {
		if q.Requests[0].Verb == bucket.Extend && first {
			first = false
			s.play("reserve second 50 least=20 key=one user=ann team=red => 30 for 30s")
		}
		decide.Decide(ctx, q)
	})
	s.play(`
		reserve first 50 least=20 key=one user=ann team=red => 30 for 30s
		user=ann read | team=red read => denied 0/100, in 1h | allowed 970/1000
	`)
	if first {
		t.Error("no attempt was made in between")
	}
}

// TestReserveAgain: a repeated request with one key is one reservation, and with other units another.
func TestReserveAgain(t *testing.T) {
	s := newBudgets(t)
	s.play(`
		reserve x 9 key=one user=ann team=red => 9 for 30s
		reserve again 9 key=one user=ann team=red => 9 for 30s
		user=ann read | team=red read => allowed 91/100 | allowed 991/1000
		reserve other 8 key=one user=ann team=red => 8 for 30s
		settle x 1 => 1 charged, 8 returned
		reserve late 9 key=one user=ann team=red => rejected idempotency_key | denied 0/1000
	`)
	if s.made["again"] != s.made["x"] || s.made["other"].ID == s.made["x"].ID {
		t.Errorf("%+v", s.made)
	}
}

// TestTrap04: rules say what happens to units that nobody settles: one charges, one releases.
func TestTrap04(t *testing.T) {
	newBudgets(t).play(`
		reserve x 10 user=ann team=red => 10 for 30s
		after 30s =>
		user=ann read | team=red read => allowed 90/100 | allowed 1000/1000
		settle x 4 => 10 charged, 0 returned, late
		user=ann read | team=red read => allowed 90/100 | allowed 996/1000
	`)
}

// TestReserveShadow: a rule in shadow mode keeps nobody from reserving, and so does one without limits.
func TestReserveShadow(t *testing.T) {
	s := newBudgets(t)
	b := s.batch("user=ann | watched=x | free=y")
	x, err := s.Reserve(t.Context(), b, ReserveRequest{Units: 10})
	if got := answers(b.Results); err != nil || x.Units != 10 || got != "allowed 90/100 | allowed_shadow 1/1 | unmatched allowed" {
		t.Errorf("%+v, %v, %s", x, err, got)
	}
	s.play("reserve x 10 free=y => unmatched allowed")
}

// TestReserveRejects: what cannot be is rejected with the field, and reserves nothing.
func TestReserveRejects(t *testing.T) {
	s, ctx := newBudgets(t), t.Context()
	s.play(`
		reserve x -1 user=ann => invalid units
		reserve x 5 least=6 user=ann => invalid least
		reserve x 5 ttl=1us user=ann => invalid ttl
		reserve x 5 least=-1 user=ann => invalid least
		reserve x 5 ttl=-1ns user=ann => invalid ttl
		reserve x 5` + strings.Repeat(" user=ann", MaxBudgets+1) + ` => invalid checks
		reserve x 5 => invalid checks
		reserve x 61 user=ann team=red => denied_by_others 100/100 | invalid units
		reserve x bare=x => invalid units
		reserve x 5 ttl=61s team=red user=ann => denied_by_others 1000/1000 | invalid ttl
		reserve x 5 user=ann queue=q => denied_by_others 100/100 | invalid descriptor
		reserve x 5 user=ann => 5 for 30s
		settle x -1 => invalid actual
		spend x 0 => invalid units
		extend x -1 => invalid more
		extend x 0 -1ns => invalid ttl
		extend x 0 1ns => invalid ttl
		extend x 0 999999ns => invalid ttl
		extend x 0 61s => invalid ttl
		user=ann read | team=red read => allowed 95/100 | allowed 1000/1000
	`)
	id := s.made["x"].ID
	wrong := []string{"", "x", strings.Repeat("A", 40), strings.Repeat("A", MaxReservationID+1)}
	for i := range id {
		other := []byte(id)
		other[i] ^= 1
		wrong = append(wrong, string(other))
	}
	for _, id := range wrong {
		if _, err := s.Settle(ctx, id, 0); codeOf(err) != Invalid {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestReserveLost: what is known of a reservation is settled where a counter of it is lost, and counted.
func TestReserveLost(t *testing.T) {
	s := newBudgets(t)
	s.play("reserve x 10 user=ann team=blue => 10 for 30s")
	ticket, e := s.ticketOf(s.made["x"].ID)
	if e != nil {
		t.Fatal(e)
	}
	lost := ticket.cells[1].key.Shard(7)
	if ticket.cells[0].key.Shard(7) == lost {
		t.Fatal("both counters are in one shard; take another secret")
	}
	s.node.Table.DropShard(lost)
	s.play(`
		spend x 3 => allowed true, 7 left
		settle x 4 => 4 charged, 3 returned
		user=ann read | team=blue read => allowed 93/100 | allowed 1000/1000
	`)
	s.node.Table.DropShard(ticket.cells[0].key.Shard(7))
	s.play(`
		settle x 4 => not_found reservation
		reserve y 60 least=60 user=ann team=blue => 60 for 30s
		reserve z 60 user=ann team=blue => denied 40/100, in 1h | denied_by_others 940/1000
	`)
	if got, want := s.Stats().Reservations, (ReservationStats{Made: 2, Denied: 1, Settled: 1, Unknown: 1, Reserved: 70, Charged: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTrap06: a reservation without units takes what most of those before it used under its rule, at most max_units, and all of
// that until enough is known. A repeated settlement is not learned, and a late one says what was used.
func TestTrap06(t *testing.T) {
	const file = `
domain: llm
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: hour, requests_per_unit: 1000000}
    reservation: {max_units: 500}
  - key: team
    rate_limit: {name: per-team, unit: hour, requests_per_unit: 300}
`
	s := newScript(t, file)
	s.play("reserve x user=ann team=red => 300 for 1m\nsettle x 1 => 1 charged, 299 returned")
	for range learnLeast - 1 {
		s.play("reserve x user=ann => 500 for 1m\nsettle x 1 => 1 charged, 499 returned")
	}
	s.play(`
		reserve x user=bob => 1 for 1m
		settle x 900 => 900 charged, 0 returned
		settle x 900 => 900 charged, 0 returned, repeated
	`)
	for used := range int64(learnFrom) {
		used %= 100
		s.do("reserve x 400 user=ann")
		s.do(fmt.Sprint("spend x ", 1+used/2))
		s.do(fmt.Sprint("settle x ", used-used/2))
	}
	s.play("reserve x user=new => 94 for 1m") // 1 to 100 of each, in two parts; the 900 are forgotten
	s.SetRules(s.Rules())
	s.play(`
		settle x 1 => 1 charged, 93 returned
		reserve x user=new => 94 for 1m
	`)
	learn := func(after, used string) {
		for range learnFrom {
			s.do("reserve x 400 user=late")
			s.do("after " + after)
			s.do("settle x " + used)
		}
	}
	learn("0s", "2000")
	s.play("reserve x user=new2 => 500 for 1m")
	s.do("after 1h")
	learn("1m", "7")
	s.play("reserve x user=new => 7 for 1m")
}

// TestTrap05: a caller cannot reserve more than max_units or oftener than max_open, and what it needs beyond its estimate is a debt.
func TestTrap05(t *testing.T) {
	newBudgets(t).play(`
		reserve a 61 agent=a => invalid units
		reserve a 1 agent=a => 1 for 1m
		reserve b 1 agent=a => 1 for 1m
		reserve c 1 agent=a => denied 0/100, in 1m
		reserve c 1 agent=b => 1 for 1m
		settle a 70 => 70 charged, 0 returned
		agent=a read => allowed 29/100
		settle b 70 => 70 charged, 0 returned
		agent=a read => denied 0/100, in 1h
		reserve c 1 agent=a => denied 0/100, in 1h
	`)
}

// TestTrap14: a stream keeps its units for as long as it extends their deadline, and no longer.
func TestTrap14(t *testing.T) {
	s := newBudgets(t)
	s.play("reserve x 50 team=red user=ann => 50 for 30s")
	for range 100 { // into the second hour
		s.play("extend x 0 1m => allowed true, 50 for 1m")
		s.node.Now.Add(int64(time.Minute - 1))
		s.play("user=ann read | team=red read => allowed 50/100 | allowed 950/1000")
	}
	s.node.Now.Add(1)
	s.play(`
		extend x 0 1m => not_found reservation
		user=ann read | team=red read => allowed 50/100 | allowed 1000/1000
	`)
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
	s := newScript(t, strings.Replace(reserveRules, "\n  - key: team\n", "\n    scope: global\n    home: eu\n  - key: team\n", 1))
	s.play("reserve x 10 user=ann team=red => 10 for 30s")
	given, decide := false, s.config.Decider
	s.config.Decider = decideFunc(func(ctx context.Context, q *check.Batch) {
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
	if got, err := s.Extend(t.Context(), s.made["x"].ID, 5, 0); err != nil || got.Allowed || !given {
		t.Errorf("%+v, %v; given back: %v", got, err, given)
	}
}

// TestDeniedReservesLeaveNothing: of reservations that one of two budgets denies nothing is left
// soon after.
func TestDeniedReservesLeaveNothing(t *testing.T) {
	s := newBudgets(t)
	s.do("reserve all 100 user=ann")
	for range 10_000 {
		if got := s.do("reserve x 5 team=red user=ann"); !strings.HasPrefix(got, "denied") {
			t.Fatal(got)
		}
		s.node.Now.Add(int64(time.Millisecond))
	}
	s.do("after 10s")
	for shard := range 7 {
		s.node.Table.Sweep(s.node.Now.Load(), shard)
	}
	s.play("user=ann read | team=red read => denied 0/100, in 59m40s | allowed 1000/1000")
	if stats := s.node.Table.Stats(); stats.Entries > 3 {
		t.Errorf("%d records in %d bytes are left", stats.Entries, stats.Bytes)
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

// TestSettlementIsBounded: a caller who may only check cannot block a bucket for longer than max_ttl.
func TestSettlementIsBounded(t *testing.T) {
	newBudgets(t).play(`
		reserve x 4 tokens=1 => 4 for 1m
		settle x 4611686018427387904 => 60 charged, 0 returned
		after 5m6s =>
		tokens=1 read => allowed 1/10
	`)
}
