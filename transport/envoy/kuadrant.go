package envoy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
)

// CheckRateLimit decides as ShouldRateLimit does, and charges nothing.
func (a *API) CheckRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return a.decide(ctx, req, reads)
}

// reads is the hitsOf of CheckRateLimit. A refund of 0 changes nothing and is never over the limit.
func reads(req *ratelimitv3.RateLimitRequest, i int) (bucket.Verb, int64) {
	verb, cost := spends(req, i)
	if verb == bucket.Refund {
		return verb, 0
	}
	return bucket.Read, cost
}

// Report charges the hits whatever the limits say. An error is about all descriptors; one of several that could not be charged
// has the code UNKNOWN.
func (a *API) Report(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return a.report(ctx, req, "")
}

// charges is the hitsOf of Report.
func charges(req *ratelimitv3.RateLimitRequest, i int) (bucket.Verb, int64) {
	verb, cost := spends(req, i)
	if verb != bucket.Refund {
		verb = bucket.Charge
	}
	return verb, cost
}

// report is Report, made once if key is not "".
func (a *API) report(ctx context.Context, req *ratelimitv3.RateLimitRequest, key string) (*ratelimitv3.RateLimitResponse, error) {
	b, err := a.enter(ctx, req, charges)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	b.IdempotencyKey = key
	if err := addAll(b, req, charges); err != nil {
		return nil, err
	}
	err = a.config.Limiter.Check(ctx, b)
	if err := uncharged(b, err); err != nil {
		return nil, err
	}
	return a.answer(b, req, false), nil
}

// addAll adds the checks of all descriptors, or returns an error about the first invalid one.
func addAll(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, hits hitsOf) error {
	for i := range req.GetDescriptors() {
		if c := add(b, req, i, hits); c.Err != nil {
			return errorAt(c.Err, i)
		}
	}
	return nil
}

// uncharged returns the first error of b if no descriptor with a limit was charged.
func uncharged(b *limiter.Batch, err error) error {
	err = failure(b, err)
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case r.Err != nil:
			err = cmp.Or(err, errorAt(r.Err, i))
		case r.Limits != nil:
			return nil
		}
	}
	return err
}

// reserve sets the amount aside in the counters of all descriptors, or in none.
func (a *API) reserve(ctx context.Context, m message) (message, error) {
	res := newMessage("ReserveResponse")
	req, r, e := readReserve(m)
	if e != nil {
		return res, errorOf(e, e.Field)
	}
	b, err := a.enter(ctx, req, spends)
	if err != nil {
		return res, err
	}
	defer b.Release()
	for i := range req.GetDescriptors() {
		add(b, req, i, spends).Drain = false
	}
	got, err := a.config.Limiter.Reserve(ctx, b, r)
	if e, ok := errors.AsType[*limiter.Error](err); ok && e.Code == limiter.Invalid {
		return res, errorOf(e, "domain") // the other fields are valid
	}
	if err := cmp.Or(failure(b, err), unsuited(b)); err != nil {
		return res, err
	}
	settleUndecided(b, req, spends)
	code := ratelimitv3.RateLimitResponse_OVER_LIMIT
	if !exceeded(b) {
		code = ratelimitv3.RateLimitResponse_OK
		res.set("reservation_id", got.ID)
	}
	res.set("code", code.Number())
	return res, nil
}

// readReserve returns the descriptors of a ReserveRequest, and its other fields, or the first invalid one.
func readReserve(m message) (*ratelimitv3.RateLimitRequest, limiter.ReserveRequest, *limiter.Error) {
	var r limiter.ReserveRequest
	req, units, e := m.request("amount")
	if e == nil && units == 0 {
		e = invalid("amount", "0; want at least 1")
	}
	if r.Units = units; e == nil && m.Has(m.field("ttl")) {
		r.TTL, e = m.ttl()
	}
	if e == nil {
		e = countError("descriptors", len(req.GetDescriptors()), limiter.MaxBudgets)
	}
	return req, r, e
}

// unsuited returns the error of a reservation that a rule does not allow. An amount above what it allows is over the limit
// instead, since clients may choose it, and an error might let the request pass.
func unsuited(b *limiter.Batch) error {
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err == nil || r.Err.Code != limiter.Invalid || r.Limits == nil {
			continue
		}
		switch r.Err.Field {
		case "units":
			r.Err, r.Allowed, r.Source = nil, false, check.Closed
		case "ttl":
			return errorOf(r.Err, "ttl")
		default: // descriptor: units of its limits cannot be reserved
			return errorOf(r.Err, fmt.Sprintf("descriptors[%d]", i))
		}
	}
	return nil
}

// commit charges the actual amount, and releases the reservation if it is open. If it is not known, the descriptors are charged
// as by Report.
func (a *API) commit(ctx context.Context, m message) (message, error) {
	res := newMessage("CommitResponse")
	req, actual, e := m.request("actual_amount")
	if e != nil {
		return res, errorOf(e, e.Field)
	}
	id, key := m.get("reservation_id").String(), ""
	if id != "" {
		s, err := a.settle(ctx, req, id, actual)
		e, _ := errors.AsType[*limiter.Error](err)
		switch {
		case err == nil:
			res.set("reservation_released", !s.Late && !s.Repeated)
			return res, nil
		case e == nil:
			return res, err
		case e.Code == limiter.NotFound: // a repeated commit charges once
			key = fmt.Sprintf("%x", sha256.Sum256([]byte(id)))
		case e.Code != limiter.Invalid:
			return res, errorOf(e, "")
		}
	}
	_, err := a.report(ctx, req, key)
	return res, err
}

// settle settles a reservation that the caller may use. An *limiter.Error is the limiter's, or that of MayUse.
func (a *API) settle(ctx context.Context, req *ratelimitv3.RateLimitRequest, id string, actual int64) (limiter.Settlement, error) {
	pass, rejected := a.config.Guard.Call(ctx, limiter.EnvoyAPI)
	if rejected == nil {
		rejected = fault(req)
	}
	if rejected == nil {
		rejected = pass.May(access.Check, req.GetDomain())
	}
	if rejected != nil {
		return limiter.Settlement{}, errorOf(rejected, rejected.Field)
	}
	if err := pass.MayUse(a.config.Limiter.ReservationDomains, id); err != nil {
		return limiter.Settlement{}, err
	}
	return a.config.Limiter.Settle(ctx, id, actual)
}
