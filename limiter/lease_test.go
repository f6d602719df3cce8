package limiter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
)

// TestClientLease: a lease has an eighth of what is left, ends before its window, is settled once, and counts as spent some time after its
// deadline. It is no reservation of the rule's.
func TestClientLease(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	lease := func(units int64, descriptor string) Reservation {
		t.Helper()
		x, _, err := b.reserve(ReserveRequest{Units: units, TTL: 100 * time.Millisecond, Lease: true}, "", descriptor)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := lease(1000, "user=ann")
	if x.Units != 12 || x.ExpiresAfter != 100*time.Millisecond {
		t.Errorf("%+v, want 12 of 100 for 100 ms", x)
	}
	b.wants("leased", 88)
	if s, err := b.Settle(ctx, x.ID, 5); err != nil || s.Charged != 5 || s.Returned != 7 {
		t.Errorf("%+v, %v", s, err)
	}
	b.wants("settled", 95)
	if _, err := b.Settle(ctx, x.ID, 5); codeOf(err) != NotFound {
		t.Errorf("settled again: %v", err)
	}
	x = lease(3, "user=ann")
	lease(4, "user=ann")
	b.now += int64(150 * time.Millisecond)
	if s, err := b.Settle(ctx, x.ID, 1); err != nil || s.Returned != 2 {
		t.Errorf("given back after its deadline: %+v, %v", s, err)
	}
	b.now += int64(50 * time.Millisecond)
	b.wants("not given back", 90)
	if x := lease(9, "bare=1"); x.Units != 1 {
		t.Errorf("%+v of 9", x)
	}
	if s := b.Stats().Reservations; s != (ReservationStats{}) {
		t.Errorf("leases count as reservations: %+v", s)
	}
	b.now += int64(time.Hour) - b.now%int64(time.Hour) - int64(50*time.Millisecond)
	if x := lease(9, "user=bob"); x.Units != 9 || x.ExpiresAfter != 25*time.Millisecond {
		t.Errorf("50 ms before the end of the window: %+v", x)
	}
	if x := lease(9, "watched=1"); x.Units != 1 {
		t.Errorf("in shadow mode: %+v", x)
	}
	for _, c := range []struct {
		name, field string
		r           ReserveRequest
		key         string
		descriptors []string
	}{
		{"two checks", "lease", ReserveRequest{Units: 1, Lease: true}, "", []string{"user=ann", "team=red"}},
		{"an idempotency key", "lease", ReserveRequest{Units: 1, Lease: true}, "k", []string{"user=ann"}},
		{"no units", "units", ReserveRequest{Lease: true}, "", []string{"user=ann"}},
		{"a short period", "checks[0].descriptor", ReserveRequest{Units: 1, Lease: true}, "", []string{"brief=1"}},
		{"a queue", "checks[0].descriptor", ReserveRequest{Units: 1, Lease: true}, "", []string{"queue=1"}},
	} {
		x, results, err := b.reserve(c.r, c.key, c.descriptors...)
		var e *Error
		if !errors.As(err, &e) && len(results) > 0 {
			if e = results[0].Err; e != nil && e.Field == "descriptor" {
				e = &Error{Code: e.Code, Field: "checks[0].descriptor"}
			}
		}
		if e == nil || e.Code != Invalid || e.Field != c.field || x.ID != "" {
			t.Errorf("%s: %+v, %v, %+v", c.name, x, err, e)
		}
	}
}

// TestHold: while a key is held nothing is admitted, however much is left, and afterwards all that was left before.
func TestHold(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	spend := func() Result {
		t.Helper()
		batch := NewBatch()
		c := batch.Add()
		c.Domain, c.Descriptor, c.Cost = "llm", []rules.Entry{{Key: "user", Value: "ann"}}, 1
		if err := b.Check(ctx, batch); err != nil {
			t.Fatal(err)
		}
		return batch.Results[0]
	}
	if r := spend(); !r.Allowed || r.Remaining != 99 {
		t.Errorf("%+v", r)
	}
	x, results, err := b.reserve(ReserveRequest{TTL: 30 * time.Second, Hold: true}, "", "user=ann")
	if err != nil || x.ID == "" || x.ExpiresAfter != 30*time.Second || !results[0].Allowed || results[0].Remaining != 0 {
		t.Fatalf("%+v, %+v, %v", x, results, err)
	}
	b.now += int64(10 * time.Second)
	if r := spend(); r.Allowed || r.RetryAfter != 20*time.Second {
		t.Errorf("while it is held: %+v", r)
	}
	other, _, err := b.reserve(ReserveRequest{TTL: 40 * time.Second, Hold: true}, "", "user=ann") // another instance
	if err != nil || other.ID == "" {
		t.Fatalf("%+v, %v", other, err)
	}
	b.now += int64(20 * time.Second)
	if r := spend(); r.Allowed || r.RetryAfter != 20*time.Second {
		t.Errorf("while it is held by another: %+v", r)
	}
	if s, err := b.Settle(ctx, other.ID, 0); err != nil || s.Charged != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if r := spend(); !r.Allowed || r.Remaining != 98 {
		t.Errorf("afterwards: %+v", r)
	}
	if s := b.Stats().Reservations; s != (ReservationStats{}) {
		t.Errorf("holds count as reservations: %+v", s)
	}
	x, results, err = b.reserve(ReserveRequest{TTL: 24 * time.Hour, Hold: true}, "", "user=ann")
	if err != nil || x.ExpiresAfter != time.Minute || results[0].Err != nil {
		t.Errorf("for longer than the rule's max_ttl: %+v, %+v, %v", x, results, err)
	}
	b.now += int64(time.Minute)
	if r := spend(); !r.Allowed {
		t.Errorf("after the rule's max_ttl: %+v", r)
	}
	for _, c := range []struct {
		field string
		r     ReserveRequest
		list  []string
	}{
		{"hold", ReserveRequest{TTL: time.Second, Hold: true, Units: 1}, []string{"user=ann"}},
		{"hold", ReserveRequest{TTL: time.Second, Hold: true}, []string{"user=ann", "team=red"}},
		{"hold", ReserveRequest{TTL: time.Second, Hold: true, Lease: true, Units: 1}, []string{"user=ann"}},
		{"ttl", ReserveRequest{Hold: true}, []string{"user=ann"}},
		{"ttl", ReserveRequest{TTL: 25 * time.Hour, Hold: true}, []string{"user=ann"}},
	} {
		var e *Error
		if _, _, err := b.reserve(c.r, "", c.list...); !errors.As(err, &e) || e.Code != Invalid || e.Field != c.field {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
}
