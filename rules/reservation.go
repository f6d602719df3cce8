package rules

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// OnExpiry says what happens to the units of a reservation that is not settled before its deadline.
type OnExpiry uint8

const (
	// ExpiryCharge charges them.
	ExpiryCharge OnExpiry = iota
	// ExpiryRelease makes them free again.
	ExpiryRelease
)

func (o OnExpiry) String() string { return nameOf(onExpiries, o) }

// Reservation has the bounds and defaults of reservations.
type Reservation struct {
	// MaxUnits is the most units of one reservation, 0 for the smallest capacity of the limits; see Most.
	MaxUnits int64
	// MaxOpen is the most open reservations of one key, 1 to 200,000.
	MaxOpen int64
	// Estimate is the number of units where a request gives none, 0 where it is learned; without MaxUnits too a request must give units.
	Estimate int64
	// TTL is the time until the deadline where a request gives none, 1 ms to MaxTTL. MaxTTL is at most 24 hours.
	TTL, MaxTTL time.Duration
	OnExpiry    OnExpiry
}

// Bounds of reservations.
const (
	mostOpen = 200_000
	leastTTL = time.Millisecond
	mostTTL  = day
)

// DefaultReservation is that of rules without reservation, and of checks with limits of their own. It is the same for all
// limits, since Most applies their capacity.
func DefaultReservation(*bucket.Limits) Reservation {
	return Reservation{MaxOpen: 100_000, TTL: time.Minute, MaxTTL: 10 * time.Minute}
}

// Most returns the most units of one reservation under limits: MaxUnits, or the smallest capacity of the limits, in units of a
// check's cost, if that is less. limits is nil for unlimited rules.
func (r *Reservation) Most(limits *bucket.Limits) int64 {
	most := cmp.Or(r.MaxUnits, math.MaxInt64)
	if limits == nil {
		return most
	}
	for i := range limits.Len() {
		if l := limits.At(i); !l.Unlimited {
			most = min(most, capacity(l)/max(1, l.Cost))
		}
	}
	return most
}

// readReservation reads the key reservation of d.
func (p *parser) readReservation(d *descriptor, at yamldoc.Field) {
	r := &d.rule.Reservation
	before := p.Count()
	given := p.read(at.Value, at.Path, inReservation, keys{
		"max_units": number(p, &r.MaxUnits, 1, math.MaxInt64),
		"max_open":  number(p, &r.MaxOpen, 1, mostOpen),
		"ttl":       p.duration(&r.TTL, leastTTL),
		"max_ttl":   p.duration(&r.MaxTTL, leastTTL),
		"on_expiry": enum(p, &r.OnExpiry, onExpiries),
		"estimate":  number(p, &r.Estimate, 1, math.MaxInt64),
	})
	d.estimate = given["estimate"]
	if p.Count() > before {
		return
	}
	slots := slices.ContainsFunc(d.limits, func(l limit) bool { return l.Algorithm == bucket.Concurrency })
	if f, ok := given["on_expiry"]; ok && slots && r.OnExpiry == ExpiryCharge {
		p.reject(f, "charge is not for concurrency, whose units are free again at the deadline; leave it out")
	}
	ttl, hasTTL := given["ttl"]
	maxTTL, hasMax := given["max_ttl"]
	switch {
	case hasMax && r.MaxTTL > mostTTL:
		p.reject(maxTTL, "must be from 1ms to 24h, not %s", maxTTL.Value.Value)
	case !hasMax && r.TTL > mostTTL:
		p.reject(ttl, "must be from 1ms to 24h, not %s", ttl.Value.Value)
	case !hasMax:
		r.MaxTTL = max(r.MaxTTL, r.TTL)
	case !hasTTL:
		r.TTL = min(r.TTL, r.MaxTTL)
	case r.TTL > r.MaxTTL:
		p.reject(ttl, "must be from 1ms to max_ttl, %s, not %s", maxTTL.Value.Value, ttl.Value.Value)
	}
}

// checkReservation rejects a reservation whose units the limits can never set aside.
func (p *parser) checkReservation(d *descriptor) {
	if _, given := d.fields["reservation"]; !given || p.Count() > d.errors {
		return
	}
	limits := d.rule.Limits
	if limits != nil {
		if i, why := limits.Reservable(); i >= 0 {
			p.Errorf(d.limits[i].node, d.limits[i].path, "does not go with reservation: %s", why)
			return
		}
	}
	if r := &d.rule.Reservation; r.Estimate > r.Most(limits) {
		p.reject(d.estimate, "must be from 1 to %d, the most units of one reservation, not %d", r.Most(limits), r.Estimate)
	}
}
