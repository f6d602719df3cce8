//go:build linux

package faults

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// worker is a caller that does one thing after the other, each call by way of the next node.
type worker struct {
	*ledger
	number uint64
	next   int
	rng    *rand.Rand
}

// client is that of a node's API, and call a call of it.
type client = sluicev1.RateLimitServiceClient

type call func(ctx context.Context, api client) error

// errNoDecision says that a node has answered without one.
var errNoDecision = status.Error(codes.Unavailable, "no decision")

// answered reports whether a call's error is an answer.
func answered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	}
	return true
}

// once calls the next node.
func (w *worker) once(f call) error {
	w.next++
	ctx, cancel := context.WithTimeout(w.late, 2*time.Second)
	defer cancel()
	return f(ctx, w.targets[w.next%len(w.targets)].api)
}

// asked is the node that was called last, and the time as logs of nodes have it.
func (w *worker) asked() string {
	now := time.Now().UTC().Format(clock)
	return fmt.Sprintf("by way of %s at %s", w.targets[w.next%len(w.targets)].Name, now)
}

// forever is the times of a call that must be answered.
const forever = math.MaxInt

// try calls nodes in turn until one answers, so many times at most. It returns how many calls had
// no answer, and the last one's error.
func (w *worker) try(times int, f call) (failed int, err error) {
	for err = errNoDecision; !answered(err) && failed < times && w.late.Err() == nil; {
		if err = w.once(f); !answered(err) {
			failed++
			w.c.wait(20 * time.Millisecond)
		}
	}
	return failed, err
}

// each calls every node once.
func (w *worker) each(f call) {
	for range w.targets {
		_ = w.once(f) // one that does not answer, or that is not there, has nothing to add
	}
}

// pause is between two steps.
func (w *worker) pause(most time.Duration) {
	w.c.wait(time.Duration(w.rng.Int64N(int64(most))))
}

func (w *worker) name() string { return fmt.Sprintf("%d-%d", w.number, w.rng.Uint64()) }

// charges charges keys once with each idempotency key, at every node, and again after the fault.
func (w *worker) charges(books []*book) {
	var again []func()
	for w.ctx.Err() == nil {
		b, cost := books[w.rng.IntN(len(books))], 1+w.rng.Int64N(maxUnits)
		q := b.check()
		q.Verb, q.Cost = sluicev1.Verb_VERB_CHARGE, &cost
		request := &sluicev1.CheckRequest{Checks: []*sluicev1.Check{q}, IdempotencyKey: w.name()}
		charge := func(ctx context.Context, api client) error {
			r, err := api.Check(ctx, request)
			if err == nil && r.Decisions[0].Error != nil {
				return errNoDecision
			}
			return err
		}
		done := false
		attempt := func(times int) {
			if _, err := w.try(times, charge); err == nil && !done {
				done = true
				b.note(time.Now(), cost, "charged "+w.asked(), func() { b.used += cost })
			} else if err != nil && answered(err) {
				w.c.t.Errorf("%s: charge: %v", b.name(), err)
			}
		}
		attempt(3)
		w.each(charge)
		w.read(b)
		again = append(again, func() { attempt(forever) })
		w.pause(200 * time.Millisecond)
	}
	for _, f := range again {
		f()
	}
}

// read asks for what is left, and compares it with what was charged before.
func (w *worker) read(b *book) {
	b.mu.Lock()
	used := b.used
	b.mu.Unlock()
	var counted int64
	err := w.once(func(ctx context.Context, api client) (err error) {
		counted, err = b.read(ctx, api)
		return err
	})
	if err != nil || counted >= used {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if behind := used - counted; behind > b.behind {
		b.behind = behind
		w.c.t.Logf("%s %s: of %d units charged, %d are counted %s", b.name(), b.value, used, counted, w.asked())
	}
}

// reservations reserves, spends, extends and settles.
func (w *worker) reservations(books []*book) {
	for w.ctx.Err() == nil {
		w.reservation(books[w.rng.IntN(len(books))])
		w.pause(200 * time.Millisecond)
	}
}

// reserved is a reservation as its caller knows it.
type reserved struct {
	*book
	id    string
	units int64     // reserved, and spent
	spent int64     // of them
	sure  time.Time // until when they are held for sure
	made  string
}

// tag is enough of the ID for a log.
func (r *reserved) tag() string { return r.id[len(r.id)-6:] }

// reservation is one from its beginning to its end.
func (w *worker) reservation(b *book) {
	units := 1 + w.rng.Int64N(maxUnits)
	request := &sluicev1.ReserveRequest{
		Checks: []*sluicev1.Check{b.check()}, Units: &units, TtlNs: int64(reservationTTL),
		IdempotencyKey: w.name(),
	}
	var res *sluicev1.ReserveResponse
	var asked time.Time
	reserve := func(ctx context.Context, api client) (err error) {
		asked = time.Now()
		if res, err = api.Reserve(ctx, request); err != nil {
			return err
		}
		if d := res.Decisions[0]; d.Error != nil || !byOwner(d) {
			return errNoDecision
		}
		return nil
	}
	failed, err := w.try(4, reserve)
	now := time.Now()
	b.mu.Lock()
	b.last = now.Add(reservationTTL)
	b.mu.Unlock()
	switch {
	case err != nil && answered(err):
		w.c.t.Errorf("%s: reserve: %v", b.name(), err)
		return
	case err != nil || !res.Allowed:
		if failed > 0 && b.use == useCharge { // an attempt may have the units, until its deadline
			b.note(now, units, "not reserved "+w.asked(), func() { b.unsure += units })
		}
		return
	}
	r := &reserved{b, res.Reservation, units, 0, asked.Add(time.Duration(res.ExpiresAfterNs)), ""}
	r.made = fmt.Sprintf("%s %s: %s reserved %s of %s, after %d calls without an answer, units",
		b.name(), b.value, r.tag(), w.asked(), res.Decisions[0].Owner, failed)
	b.note(now, units, r.made, func() { b.hold(now, units) })
	w.pause(700 * time.Millisecond)
	switch w.rng.IntN(8) {
	case 0, 1:
		if b.use != useUnits { // they would be free
			w.spend(r)
		}
		w.pause(300 * time.Millisecond)
		w.extend(r)
		w.pause(700 * time.Millisecond)
	case 2:
		w.forget(r)
		return
	case 3:
		w.c.wait(time.Until(r.sure) + 100*time.Millisecond) // late
	}
	rest := max(0, r.units-r.spent)
	actual := w.rng.Int64N(rest + 1)
	if w.rng.IntN(8) == 0 {
		actual = rest + 2
	}
	w.settle(r, actual)
}

// spend spends a unit at each node. The call cannot be repeated.
//
// A node repeats it if an owner does not answer. The reservation may end meanwhile, and the next
// owner says so. Then the first one may have spent the unit, and nobody knows.
func (w *worker) spend(r *reserved) {
	for range w.targets {
		var res *sluicev1.SpendResponse
		began := time.Now()
		err := w.once(func(ctx context.Context, api client) (err error) {
			res, err = api.Spend(ctx, &sluicev1.SpendRequest{Reservation: r.id, Units: 1})
			return err
		})
		switch {
		case err == nil && res.Allowed:
			r.spent++
			r.note(time.Now(), 1, r.tag()+" spent "+w.asked(), func() {
				if r.used++; r.spent > r.units { // the call follows no Extend
					r.overspent++
				}
			})
		case !answered(err), status.Code(err) == codes.NotFound && began.Before(r.sure) && time.Now().After(r.sure):
			// A settlement may then charge more than is left.
			what := fmt.Sprintf("%s spent without an answer in %v: %v", r.tag(), time.Since(began), status.Code(err))
			r.note(time.Now(), 1, what, func() { r.unsure, r.over = r.unsure+1, r.over+1 })
		default:
			r.note(time.Now(), 0, fmt.Sprintf("%s not spent %s: %v, %v", r.tag(), w.asked(), res, err), func() {})
		}
	}
}

// extend adds units and time. The call cannot be repeated.
func (w *worker) extend(r *reserved) {
	var res *sluicev1.ExtendResponse
	more, asked := 1+w.rng.Int64N(maxUnits), time.Now()
	err := w.once(func(ctx context.Context, api client) (err error) {
		res, err = api.Extend(ctx, &sluicev1.ExtendRequest{
			Reservation: r.id, More: more, TtlNs: int64(reservationTTL),
		})
		return err
	})
	now := time.Now()
	r.mu.Lock()
	r.last = now.Add(reservationTTL)
	r.mu.Unlock()
	if err == nil && res.Allowed {
		r.units, r.sure = r.units+more, asked.Add(time.Duration(res.ExpiresAfterNs))
		r.note(now, more, r.tag()+" extended "+w.asked(), func() { r.hold(now, more) })
	}
}

// forget leaves a reservation to its deadline.
func (w *worker) forget(r *reserved) {
	r.note(time.Now(), r.units, r.tag()+" left to its deadline", func() {
		if r.use == useCharge {
			r.used += r.units - r.spent
			return
		}
		r.hold(r.sure, r.spent-r.units)
	})
}

// settle settles at the next nodes until one answers, and then at every node. A reservation that is
// not found is looked for again after the fault.
func (w *worker) settle(r *reserved, actual int64) {
	ended := time.Now()
	if ended.After(r.sure) {
		ended = r.sure
	}
	var first, res *sluicev1.SettleResponse
	made := 0
	settle := func(ctx context.Context, api client) (err error) {
		request := &sluicev1.SettleRequest{Reservation: r.id, Actual: actual}
		if res, err = api.Settle(ctx, request); err != nil {
			return err
		}
		if !res.Repeated && r.use != useUnits {
			if made++; made > 1 {
				r.note(time.Now(), r.units, r.tag()+" settled again", func() { r.again += res.Charged })
			}
		}
		if first == nil {
			first = res
		} else if first.Charged != res.Charged {
			w.c.t.Logf("%s; %d charged by the settlement, %d %s", r.made, first.Charged, res.Charged, w.asked())
		}
		return nil
	}
	_, err := w.try(forever, settle)
	if status.Code(err) == codes.NotFound {
		w.c.t.Logf("%s; not found %s", r.made, w.asked())
		r.note(time.Now(), r.units, r.tag()+" not found", func() { r.gone += r.units })
		<-w.ctx.Done()
		_, err = w.try(forever, settle)
		w.c.t.Logf("%s; settled after the fault %s: %v, %v", r.made, w.asked(), res, err)
	}
	switch {
	case status.Code(err) == codes.NotFound:
		first = &sluicev1.SettleResponse{}
	case err != nil:
		w.c.failed("%s; cannot be settled: %v", r.made, err)
		return
	}
	what := fmt.Sprintf("%s settled %s: %v of", r.tag(), w.asked(), first)
	r.note(time.Now(), r.units, what, func() {
		charged, over := first.Charged, first.Charged-(r.units-r.spent)
		switch {
		case r.use == useUnits:
			charged, over = 0, 0
		case first.Late && r.use == useRelease:
			over = charged // its units were free again
		}
		r.used += charged
		r.over += max(0, over)
		r.hold(ended, r.spent+charged-r.units)
	})
	w.each(settle)
}
