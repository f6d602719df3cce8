package limiter

import (
	"context"
	"time"
)

// ReserveRequest asks for units of all checks of a Batch, of which Verb and Cost do not count, or of none.
type ReserveRequest struct {
	// Units are how many, above 0; Least is how few will do, 1 to Units. 0 means the estimate of the first check's rule, and
	// Units.
	Units, Least int64
	// TTL is the time until the deadline, up to the rules' max_ttl. 0 means the shortest ttl of the rules.
	TTL time.Duration
}

// Reservation is units that are set aside for a caller until their deadline.
type Reservation struct {
	// ID names it in other calls, at any node. It is text of visible ASCII, at most MaxReservationID bytes, "" where nothing
	// was reserved.
	ID string
	// Units of each check are reserved.
	Units int64
	// ExpiresAfter is the time until the deadline.
	ExpiresAfter time.Duration
}

// MaxReservationID is the most bytes of the ID of a reservation.
const MaxReservationID = 1024

// MaxBudgets is the most checks of one reservation.
const MaxBudgets = 16

// Call is who makes a call about a reservation, and how.
type Call struct {
	// API, Caller and Traceparent are as in Batch.
	API                 API
	Caller, Traceparent string
}

// Spent is the response to Spend.
type Spent struct {
	// Allowed: the units were left, and are spent. Otherwise nothing is.
	Allowed bool
	// Left are the reserved units that are not spent.
	Left int64
}

// Extended is the response to Extend.
type Extended struct {
	// Allowed: all checks had the units. Otherwise neither units nor deadline have changed.
	Allowed bool
	// Units are all that are reserved and not spent, ExpiresAfter is the time until the deadline.
	Units        int64
	ExpiresAfter time.Duration
	// RetryAfter is the time until the units could be had, if nothing else came; 0 if Allowed, bucket.Never if never.
	RetryAfter time.Duration
}

// Settlement is the response to Settle.
type Settlement struct {
	// Charged are the units that were charged to each check by this settlement or, if Repeated, by the first one.
	// Returned are those that were reserved and not charged, 0 if Repeated.
	Charged, Returned int64
	// Late: the deadline had passed. What was not charged then was charged now, whatever the limits say.
	Late bool
	// Repeated: it was settled before, and this call changed nothing.
	Repeated bool
}

// MaxHeld is the most holdings that Held lists.
const MaxHeld = 100

// Holding is an open reservation or lease of a counter.
type Holding struct {
	// ID is that of the grant in the counter.
	ID uint64
	// Use is what it is for.
	Use string
	// Units are reserved and not spent.
	Units int64
	// Since is how long ago it was made, ExpiresAfter the time until its deadline.
	Since, ExpiresAfter time.Duration
}

func (l *Limiter) Reserve(ctx context.Context, b *Batch, r ReserveRequest) (Reservation, error) {
	return Reservation{}, &Error{Code: Unsupported}
}

func (l *Limiter) Spend(ctx context.Context, c Call, id string, units int64) (Spent, error) {
	return Spent{}, &Error{Code: Unsupported}
}

func (l *Limiter) Extend(ctx context.Context, c Call, id string, more int64, ttl time.Duration) (Extended, error) {
	return Extended{}, &Error{Code: Unsupported}
}

func (l *Limiter) Settle(ctx context.Context, c Call, id string, actual int64) (Settlement, error) {
	return Settlement{}, &Error{Code: Unsupported}
}

func (l *Limiter) Held(ctx context.Context, q *Check) (list []Holding, all int, units int64, err error) {
	return nil, 0, 0, &Error{Code: Unsupported}
}

func (l *Limiter) ReservationDomains(id string) ([]string, error) {
	return nil, &Error{Code: Unsupported}
}
