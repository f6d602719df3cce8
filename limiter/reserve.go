package limiter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/rules"
)

// ReserveRequest asks for units of all checks of a Batch, of which Verb and Cost do not count, or of none.
type ReserveRequest struct {
	// Units are how many, above 0; Least is how few will do, 1 to Units. 0 means the estimate of the first check's rule, given or
	// learned, and Units. A rule with neither estimate nor max_units requires Units.
	Units, Least int64
	// TTL is the time until the deadline, up to the rules' max_ttl. 0 means the shortest ttl of the rules.
	TTL time.Duration
	// Lease: the units of the only check are for many checks that the caller decides by itself. The rule's reservation does not apply.
	Lease bool
	// Hold: the whole limit of the only check is reserved for TTL, whatever is left of it, but for
	// the rule's max_ttl at most. Nothing else of the rule's reservation applies.
	Hold bool
	// Slots: units of limits with algorithm concurrency are reserved, all others are spent at once. Without such a limit it is Check.
	Slots bool
	// Wait is how long to wait, in the line of those who wait for slots of the first check, for Config.MaxWait at most.
	Wait time.Duration
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

// Spent is the response to Spend.
type Spent struct {
	// Allowed: the units were left, and are spent. Otherwise nothing is.
	Allowed bool `json:"allowed"`
	// Left are the reserved units that are not spent.
	Left int64 `json:"left"`
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
	Charged  int64 `json:"charged"`
	Returned int64 `json:"returned"`
	// Late: the deadline had passed. What was not charged then was charged now, whatever the limits say.
	Late bool `json:"late,omitempty"`
	// Repeated: it was settled before, and this call changed nothing.
	Repeated bool `json:"repeated,omitempty"`
}

// Holding is an open reservation or lease of a counter.
type Holding struct {
	// ID is that of the grant in the counter.
	ID uint64
	// Use is reservation, slot or lease.
	Use string
	// Caller is the authenticated caller that has made it, "" for none.
	Caller string
	// Units are reserved and not spent.
	Units int64
	// Since is how long ago it was made, about a second too long, 0 if its idempotency key does not tell. ExpiresAfter is the time until its
	// deadline.
	Since, ExpiresAfter time.Duration
}

// reserving is what Reserve asks of the checks of a batch.
type reserving struct {
	ReserveRequest
	id          uint64
	ttl, maxTTL time.Duration
	// units are reserved of each check, most may be.
	units, most int64
	// attempt tells this call from others with the same ID. It began at began.
	attempt uint64
	began   time.Time
	// cells are the reservations of the queued requests, at their indexes.
	cells []bucket.Reservation
	one   [1]bucket.Reservation // the memory of cells for a single request
	// ticket is what the ID of the reservation says, but for its domains. It is nil if nothing is reserved.
	ticket *ticket
}

// apart reports whether x is no reservation of the rule's.
func (x *reserving) apart() bool { return x.Lease || x.Hold }

// Reserve implements Service. It reserves in all counters at once, and gives back what it got if it did not get all.
func (l *Limiter) Reserve(ctx context.Context, b *Batch, r ReserveRequest) (Reservation, error) {
	switch {
	case r.Slots && !l.takesSlots(b):
		for i := range b.Checks {
			b.Checks[i].Cost = r.Units
		}
		return Reservation{}, l.Check(ctx, b)
	case len(b.Checks) < 1 || len(b.Checks) > MaxBudgets:
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "checks", Message: fmt.Sprintf("%d checks; want 1 to %d", len(b.Checks), MaxBudgets)})
	case r.Lease && (len(b.Checks) != 1 || b.IdempotencyKey != ""):
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "lease", Message: "is set; want one check and no idempotency key beside it"})
	case r.Hold && (len(b.Checks) != 1 || b.IdempotencyKey != "" || r.Units != 0 || r.Least != 0 || r.Lease):
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "hold", Message: "is set; want one check and a ttl alone beside it"})
	case r.Hold && (r.TTL < bucket.LeastLease || r.TTL > bucket.MostReservation):
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "ttl", Message: fmt.Sprintf("%v; want %v to %v", r.TTL, bucket.LeastLease, bucket.MostReservation)})
	case r.Lease && r.Units == 0:
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "units", Message: "missing; give a number above 0"})
	case r.Units < 0:
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "units", Message: fmt.Sprintf("%d; want 1 or more, or leave it out for the rule's estimate", r.Units)})
	case r.Least < 0 || r.Units > 0 && r.Least > r.Units:
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "least", Message: fmt.Sprintf("%d; want 1 to units, or leave it out for units", r.Least)})
	case r.TTL != 0 && r.TTL < bucket.LeastLease:
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "ttl", Message: fmt.Sprintf("%v; want 1ms or more, or leave it out", r.TTL)})
	case r.Wait < 0 || r.Wait > 0 && (r.Lease || r.Hold):
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "wait", Message: fmt.Sprintf("%v; want 0 or more, and 0 with hold", r.Wait)})
	case r.Wait > 0:
		if err := l.awaitTurn(ctx, b, r); err != nil {
			return Reservation{}, l.reject(err)
		}
	}
	if r.Lease {
		r.Least = 1
	}
	if r.Hold {
		r.Units, r.Least = math.MaxInt64, 1
	}
	x := &reserving{ReserveRequest: r, began: time.Now(), attempt: rand.Uint64()>>bucket.CallerBits | l.callerOf(b.Caller)<<(64-bucket.CallerBits)} // #nosec G404 -- a name, no secret
	b.reserving, b.AllOrNothing = x, true
	for i := range b.Checks {
		b.Checks[i].Verb, b.Checks[i].Cost = bucket.Reserve, r.Units
	}
	x.id = l.newReservationID(b)
	if err := l.Check(ctx, b); err != nil {
		return Reservation{}, err
	}
	if x.units == 0 {
		if allowed, _, _ := Overall(b.Results); !allowed && !x.apart() {
			l.reserved.denied.Add(1)
		}
		return Reservation{}, nil
	}
	if r.Slots && len(b.places) > 1 {
		spent := l.about(b, bucket.Settle)
		spent.Requests = slices.DeleteFunc(spent.Requests, func(q check.Request) bool { return q.Limits.Slots() })
		l.decideDetached(ctx, spent)
	}
	id := l.idOf(b)
	if len(id) > MaxReservationID {
		l.cancel(ctx, b)
		return Reservation{}, l.reject(&Error{Code: Invalid, Field: "checks", Message: "the names of the domains are too long in all; use shorter ones"})
	}
	if !x.apart() {
		l.reserved.made.Add(1)
		l.reserved.reserved.Add(uint64(x.units))
	}
	return Reservation{id, x.units, x.ttl}, nil
}

// fill sets the units and the times of the queued requests by their rules, and reports whether the call fails by them.
func (x *reserving) fill(b *Batch, c ruleCounts, failed bool) bool {
	x.cells = x.one[:min(1, len(b.queued.Requests))]
	if len(b.queued.Requests) > 1 {
		x.cells = make([]bucket.Reservation, len(b.queued.Requests))
	}
	x.ttl, x.maxTTL, x.most = x.TTL, bucket.MostReservation, math.MaxInt64
	if x.Units == 0 && len(b.places) > 0 {
		x.Units = b.estimate(c.byRule[b.Results[b.places[0]].Rule])
	}
	for j, i := range b.places {
		r, bounds := &b.Results[i], b.reservable(i)
		x.maxTTL = min(x.maxTTL, bounds.MaxTTL)
		if x.TTL == 0 && (j == 0 || bounds.TTL < x.ttl) {
			x.ttl = bounds.TTL
		}
		which, why := r.Limits.Reservable()
		if x.Lease && which < 0 && bounds.MaxTTL < leastClientLease {
			which, why = 0, fmt.Sprintf("as a lease they would last less than %v", leastClientLease)
		}
		most := bounds.Most(r.Limits)
		if r.shadow() {
			continue // it denies nothing
		}
		x.most = min(x.most, most)
		switch {
		case which >= 0:
			r.Err = &Error{Code: Invalid, Field: "descriptor", Message: fmt.Sprintf("units of %s cannot be reserved: %s", r.LimitName(which), why)}
		case x.Units == 0:
			r.Err = &Error{Code: Invalid, Field: "units", Message: "missing, and the rule has neither estimate nor max_units; give a number above 0"}
		case !x.apart() && x.Units > most && (x.Least == 0 || x.Least > most):
			r.Err = &Error{Code: Invalid, Field: "units", Message: fmt.Sprintf("%d; the rule allows at most %d", x.Units, most)}
		case !x.apart() && x.TTL > bounds.MaxTTL:
			r.Err = &Error{Code: Invalid, Field: "ttl", Message: fmt.Sprintf("%v; the rule allows at most %v", x.TTL, bounds.MaxTTL)}
		}
		failed = failed || r.Err != nil
	}
	x.Least, x.ttl = cmp.Or(x.Least, x.Units), min(x.ttl, x.maxTTL)
	for j, i := range b.places {
		q, bounds := &b.queued.Requests[j], b.reservable(i)
		b.Checks[i].Cost = x.Units
		if failed {
			q.Verb, q.Cost = bucket.Read, max(1, x.Units)
			continue
		}
		if q.Cost = x.Units; !b.Results[i].shadow() {
			q.Cost = min(q.Cost, bounds.Most(b.Results[i].Limits))
		}
		x.cells[j] = bucket.Reservation{
			ID: x.id, Least: min(x.Least, q.Cost), MaxOpen: bounds.MaxOpen, For: min(x.ttl+x.grace(x.ttl), x.maxTTL), Release: bounds.OnExpiry == rules.ExpiryRelease,
			Lease: x.Lease, Hold: x.Hold, Fresh: b.IdempotencyKey == "",
		}
		q.Reservation, q.Once = &x.cells[j], x.attempt
	}
	return failed
}

const (
	// Limits whose leases last less than leastClientLease give none to clients, since asking for them would cost more than they save.
	// maxClientLease is the longest one.
	leastClientLease, maxClientLease = 10 * time.Millisecond, time.Second
	// maxGrace is the longest time after its deadline in which one is taken back.
	maxGrace = 500 * time.Millisecond
	// maxClientLeases is the number of open grants of a counter from which on clients get no lease.
	maxClientLeases = 1000
	// maxHolds is the same for holds.
	maxHolds = 10_000
)

// grace is how long a client's lease that lasts d may be given back after its deadline.
func (x *reserving) grace(d time.Duration) time.Duration {
	if !x.Lease {
		return 0
	}
	return min(d, maxGrace)
}

// reservable returns the bounds of reservations of check i.
func (b *Batch) reservable(i int) *rules.Reservation {
	if b.reserving.Slots && !b.Results[i].Limits.Slots() { // what is not settled at once is charged at the deadline
		return &rules.Reservation{MaxOpen: maxHolds, TTL: bucket.MostReservation, MaxTTL: bucket.MostReservation}
	}
	if b.reserving.Lease {
		most := min(maxClientLease, b.Results[i].Limits.LongestLease())
		return &rules.Reservation{MaxOpen: maxClientLeases, TTL: most, MaxTTL: most}
	}
	d := rules.DefaultReservation(b.Results[i].Limits)
	if rule := b.Results[i].Rule; rule != nil {
		d = rule.Reservation
	}
	if b.reserving.Hold {
		return &rules.Reservation{MaxOpen: maxHolds, MaxTTL: d.MaxTTL, OnExpiry: rules.ExpiryRelease}
	}
	return &d
}

// complete makes all reservations of b as small as the smallest, or cancels them if one was denied.
func (l *Limiter) complete(ctx context.Context, b *Batch) {
	x := b.reserving
	for j, i := range b.places {
		r, got := &b.Results[i], &x.cells[j].Reserved
		switch {
		case b.queued.Requests[j].Verb != bucket.Reserve:
			return
		case got.Unknown:
			r.Err = &Error{Code: Rejected, Field: "idempotency_key", Message: "its reservation has ended; use another key"}
			if b.IdempotencyKey == "" {
				r.Err = &Error{Code: Unavailable, Message: "another reservation has its ID by chance; ask again"}
			}
			fallthrough
		case r.Err != nil, !r.Allowed && !r.shadow():
			l.cancel(ctx, b)
			return
		case got.Units > 0 && (x.units == 0 || got.Units < x.units):
			x.units = got.Units
		}
		if r.Allowed {
			x.ttl = min(x.ttl, got.Expires-x.grace(got.Expires/2))
		}
	}
	if slices.ContainsFunc(x.cells, func(c bucket.Reservation) bool { return c.Reserved.Units > x.units }) {
		l.decideDetached(ctx, l.about(b, bucket.Extend))
	}
}

// cancel gives back what Reserve has got, or may still get, for b. It does not wait for an owner that has just not answered in time.
func (l *Limiter) cancel(ctx context.Context, b *Batch) {
	b.reserving.units = 0
	if _, ok := ctx.Deadline(); ok && slices.ContainsFunc(b.queued.Answers, func(a check.Answer) bool { return a.Early != 0 }) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 0)
		defer cancel()
	}
	l.decideDetached(ctx, l.about(b, bucket.Cancel))
}

// about returns requests of verb about the reservations that b may have made: Extend makes them as small as the smallest, and Settle
// spends so much of each.
func (l *Limiter) about(b *Batch, verb bucket.Verb) *check.Batch {
	out := new(check.Batch)
	for j, i := range b.places {
		q, got := b.queued.Requests[j], b.reserving.cells[j].Reserved.Units
		q.Verb, q.Cost, q.Reservation = verb, 0, &bucket.Reservation{ID: b.reserving.id}
		switch verb {
		case bucket.Extend: // once, whichever attempts are under way
			q.Cost, q.Once = b.reserving.units-got, b.reserving.id
			if !b.reserving.cells[j].Reserved.Repeated { // else they may have been had for longer
				q.Reservation.For = time.Since(b.reserving.began)
			}
		case bucket.Settle:
			q.Cost = b.reserving.units
		case bucket.Cancel:
			if b.queued.Answers[j].Early == check.NotAsked {
				continue
			}
			q.Reservation.For = b.reserving.cells[j].For
		}
		if got == 0 && b.Results[i].Err == nil || verb == bucket.Extend && q.Cost == 0 {
			continue
		}
		out.Requests = append(out.Requests, q)
	}
	return out
}

// decideDetached decides b though the caller may have gone or its deadline passes. Of what is not decided in time, the deadline of
// the reservation decides.
func (l *Limiter) decideDetached(ctx context.Context, b *check.Batch) {
	if len(b.Requests) > 0 {
		b.Answers, b.Detached = make([]check.Answer, len(b.Requests)), ctx != atOnce
		l.config.Decider.Decide(ctx, b)
	}
}

// askCells returns the decisions of verb in all counters of a reservation that have it still: those of the others are lost.
func (l *Limiter) askCells(ctx context.Context, t *ticket, verb bucket.Verb, cost int64, ttl time.Duration) (*check.Batch, error) {
	l.calls.Add(1)
	b := new(check.Batch)
	var once uint64
	if verb != bucket.Settle && cost != 0 {
		once = max(1, rand.Uint64()) // #nosec G404 -- a name, no secret
	}
	t.add(b, verb, cost, once, ttl, make([]bucket.Reservation, len(t.cells)))
	l.config.Decider.Decide(ctx, b)
	known := 0
	for i := range b.Answers {
		if err := b.Answers[i].Err; err != nil {
			return nil, l.reject(errorOf(err))
		}
		if !b.Requests[i].Reservation.Reserved.Unknown {
			b.Requests[known], b.Answers[known] = b.Requests[i], b.Answers[i]
			known++
		}
	}
	b.Requests, b.Answers = b.Requests[:known], b.Answers[:known]
	if known == 0 {
		message := "it was settled or has expired, or its counters were lost; reserve anew"
		if verb == bucket.Settle && !t.cells[0].apart {
			l.reserved.unknown.Add(1)
			message = "it ended longer ago than --settle-window, or its counters were lost; nothing was charged"
		}
		return nil, l.reject(&Error{Code: NotFound, Field: "reservation", Message: message})
	}
	return b, nil
}

// Spend implements Service.
func (l *Limiter) Spend(ctx context.Context, id string, units int64) (Spent, error) {
	t, err := l.ticketOf(id)
	if err == nil && units < 1 {
		err = &Error{Code: Invalid, Field: "units", Message: fmt.Sprintf("%d; want 1 or more", units)}
	}
	if err != nil {
		return Spent{}, l.reject(err)
	}
	b, e := l.askCells(ctx, t, bucket.Spend, units, 0)
	if e != nil {
		return Spent{}, e
	}
	s := Spent{Allowed: true, Left: math.MaxInt64}
	for i := range b.Answers {
		s.Allowed = s.Allowed && b.Answers[i].Allowed
		s.Left = min(s.Left, b.Requests[i].Reservation.Reserved.Units)
	}
	return s, nil
}

// Extend implements Service.
func (l *Limiter) Extend(ctx context.Context, id string, more int64, ttl time.Duration) (Extended, error) {
	t, err := l.ticketOf(id)
	switch {
	case err != nil:
	case more < 0:
		err = &Error{Code: Invalid, Field: "more", Message: fmt.Sprintf("%d; want 0 or more", more)}
	case ttl != 0 && ttl < bucket.LeastLease || ttl > t.maxTTL:
		err = &Error{Code: Invalid, Field: "ttl", Message: fmt.Sprintf("%v; want 1ms to %v, which the rules allow, or 0 to leave the deadline", ttl, t.maxTTL)}
	}
	if err != nil {
		return Extended{}, l.reject(err)
	}
	if more > 0 && ttl > 0 && len(t.cells) > 1 { // the deadline only if all have the units
		x, e := l.extend(ctx, t, more, 0)
		if e != nil || !x.Allowed {
			return x, e
		}
		more = 0
	}
	return l.extend(ctx, t, more, ttl)
}

func (l *Limiter) extend(ctx context.Context, t *ticket, more int64, ttl time.Duration) (Extended, error) {
	began := time.Now()
	b, e := l.askCells(ctx, t, bucket.Extend, more, ttl)
	if e != nil {
		return Extended{}, e
	}
	x := Extended{Allowed: true, Units: math.MaxInt64, ExpiresAfter: math.MaxInt64}
	had := &ticket{id: t.id, most: t.most}
	for i := range b.Answers {
		a, got := &b.Answers[i], &b.Requests[i].Reservation.Reserved
		units := got.Units
		if a.Allowed {
			q := &b.Requests[i]
			had.cells = append(had.cells, cell{key: q.Key, sync: q.Sync, unreplicated: q.Unreplicated, home: q.Home(), lease: q.Reservation.Lease})
			units -= more
		}
		x.Allowed, x.RetryAfter = x.Allowed && a.Allowed, max(x.RetryAfter, a.RetryAfter)
		x.Units, x.ExpiresAfter = min(x.Units, units), min(x.ExpiresAfter, got.Expires)
	}
	if x.Allowed {
		x.Units += more
	} else if len(had.cells) > 0 {
		_, e = l.askCells(context.WithoutCancel(ctx), had, bucket.Extend, -more, time.Since(began))
	}
	return x, e
}

// Settle implements Service.
func (l *Limiter) Settle(ctx context.Context, id string, actual int64) (Settlement, error) {
	t, err := l.ticketOf(id)
	if err == nil && actual < 0 {
		err = &Error{Code: Invalid, Field: "actual", Message: fmt.Sprintf("%d; want 0 or more", actual)}
	}
	if err != nil {
		return Settlement{}, l.reject(err)
	}
	b, e := l.askCells(ctx, t, bucket.Settle, actual, t.maxTTL)
	if e != nil {
		return Settlement{}, e
	}
	s := Settlement{Repeated: true}
	for i := range b.Requests {
		got := &b.Requests[i].Reservation.Reserved
		s.Charged, s.Returned = max(s.Charged, got.Units), max(s.Returned, got.Returned)
		s.Late, s.Repeated = s.Late || got.Late, s.Repeated && got.Repeated
	}
	if !t.cells[0].apart {
		l.reserved.ended(&s)
		l.learn(t, actual, &s)
	}
	return s, nil
}

// callerOf returns the hash of a caller's name that grants have, 0 for none.
func (l *Limiter) callerOf(name string) uint64 {
	if name == "" {
		return 0
	}
	return max(1, l.config.Hasher.Key(append([]byte{spaceCaller}, name...)).Hi>>(64-bucket.CallerBits))
}

// heldWithin is how long Held asks for the owner of a key, which has none in the moment of a
// handoff.
const heldWithin = 2 * time.Second

// Held implements Service.
func (l *Limiter) Held(ctx context.Context, q *Check) (list []Holding, all int, units int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, heldWithin)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		x, err := l.Inspect(ctx, q)
		if counted := x.Rule != nil && x.Rule.Limits != nil && !x.Rule.Unlimited && !x.Rule.Limits.Unlimited(); err != nil || !counted || x.Owner != "" {
			return x.Held, x.Grants, x.Granted, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, 0, 0, &Error{Code: Unavailable, Message: "no node owns this key just now, so it is not known what is held of it; try again"}
		}
	}
}

// holdings returns the grants of a report, by deadline.
func (l *Limiter) holdings(held []facts.Holding) (list []Holding) {
	names := map[uint32]string{}
	if l.config.Callers != nil && len(held) > 0 {
		for _, name := range l.config.Callers() {
			names[uint32(l.callerOf(name))] = name
		}
	}
	now := time.Now()
	for _, h := range held {
		one := Holding{ID: h.ID, Use: h.Use, Caller: names[h.Caller], Units: h.Units, Since: sinceID(h.ID, now), ExpiresAfter: h.Expires}
		if one.Caller == "" && h.Caller != 0 {
			one.Caller = fmt.Sprintf("unknown caller %x", h.Caller)
		}
		if since := now.Sub(time.Unix(0, int64(h.ID^1<<63))); h.Use == bucket.ForLease.String() && since >= 0 && since < bucket.MostLease { // of a node
			one.Since = since
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Holding) int { return cmp.Compare(a.ExpiresAfter, b.ExpiresAfter) })
	return list
}
