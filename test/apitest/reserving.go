package apitest

import (
	"context"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
)

// Reserving is a limiter.Service with reservations of 10 units until a minute from now: ID in the domain shop, and OtherID in the
// domains shop and other. GoneID was settled. Reserve decides as a check of the units.
type Reserving struct {
	limiter.Service
	// Reserved is the last request to reserve, Key its idempotency key, and Caller its caller.
	Reserved    limiter.ReserveRequest
	Key, Caller string
}

// IDs of reservations.
const (
	ID      = "r-1"
	OtherID = "r-2"
	GoneID  = "r-3"
)

// Reserve implements limiter.Service.
func (f *Reserving) Reserve(ctx context.Context, b *limiter.Batch, r limiter.ReserveRequest) (limiter.Reservation, error) {
	f.Reserved, f.Key, f.Caller = r, b.IdempotencyKey, b.Caller
	for i := range b.Checks {
		b.Checks[i].Cost = max(1, r.Units)
	}
	b.AllOrNothing, b.IdempotencyKey = true, ""
	err := f.Check(ctx, b)
	if allowed, _, _ := limiter.Overall(b.Results); err != nil || !allowed {
		return limiter.Reservation{}, err
	}
	return limiter.Reservation{ID: ID, Units: max(1, r.Units), ExpiresAfter: max(r.TTL, time.Minute)}, nil
}

// Spend implements limiter.Service.
func (f *Reserving) Spend(_ context.Context, id string, units int64) (limiter.Spent, error) {
	if units > 10 {
		return limiter.Spent{Left: 10}, nil
	}
	return limiter.Spent{Allowed: true, Left: 10 - units}, nil
}

// Extend implements limiter.Service.
func (f *Reserving) Extend(_ context.Context, id string, more int64, ttl time.Duration) (limiter.Extended, error) {
	switch {
	case more > 100:
		return limiter.Extended{Units: 10, ExpiresAfter: time.Minute, RetryAfter: bucket.Never}, nil
	case more > 5:
		return limiter.Extended{Units: 10, ExpiresAfter: time.Minute, RetryAfter: 2500 * time.Millisecond}, nil
	}
	return limiter.Extended{Allowed: true, Units: 10 + more, ExpiresAfter: max(ttl, time.Minute)}, nil
}

// Settle implements limiter.Service.
func (f *Reserving) Settle(_ context.Context, id string, actual int64) (limiter.Settlement, error) {
	return limiter.Settlement{Charged: actual, Returned: max(0, 10-actual), Late: actual > 10}, nil
}

// Held implements limiter.Service.
func (f *Reserving) Held(ctx context.Context, q *limiter.Check) (list []limiter.Holding, all int, units int64, err error) {
	if _, err := f.Inspect(ctx, q); err != nil {
		return nil, 0, 0, err
	}
	return []limiter.Holding{{ID: 0x1f, Use: "reservation", Caller: "billing", Units: 10, Since: 1500 * time.Millisecond, ExpiresAfter: time.Minute}}, 2, 12, nil
}

// ReservationDomains implements limiter.Service.
func (f *Reserving) ReservationDomains(id string) ([]string, error) {
	switch id {
	case ID:
		return []string{"shop"}, nil
	case OtherID:
		return []string{"shop", "other"}, nil
	case GoneID:
		return nil, &limiter.Error{Code: limiter.NotFound, Message: "settled"}
	}
	return nil, &limiter.Error{Code: limiter.Invalid, Field: "reservation", Message: "no such ID"}
}
