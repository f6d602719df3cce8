package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/access"
)

// Reserve implements sluicev1.RateLimitServiceServer.
func (s *Server) Reserve(ctx context.Context, req *sluicev1.ReserveRequest) (*sluicev1.ReserveResponse, error) {
	pass, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	b := limiter.NewBatch()
	defer b.Release()
	r, fault := readReserve(req, b)
	if fault != nil {
		return nil, statusOf(fault)
	}
	s.label(ctx, b)
	if rejected := pass.Restrict(b); rejected != nil {
		return nil, statusOf(rejected)
	}
	if timeout := time.Duration(req.GetTimeoutNs()); timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	reservation, err := s.config.Limiter.Reserve(ctx, b, r)
	if err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.ReserveResponse{
		Reservation: reservation.ID, Units: reservation.Units, ExpiresAfterNs: int64(reservation.ExpiresAfter),
		Decisions: make([]*sluicev1.Decision, len(b.Results)),
	}
	room := limiter.MaxResponses
	for i := range b.Results {
		res.Decisions[i] = decisionToProto(&b.Results[i], i, &room)
	}
	allowed, wait, known := limiter.Overall(b.Results)
	if res.Allowed = allowed; known {
		res.RetryAfterNs = new(int64(wait))
	}
	return res, nil
}

// readReserve fills b, or returns the first invalid field.
func readReserve(req *sluicev1.ReserveRequest, b *limiter.Batch) (limiter.ReserveRequest, *limiter.Error) {
	r := limiter.ReserveRequest{
		Units: req.GetUnits(), Least: req.GetLeast(), TTL: time.Duration(req.GetTtlNs()), Hold: req.GetHold(), Wait: time.Duration(req.GetWaitNs()),
	}
	if req.GetTimeoutNs() < 0 {
		return r, errTimeout
	}
	b.IdempotencyKey = req.GetIdempotencyKey()
	for i, p := range req.GetChecks()[:min(len(req.GetChecks()), limiter.MaxBudgets+1)] {
		field := ""
		switch {
		case p.Cost != nil:
			field = "cost"
		case p.GetVerb() != sluicev1.Verb_VERB_CHECK:
			field = "verb"
		}
		if field != "" {
			return r, &limiter.Error{Code: limiter.Invalid, Field: fmt.Sprintf("checks[%d].%s", i, field), Message: "is set; units says how many to reserve of each check"}
		}
		c := b.Add()
		c.Domain, c.Descriptor = p.GetDomain(), appendEntries(c.Descriptor, p.GetDescriptor_())
		for j, l := range p.GetLimits()[:min(len(p.GetLimits()), bucket.MaxLimits+1)] {
			addLimit(c, j, l)
		}
	}
	return r, nil
}

// appendEntries appends a descriptor. One entry too many is enough for it to be rejected.
func appendEntries(out []rules.Entry, list []*sluicev1.Entry) []rules.Entry {
	for _, e := range list[:min(len(list), limiter.MaxEntries+1)] {
		out = append(out, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	return out
}

// decisionToProto is r, the result of check i, as a message. room is the number of bytes left for responses.
func decisionToProto(r *limiter.Result, i int, room *int) *sluicev1.Decision {
	d := new(sluicev1.Decision)
	_ = proto.Unmarshal(appendDecision(nil, r, i, room), d) // it is what a client reads
	return d
}

// lease gives units of the only check of q, after it has taken back those of an earlier lease.
func (s *Server) lease(ctx context.Context, q *question, pass *access.Pass) (limiter.Reservation, error) {
	r := q.lease
	if id := r.GetEnded(); id != "" {
		if err := pass.MayUse(s.config.Limiter.ReservationDomains, id); err != nil {
			return limiter.Reservation{}, err
		}
		if _, err := s.config.Limiter.Settle(ctx, id, r.GetActual()); err != nil {
			if e, ok := errors.AsType[*limiter.Error](err); !ok || e.Code != limiter.NotFound {
				return limiter.Reservation{}, err
			}
		}
	}
	if r.GetUnits() == 0 {
		for i := range q.batch.Checks {
			q.batch.Checks[i].Verb = bucket.Read
		}
		return limiter.Reservation{}, s.config.Limiter.Check(ctx, q.batch)
	}
	return s.config.Limiter.Reserve(ctx, q.batch, limiter.ReserveRequest{Units: r.GetUnits(), TTL: time.Duration(r.GetTtlNs()), Lease: true})
}

// use admits a call about a reservation.
func (s *Server) use(ctx context.Context, id string) error {
	pass, err := s.enter(ctx)
	if err != nil {
		return err
	}
	if err := pass.MayUse(s.config.Limiter.ReservationDomains, id); err != nil {
		return statusOf(err)
	}
	return nil
}

// Spend implements sluicev1.RateLimitServiceServer.
func (s *Server) Spend(ctx context.Context, req *sluicev1.SpendRequest) (*sluicev1.SpendResponse, error) {
	if err := s.use(ctx, req.GetReservation()); err != nil {
		return nil, err
	}
	x, err := s.config.Limiter.Spend(ctx, req.GetReservation(), req.GetUnits())
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.SpendResponse{Allowed: x.Allowed, Left: x.Left}, nil
}

// Extend implements sluicev1.RateLimitServiceServer.
func (s *Server) Extend(ctx context.Context, req *sluicev1.ExtendRequest) (*sluicev1.ExtendResponse, error) {
	if err := s.use(ctx, req.GetReservation()); err != nil {
		return nil, err
	}
	x, err := s.config.Limiter.Extend(ctx, req.GetReservation(), req.GetMore(), time.Duration(req.GetTtlNs()))
	if err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.ExtendResponse{Allowed: x.Allowed, Units: x.Units, ExpiresAfterNs: int64(x.ExpiresAfter)}
	if wait := x.RetryAfter; !x.Allowed && wait > 0 && wait != bucket.Never {
		res.RetryAfterNs = new(int64(wait))
	}
	return res, nil
}

// Settle implements sluicev1.RateLimitServiceServer.
func (s *Server) Settle(ctx context.Context, req *sluicev1.SettleRequest) (*sluicev1.SettleResponse, error) {
	if err := s.use(ctx, req.GetReservation()); err != nil {
		return nil, err
	}
	x, err := s.config.Limiter.Settle(ctx, req.GetReservation(), req.GetActual())
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.SettleResponse{Charged: x.Charged, Returned: x.Returned, Late: x.Late, Repeated: x.Repeated}, nil
}

// Held implements sluicev1.RateLimitServiceServer.
func (s *Server) Held(ctx context.Context, req *sluicev1.HeldRequest) (*sluicev1.HeldResponse, error) {
	if _, err := s.authorize(ctx, access.Read, req.GetDomain()); err != nil {
		return nil, err
	}
	list, count, units, err := s.config.Limiter.Held(ctx, &limiter.Check{Domain: req.GetDomain(), Descriptor: appendEntries(nil, req.GetDescriptor_())})
	if err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.HeldResponse{Count: int64(count), Units: units, Holdings: make([]*sluicev1.Holding, len(list))}
	for i, h := range list {
		res.Holdings[i] = &sluicev1.Holding{
			Id: strconv.FormatUint(h.ID, 16), Use: h.Use, Caller: h.Caller, Units: h.Units, SinceNs: int64(h.Since), ExpiresAfterNs: int64(h.ExpiresAfter),
		}
	}
	return res, nil
}
