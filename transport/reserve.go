package transport

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/limiter"
)

// leastTTL is the shortest time until the deadline of a reservation.
const leastTTL = time.Millisecond

// ReserveRequest returns the request to reserve units of so many checks under an idempotency key, "" for none, or the first
// invalid field. units and least are nil if they are not set.
func ReserveRequest(checks int, key string, units, least *int64, ttl time.Duration) (r limiter.ReserveRequest, e *limiter.Error) {
	r.TTL = ttl
	if units != nil {
		r.Units = *units
	}
	if least != nil {
		r.Least = *least
	}
	switch {
	case checks < 1 || checks > limiter.MaxBudgets:
		return r, invalid("checks", "%d checks; want 1 to %d", checks, limiter.MaxBudgets)
	case key != "" && !limiter.ValidKey(key):
		return r, invalid("idempotency_key", "want at most %d bytes of visible ASCII", limiter.MaxIdempotencyKey)
	case units != nil && r.Units < 1:
		return r, invalid("units", "%d; want 1 or more, or leave it out for the rule's estimate", r.Units)
	case least != nil && (r.Least < 1 || units != nil && r.Least > r.Units):
		return r, invalid("least", "%d; want 1 to units, or leave it out for units", r.Least)
	}
	return r, TTLError(ttl)
}

// TTLError returns why the ttl of a call about reservations is invalid, or nil.
func TTLError(ttl time.Duration) *limiter.Error {
	if ttl != 0 && ttl < leastTTL {
		return invalid("ttl", "%v; want 1ms or more, or leave it out", ttl)
	}
	return nil
}

// AtLeast returns that a field is invalid if its value n is below least, or nil.
func AtLeast(field string, n, least int64) *limiter.Error {
	if n < least {
		return invalid(field, "%d; want %d or more", n, least)
	}
	return nil
}

func invalid(field, format string, args ...any) *limiter.Error {
	return &limiter.Error{Code: limiter.Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}
