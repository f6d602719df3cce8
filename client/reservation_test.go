package sluice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// ledger has the reservations of fake nodes. The zero ledger is empty.
type ledger struct {
	sync.Mutex
	byID map[string]*reserved
	last *sluicev1.ReserveRequest
	// before and after are called before and after a call takes effect; their error is its answer.
	before, after func(node *fakeNode) error
	calls         int
}

type reserved struct {
	units, spent int64
	settled      *sluicev1.SettleResponse
}

// ledgerCall makes a call at n, which gets the reservation id, nil if there is none.
func ledgerCall[R any](n *fakeNode, id string, f func(l *ledger, r *reserved) *R) (*R, error) {
	l := &n.cluster.ledger
	l.Lock()
	defer l.Unlock()
	l.calls++
	if l.before != nil {
		if err := l.before(n); err != nil {
			return nil, err
		}
	}
	res := f(l, l.byID[id])
	if res == nil {
		st, _ := status.New(codes.NotFound, "gone").WithDetails(&sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_NOT_FOUND, Field: "reservation", Message: "gone"})
		return nil, st.Err()
	}
	if l.after != nil {
		if err := l.after(n); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// most is how many units may be reserved at once.
const most = 1000

func (n *fakeNode) Reserve(_ context.Context, req *sluicev1.ReserveRequest) (*sluicev1.ReserveResponse, error) {
	return ledgerCall(n, "", func(l *ledger, _ *reserved) *sluicev1.ReserveResponse {
		l.last = req
		d := &sluicev1.Decision{Verdict: sluicev1.Verdict_VERDICT_DENIED, RetryAfterNs: new(int64(time.Second)), Rule: "shop/user"}
		if req.GetUnits() > most {
			return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{d}, RetryAfterNs: d.RetryAfterNs}
		}
		switch req.Checks[0].GetDomain() {
		case "full":
			return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{full()}}
		case "other":
			return &sluicev1.ReserveResponse{Allowed: true, Decisions: []*sluicev1.Decision{unmatched()}}
		case "guests":
			d.Error = &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN, Field: "checks[0].domain"}
			return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{d}}
		}
		id := "id of " + req.GetIdempotencyKey()
		if l.byID == nil {
			l.byID = map[string]*reserved{}
		}
		if l.byID[id] == nil {
			l.byID[id] = &reserved{units: req.GetUnits()}
		}
		res := &sluicev1.ReserveResponse{Allowed: true, Reservation: id, Units: req.GetUnits(), ExpiresAfterNs: int64(time.Minute)}
		for range req.Checks {
			res.Decisions = append(res.Decisions, &sluicev1.Decision{Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Owner: n.name})
		}
		return res
	})
}

func (n *fakeNode) Spend(_ context.Context, req *sluicev1.SpendRequest) (*sluicev1.SpendResponse, error) {
	return ledgerCall(n, req.GetReservation(), func(_ *ledger, r *reserved) *sluicev1.SpendResponse {
		switch {
		case r == nil:
			return nil
		case req.GetUnits() > r.units-r.spent:
			return &sluicev1.SpendResponse{Left: r.units - r.spent}
		}
		r.spent += req.GetUnits()
		return &sluicev1.SpendResponse{Allowed: true, Left: r.units - r.spent}
	})
}

func (n *fakeNode) Extend(_ context.Context, req *sluicev1.ExtendRequest) (*sluicev1.ExtendResponse, error) {
	return ledgerCall(n, req.GetReservation(), func(_ *ledger, r *reserved) *sluicev1.ExtendResponse {
		switch {
		case r == nil:
			return nil
		case r.units+req.GetMore() > most:
			return &sluicev1.ExtendResponse{Units: r.units - r.spent, ExpiresAfterNs: int64(time.Minute), RetryAfterNs: new(int64(time.Second))}
		}
		r.units += req.GetMore()
		return &sluicev1.ExtendResponse{Allowed: true, Units: r.units - r.spent, ExpiresAfterNs: max(int64(time.Minute), req.GetTtlNs())}
	})
}

func (n *fakeNode) Settle(_ context.Context, req *sluicev1.SettleRequest) (*sluicev1.SettleResponse, error) {
	return ledgerCall(n, req.GetReservation(), func(_ *ledger, r *reserved) *sluicev1.SettleResponse {
		switch {
		case r == nil:
			return nil
		case r.settled != nil:
			return &sluicev1.SettleResponse{Charged: r.settled.Charged, Repeated: true}
		}
		r.settled = &sluicev1.SettleResponse{Charged: req.GetActual(), Returned: max(0, r.units-r.spent-req.GetActual())}
		return r.settled
	})
}

// reserve reserves 100 units of two keys.
func reserve(t *testing.T, c *Client) *Reservation {
	t.Helper()
	r, err := c.Reserve(t.Context(), ReserveRequest{Keys: []Key{c.Key("shop", "user", "ann"), c.Key("shop", "team", "red")}, Units: 100, Least: 10, TTL: time.Minute})
	do(t, err)
	return r
}

func TestReservation(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		c, ctx := f.dial(), t.Context()
		r := reserve(t, c)
		q := f.ledger.last
		if !r.Allowed || r.Units != 100 || r.ExpiresAfter != time.Minute || len(r.Decisions) != 2 || r.Decisions[0].Owner != "n1" || r.ID != "id of "+q.IdempotencyKey {
			t.Errorf("%+v", r)
		}
		if len(q.Checks) != 2 || q.Checks[1].Descriptor_[0].Key != "team" || q.Checks[0].Cost != nil || q.Checks[0].Verb != 0 || *q.Units != 100 || *q.Least != 10 || q.TtlNs != int64(time.Minute) || len(q.IdempotencyKey) < 20 {
			t.Errorf("sent %v", q)
		}
		if s, err := r.Spend(ctx, 30); err != nil || s != (Spent{true, 70}) {
			t.Errorf("%+v %v", s, err)
		}
		if s, err := r.Spend(ctx, 71); err != nil || s != (Spent{false, 70}) {
			t.Errorf("%+v %v", s, err)
		}
		if x, err := r.Extend(ctx, 50, time.Hour); err != nil || x != (Extended{Allowed: true, Units: 120, ExpiresAfter: time.Hour}) {
			t.Errorf("%+v %v", x, err)
		}
		if x, err := r.Extend(ctx, most, 0); err != nil || x != (Extended{Units: 120, ExpiresAfter: time.Minute, RetryAfter: time.Second}) {
			t.Errorf("%+v %v", x, err)
		}
		if s, err := r.Settle(ctx, 20); err != nil || s != (Settlement{Charged: 20, Returned: 100}) {
			t.Errorf("%+v %v", s, err)
		}
		if s, err := c.Settle(ctx, r.ID, 1); err != nil || s != (Settlement{Charged: 20, Repeated: true}) {
			t.Errorf("%+v %v", s, err)
		}
		if _, err := c.Settle(ctx, "x", 1); !errors.Is(err, limit.ErrNotFound) || err.Error() != "sluice: reservation: gone" {
			t.Errorf("%v", err)
		}
		key := c.Key("shop", "user", "ann")
		if _, err := c.Reserve(ctx, ReserveRequest{Keys: []Key{key}, IdempotencyKey: "mine"}); err != nil || f.ledger.last.IdempotencyKey != "mine" || f.ledger.last.Units != nil {
			t.Errorf("%v %v", err, f.ledger.last)
		}
		r, err := c.Reserve(ctx, ReserveRequest{Keys: []Key{key}, Units: most + 1})
		denied, ok := errors.AsType[*DeniedError](err)
		if !ok || r != nil || !errors.Is(err, ErrDenied) || errors.Is(err, ErrNever) || err.Error() != "sluice: the rate limit denies this: rule shop/user; retry in 1s" {
			t.Fatalf("%+v %v", r, err)
		}
		if wait, known := denied.RetryIn(); wait != time.Second || !known || denied.Allowed || len(denied.Decisions) != 1 {
			t.Errorf("%+v", denied)
		}
		for name, r := range map[string]*Reservation{"nil": nil, "zero": {}} {
			_, spend := r.Spend(ctx, 1)
			_, extend := r.Extend(ctx, 1, 0)
			_, settle := r.Settle(ctx, 1)
			for _, err := range []error{spend, extend, settle} {
				if err == nil || err.Error() != "sluice: reservation: nothing is held; see the error of Reserve, Hold or Acquire" {
					t.Error(name, err)
				}
			}
		}
		for name, want := range map[string]struct {
			key Key
			err error
		}{
			"invalid":   {c.Key("", "user", "ann"), ErrInvalid},
			"not UTF-8": {c.Key("shop\xff", "user", "ann"), ErrInvalid},
			"forbidden": {c.Key("guests", "user", "ann"), ErrForbidden},
		} {
			if r, err := c.Reserve(ctx, ReserveRequest{Keys: []Key{want.key}}); !errors.Is(err, want.err) || r != nil {
				t.Errorf("%s: %+v %v", name, r, err)
			}
		}
		c.Close()
		_, reserve := c.Reserve(ctx, ReserveRequest{})
		_, settle := c.Settle(ctx, "x", 1)
		if reserve != ErrClosed || settle != ErrClosed {
			t.Error(reserve, settle)
		}
	})
}

// TestTrap10LostAnswers: after a lost answer, another node is asked to reserve and to settle, which counts once; units are not
// spent or added again.
func TestTrap10LostAnswers(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		c, ctx := f.dial(), t.Context()
		lose := func(after bool, err error) (calls func() int) {
			f.ledger.Lock()
			defer f.ledger.Unlock()
			lost := false
			once := func(*fakeNode) error {
				if lost {
					return nil
				}
				lost = true
				return err
			}
			f.ledger.calls, f.ledger.before, f.ledger.after = 0, once, nil
			if after {
				f.ledger.before, f.ledger.after = nil, once
			}
			return func() int { f.ledger.Lock(); defer f.ledger.Unlock(); return f.ledger.calls }
		}
		gone := status.Error(codes.Unavailable, "connection reset")
		calls := lose(true, gone)
		r := reserve(t, c)
		if calls() != 2 || len(f.ledger.byID) != 1 {
			t.Errorf("%d calls have made %d reservations", calls(), len(f.ledger.byID))
		}
		calls = lose(true, gone)
		if _, err := r.Spend(ctx, 10); !errors.Is(err, ErrUnavailable) || !strings.HasSuffix(err.Error(), "it may have been done") || calls() != 1 {
			t.Errorf("%v after %d calls", err, calls())
		}
		calls = lose(true, gone)
		if _, err := r.Extend(ctx, 1, 0); !errors.Is(err, ErrUnavailable) || calls() != 1 {
			t.Errorf("%v after %d calls", err, calls())
		}
		calls = lose(true, gone)
		if x, err := r.Extend(ctx, 0, time.Hour); err != nil || x.Units != 91 || calls() != 2 {
			t.Errorf("%+v %v after %d calls", x, err, calls())
		}
		busy, _ := status.New(codes.Unavailable, "busy").WithDetails(&sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_OVERLOADED})
		calls = lose(false, busy.Err())
		if s, err := r.Spend(ctx, 1); err != nil || s.Left != 90 || calls() != 2 {
			t.Errorf("%+v %v after %d calls", s, err, calls())
		}
		calls = lose(true, gone)
		if s, err := r.Settle(ctx, 5); err != nil || s != (Settlement{Charged: 5, Repeated: true}) || calls() != 2 {
			t.Errorf("%+v %v after %d calls", s, err, calls())
		}
		calls = lose(false, status.Error(codes.Unimplemented, "unknown method Settle"))
		if _, err := r.Settle(ctx, 5); !errors.Is(err, limit.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "v0.1.0 or later") || calls() != 1 {
			t.Errorf("%v after %d calls", err, calls())
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := r.Settle(ended, 5); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
