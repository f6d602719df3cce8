package sluice

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// ReserveRequest asks for units of several counters, or of none.
type ReserveRequest struct {
	// Keys are the counters, 1 to 16. Their FailurePolicy and name from Once do not count.
	Keys []Key
	// Units is how many to reserve of each, 0 for the estimate of the first key's rule, given or learned. 0 is an error under a rule
	// with neither estimate nor max_units.
	Units int64
	// Least is how few will do where not all are left, 1 to Units; 0 for Units.
	Least int64
	// TTL is the time until the deadline, 1 ms or more; 0 for the shortest ttl of the rules.
	TTL time.Duration
	// IdempotencyKey names the reservation: a repeated request with the same keys and units gets the same one. At most 128 bytes
	// of printable ASCII; empty for a random one, so that the client can repeat the request after a lost answer.
	IdempotencyKey string
}

// Reservation is units that are set aside until they are settled or until a deadline, when the rule charges them or gives them
// back. It does not change, and is safe for concurrent use. The methods of a nil and of a zero Reservation return an *Error.
type Reservation struct {
	// Batch has the decisions, one per key, all allowed.
	Batch
	// ID names it at any node, for Client.Settle in another process. It is empty if nothing limits the keys, as the Source of the decisions
	// says or a rule in shadow mode: then Spend and Extend allow, and Settle changes nothing.
	ID string
	// Units were reserved of each key. They are those of the request if nothing limits the keys.
	Units int64
	// ExpiresAfter was the time until the deadline.
	ExpiresAfter time.Duration

	client *Client
}

// Spent answers Reservation.Spend.
type Spent struct {
	// Allowed: the units were left, and are spent.
	Allowed bool
	// Left is how many reserved units are not spent.
	Left int64
}

// Extended answers Reservation.Extend.
type Extended struct {
	// Allowed: all keys had the units. Otherwise nothing has changed.
	Allowed bool
	// Units is how many reserved units are not spent.
	Units int64
	// ExpiresAfter is the time until the deadline.
	ExpiresAfter time.Duration
	// RetryAfter is the time until the units could be had; 0 when allowed, and when that time is not known or never comes.
	RetryAfter time.Duration
}

// Settlement answers Settle.
type Settlement struct {
	// Charged is how many units were charged to each key, by this call or by the first one.
	Charged int64
	// Returned is how many units are free again; 0 if Repeated.
	Returned int64
	// Late: the deadline had passed, and what was not charged then was charged now, whatever the limits say.
	Late bool
	// Repeated: it was settled before, and this call has changed nothing.
	Repeated bool
	// Unlimited: nothing limits the keys, so nothing was reserved and nothing is charged.
	Unlimited bool
}

// Reserve sets units aside in the counters of all keys, or in none: then the error is a *DeniedError. No FailurePolicy decides it: the
// error is ErrUnavailable when no node has answered in time.
func (c *Client) Reserve(ctx context.Context, r ReserveRequest) (*Reservation, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	req := &sluicev1.ReserveRequest{TtlNs: int64(r.TTL), IdempotencyKey: cmp.Or(r.IdempotencyKey, newKey())}
	if r.Units != 0 {
		req.Units = &r.Units
	}
	if r.Least != 0 {
		req.Least = &r.Least
	}
	return c.reserve(ctx, r.Keys, req)
}

// newKey returns an idempotency key that says when it was made: a UUID of version 7.
func newKey() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // it does not fail
	ms := time.Now().UnixMilli()
	return fmt.Sprintf("%08x-%04x-7%03x-%04x-%012x", ms>>16, ms&0xffff, int(b[0])<<4|int(b[1])>>4, 1<<15|int(b[2])<<6|int(b[3])>>2, b[4:])
}

// Hold admits nothing of key for retryAfter, 1 ms to 24 hours but max_ttl of the key's rule at
// most, in the whole cluster: for example when a provider has answered 429. ExpiresAfter of the
// Reservation says for how long. Units that are leased may still be spent, for a second at most.
// Settle of the Reservation with 0 ends it earlier. Errors are as with Reserve, and ErrRejected if
// nothing limits the key, which therefore goes on.
func (c *Client) Hold(ctx context.Context, key Key, retryAfter time.Duration) (*Reservation, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	r, err := c.reserve(ctx, []Key{key}, &sluicev1.ReserveRequest{TtlNs: int64(retryAfter), Hold: true})
	if err == nil && r.ID == "" {
		q := key.Spend(1)
		return nil, &Error{Code: limit.CodeRejected, Field: "descriptor", Message: fmt.Sprintf(
			"no limit of domain %q applies to the keys %q, so they cannot be held; see the rules", q.Domain, keysOf(&q))}
	}
	return r, err
}

func (c *Client) reserve(ctx context.Context, keys []Key, req *sluicev1.ReserveRequest) (*Reservation, error) {
	checks, first, err := budgets(keys)
	if err != nil {
		return nil, err
	}
	req.Checks = checks
	out := &Reservation{client: c}
	err = c.unary(ctx, first, true, func(ctx context.Context, n sluicev1.RateLimitServiceClient) error {
		res, err := n.Reserve(ctx, req)
		if err != nil {
			return err
		}
		decisions, err := readDecisions(res.GetDecisions())
		out.Batch, out.ID = limit.NewBatch(decisions), res.GetReservation()
		out.Units, out.ExpiresAfter = res.GetUnits(), time.Duration(res.GetExpiresAfterNs())
		out.Allowed = out.Allowed && res.GetAllowed()
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range min(len(keys), len(out.Decisions)) {
		q := keys[i].Spend(1)
		c.noteSource(&q, &out.Decisions[i])
	}
	switch {
	case !out.Allowed:
		return nil, &DeniedError{Batch: out.Batch}
	case out.ID == "":
		out.Units = req.GetUnits()
	}
	return out, nil
}

// budgets returns the checks of keys, and the key of the first one's counter.
func budgets(keys []Key) (checks []*sluicev1.Check, first counterKey, err error) {
	for i := range keys {
		var memory [256]byte // for most of them
		counter, err := appendBudget(memory[:0], &keys[i])
		if err != nil {
			return nil, first, within(err, i)
		}
		if i == 0 {
			first = keyOf(counter)
		}
		checks = append(checks, new(sluicev1.Check))
		if err := proto.Unmarshal(counter, checks[i]); err != nil {
			return nil, first, within(err, i)
		}
	}
	return checks, first, nil
}

// appendBudget appends the fields that identify the counter of key.
func appendBudget(b []byte, key *Key) ([]byte, error) {
	q := key.Spend(1) // as unset
	if err := q.Validate(); err != nil {
		return nil, err
	}
	return appendCounter(b, &q)
}

// readDecisions returns the decisions, or the first error among them.
func readDecisions(list []*sluicev1.Decision) ([]Decision, error) {
	decisions := make([]Decision, len(list))
	for i, m := range list {
		if err := errorOf(m.GetError()); err != nil {
			return nil, within(err, i)
		}
		body, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		var a answer
		if _, err := readDecision(body, &a, &names{}); err != nil {
			return nil, err
		}
		decisions[i] = a.Decision
	}
	return decisions, nil
}

// errNothing is the error of a Reservation that Reserve has not returned.
var errNothing = limit.Invalid("reservation", "nothing is held; see the error of Reserve, Hold or Acquire")

// Spend spends n of the reserved units before they are settled, as a stream goes on. If they are not left, it spends none. After a
// lost answer it is not repeated: the error is ErrUnavailable, and the units may have been spent.
func (r *Reservation) Spend(ctx context.Context, n int64) (s Spent, err error) {
	if r.unlimited() {
		return Spent{Allowed: true, Left: r.Units}, nil
	}
	err = r.call(ctx, false, func(ctx context.Context, node sluicev1.RateLimitServiceClient) error {
		res, err := node.Spend(ctx, &sluicev1.SpendRequest{Reservation: r.ID, Units: n})
		s = Spent{res.GetAllowed(), res.GetLeft()}
		return err
	})
	return s, err
}

// Extend adds more units, 0 or more, and moves the deadline to ttl from now if that is later; a ttl of 0 leaves it. After a lost
// answer it is repeated only without more units.
func (r *Reservation) Extend(ctx context.Context, more int64, ttl time.Duration) (x Extended, err error) {
	if r.unlimited() {
		return Extended{Allowed: true, Units: r.Units + more, ExpiresAfter: ttl}, nil
	}
	err = r.call(ctx, more == 0, func(ctx context.Context, node sluicev1.RateLimitServiceClient) error {
		res, err := node.Extend(ctx, &sluicev1.ExtendRequest{Reservation: r.ID, More: more, TtlNs: int64(ttl)})
		x = Extended{res.GetAllowed(), res.GetUnits(), time.Duration(res.GetExpiresAfterNs()), time.Duration(res.GetRetryAfterNs())}
		return err
	})
	return x, err
}

// Settle ends the reservation, as Client.Settle. When the context of the request may have ended, pass context.WithoutCancel of it.
func (r *Reservation) Settle(ctx context.Context, actual int64) (Settlement, error) {
	switch {
	case r.unlimited():
		return Settlement{Unlimited: true}, nil
	case r == nil || r.client == nil:
		return Settlement{}, errNothing
	}
	return r.client.Settle(ctx, r.ID, actual)
}

// unlimited reports whether nothing limits the keys of r.
func (r *Reservation) unlimited() bool { return r != nil && r.client != nil && r.ID == "" }

func (r *Reservation) call(ctx context.Context, repeat bool, f unaryCall) error {
	if r == nil || r.client == nil {
		return errNothing
	}
	return r.client.unary(ctx, counterKey{}, repeat, f)
}

// Settle ends the reservation id: of its units that are not spent, actual are charged, and the others are free again. More than
// are left are charged whatever the limits say. It may be repeated, at any node; the error is ErrNotFound for a reservation that
// was settled or expired too long ago.
func (c *Client) Settle(ctx context.Context, id string, actual int64) (s Settlement, err error) {
	if err := c.usable(); err != nil {
		return s, err
	}
	err = c.unary(ctx, counterKey{}, true, func(ctx context.Context, node sluicev1.RateLimitServiceClient) error {
		res, err := node.Settle(ctx, &sluicev1.SettleRequest{Reservation: id, Actual: actual})
		s = Settlement{Charged: res.GetCharged(), Returned: res.GetReturned(), Late: res.GetLate(), Repeated: res.GetRepeated()}
		return err
	})
	return s, err
}

// Holding is an open reservation, slot or lease of a key.
type Holding struct {
	// ID names it within the key's counter, in hexadecimal digits.
	ID string
	// Use is "reservation", "slot" or "lease".
	Use string
	// Units are reserved and not spent.
	Units int64
	// Since is how long ago it was made, up to a second more; 0 where that is not known.
	Since time.Duration
	// ExpiresAfter is the time until its deadline.
	ExpiresAfter time.Duration
	// Caller is the authenticated caller that made it, empty for none.
	Caller string
}

// Held is what is held of a key.
type Held struct {
	// Holdings are the first 100 by deadline.
	Holdings []Holding
	// Count is the number of all, Units are those of all.
	Count, Units int64
}

// Held lists what is held of key, which must have no limits of its own.
func (c *Client) Held(ctx context.Context, key Key) (h Held, err error) {
	if err := c.usable(); err != nil {
		return h, err
	}
	checks, at, err := budgets([]Key{key})
	if err != nil {
		return h, err
	}
	req := &sluicev1.HeldRequest{Domain: checks[0].GetDomain(), Descriptor_: checks[0].GetDescriptor_()}
	err = c.unary(ctx, at, true, func(ctx context.Context, n sluicev1.RateLimitServiceClient) error {
		res, err := n.Held(ctx, req)
		h = Held{Count: res.GetCount(), Units: res.GetUnits()}
		for _, x := range res.GetHoldings() {
			h.Holdings = append(h.Holdings, Holding{x.Id, x.Use, x.Units, time.Duration(x.SinceNs), time.Duration(x.ExpiresAfterNs), x.Caller})
		}
		return err
	})
	return h, err
}
