package bucket_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// waitWhenFull is how long a check of cost waits under limits that have just been spent completely.
func waitWhenFull(t failer, now int64, limits *bucket.Limits, cost int64) time.Duration {
	table := smallTable(t)
	table.Leave(now, bucket.Key{}, limits, make([]int64, limits.Len()))
	wait := table.Do(now, &bucket.Request{Limits: limits, Cost: cost, Verb: bucket.Read}).RetryAfter
	for i := range limits.Len() {
		wait = max(wait, limits.At(i).BlockFor)
	}
	return wait
}

// genChanged draws sets of limits that a key has in turn.
func genChanged(t *rapid.T, options bool) (sets []*bucket.Limits) {
	for range rapid.IntRange(2, 4).Draw(t, "sets") {
		var list []bucket.Limit
		for range rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "limits") {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
			if options {
				genOptions(t, &l)
			}
			list = append(list, l)
		}
		if len(sets) > 0 && rapid.Bool().Draw(t, "as before but for the count") {
			list = sets[0].List()
			for i := range list {
				list[i].Count = rapid.Int64Range(1, 12).Draw(t, "count")
			}
		}
		sets = append(sets, mustLimits(t, list...))
	}
	return sets
}

// TestReadsKeepTheirWord: whatever the limits were before, who waits as long as a read or a denied check says is admitted,
// unless something is charged meanwhile; and that is not longer than the limits need when they are full. A read, a
// silent and a checking client get the same, whether or not the counter moves to another node.
func TestReadsKeepTheirWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := genChanged(t, true)
		table, now := smallTable(t), genStart.Draw(t, "start")
		var last bucket.Decision
		for range 12 {
			limits := rapid.SampledFrom(sets).Draw(t, "set")
			now += genStep(t, now, limits.At(0), last)
			r := &bucket.Request{Key: lifeKey, Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost")}
			if rapid.IntRange(0, 9).Draw(t, "refund") == 0 {
				r.Verb = bucket.Refund
			}
			last = table.Do(now, r)
			ask := &bucket.Request{Key: lifeKey, Limits: rapid.SampledFrom(sets).Draw(t, "asked"), Cost: rapid.Int64Range(1, 4).Draw(t, "asked cost"), Verb: bucket.Read}
			said := table.Do(now, ask)
			if said.Allowed || int64(said.RetryAfter) > exactly-now {
				continue
			}
			if most := waitWhenFull(t, now, ask.Limits, ask.Cost); said.RetryAfter > most {
				t.Fatalf("at %d: %v to wait, when full %v", now, said.RetryAfter, most)
			}
			until := now + int64(said.RetryAfter)
			silent, reading, checking := smallTable(t), smallTable(t), smallTable(t)
			for _, to := range []*bucket.Table{silent, reading, checking} {
				hand(t, table, to, now, now, false)
			}
			for at := now; at < until && !blocks(ask.Limits); at += 1 + rapid.Int64Range(0, int64(said.RetryAfter)/2).Draw(t, "meanwhile") {
				read, check := *ask, *ask
				check.Verb = bucket.Check
				want, got := reading.Do(at, &read), checking.Do(at, &check)
				if got.Allowed != want.Allowed || got.RetryAfter != want.RetryAfter {
					t.Fatalf("at %d: a client that reads: %+v, that checks: %+v", at, want, got)
				}
				if got.Allowed {
					break
				}
				if at+int64(got.RetryAfter) > until {
					t.Fatalf("at %d: told to wait until %d, and at %d until %d", now, until, at, at+int64(got.RetryAfter))
				}
			}
			ask.Verb = bucket.Check
			if d := silent.Do(until, ask); !d.Allowed {
				t.Fatalf("at %d: told to wait until %d, and then %+v", now, until, d)
			}
			now = until
		}
	})
}

// blocks reports whether a denied check changes what follows.
func blocks(l *bucket.Limits) bool {
	for i := range l.Len() {
		if l.At(i).BlockFor > 0 {
			return true
		}
	}
	return false
}

// TestChangesAtOneInstant: no sequence of changes admits more at one instant than the largest of the limits.
func TestChangesAtOneInstant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sets []*bucket.Limits
		for range rapid.IntRange(2, 5).Draw(t, "sets") {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
			l.Count = rapid.SampledFrom([]int64{1, 5, 10, 50, 51, 1000}).Draw(t, "count")
			sets = append(sets, mustLimits(t, l))
		}
		table, now := smallTable(t), genStart.Draw(t, "start")
		admitted, most := int64(0), int64(0)
		for range 40 {
			r := &bucket.Request{Limits: rapid.SampledFrom(sets).Draw(t, "set"), Cost: rapid.SampledFrom([]int64{1, 5, 10, 500}).Draw(t, "cost")}
			l := r.Limits.At(0)
			most = max(most, l.Count, l.Burst)
			if table.Do(now, r).Allowed {
				if admitted += r.Cost; admitted > most {
					t.Fatalf("%d admitted at once, the largest limit is %d", admitted, most)
				}
			}
		}
	})
}

// carried returns the account of limits that come into force after those of old, whose last charge was at at. Windows and logs
// that differ from known ones in the count are the same.
func carried(limits *bucket.Limits, known map[bucket.Limit]*account, old *model, at int64) *account {
	a := newAccount(limits)
	m := a.models[0]
	for _, x := range known {
		x := x.models[0]
		if like := x.limit; !m.bucketLike() && (like.Algorithm != bucket.SlidingCounter || x == old) {
			if like.Count = m.limit.Count; like == m.limit {
				for _, c := range x.charges {
					c.others = true
					m.charges = append(m.charges, c)
				}
				return a
			}
		}
	}
	used := old.used(at)
	if units := new(big.Int).Div(used.Num(), used.Denom()); units.Sign() > 0 {
		m.addOthers(at, units)
	}
	return a
}

func allFree(known map[bucket.Limit]*account, now int64) bool {
	for _, a := range known {
		if !a.models[0].free(now) {
			return false
		}
	}
	return true
}

// TestStricterHistory: after any sequence of changes the limit in force admits nothing that its exact account denies. That has what
// the limit before it had counted at the last charge, at most full, and everything since then.
func TestStricterHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, now := smallTable(t), genStart.Draw(t, "start")
		known := map[bucket.Limit]*account{}
		var pool []bucket.Limit
		for _, set := range genChanged(t, false) {
			l := set.At(0)
			l.Align = bucket.AlignEpoch
			pool = append(pool, l)
		}
		var inForce *account
		var last bucket.Decision
		at := now // of the last charge
		for range 40 {
			l := rapid.SampledFrom(pool).Draw(t, "limit")
			now += genStep(t, now, l, last)
			a := known[l]
			switch {
			case a != nil:
			case inForce == nil, allFree(known, now): // it may be forgotten
				a = newAccount(mustLimits(t, l))
			default:
				a = carried(mustLimits(t, l), known, inForce.models[0], at)
			}
			r := &bucket.Request{Limits: a.limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost"), Verb: bucket.Read}
			last = table.Do(now, r)
			if last.Allowed && !a.admits(now, r.Cost) {
				t.Fatalf("at %d: cost %d admitted under %+v, its account denies it", now, r.Cost, l)
			}
			if !last.Allowed {
				continue // a denied check may keep the change
			}
			r.Verb = bucket.Check
			if d := table.Do(now, r); !d.Allowed {
				t.Fatalf("at %d: cost %d: a read says %+v, the check is denied: %+v", now, r.Cost, last, d)
			}
			known[l], inForce, at = a, a, now
			for _, each := range known {
				if each == a {
					each.charge(now, r.Cost, true)
				} else {
					each.chargeOthers(now, r.Cost)
				}
			}
		}
	})
}

// TestHeldUnitsAreNoLockout: what a lease or a reservation holds under the old limit fills the new one at most when it is charged,
// however that happens, and what a read told before is kept.
func TestHeldUnitsAreNoLockout(t *testing.T) {
	const units, life = 800, time.Minute
	high, low := mustLimits(t, per(bucket.TokenBucket, 1000, time.Hour)), mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	for _, noticed := range []bool{false, true} {
		for _, end := range []string{"settled", "spent", "deadline of a reservation", "returned", "deadline of a lease"} {
			table := smallTable(t)
			now := day
			do := func(l *bucket.Limits, verb bucket.Verb, cost int64) bucket.Decision {
				r := &bucket.Request{Limits: l, Verb: verb, Cost: cost}
				if verb >= bucket.Reserve {
					r.Reservation = &bucket.Reservation{ID: 1, Least: max(1, cost), MaxOpen: 9, For: life}
				}
				return table.Do(now, r)
			}
			var lease bucket.Grant
			if end == "returned" || end == "deadline of a lease" {
				if lease = grant(t, table, now, high, units, life); lease.Units != units {
					t.Fatalf("%+v", lease)
				}
			} else if !do(high, bucket.Reserve, units).Allowed {
				t.Fatal("not reserved")
			}
			said := do(low, bucket.Read, 1)
			if said.Allowed || said.RetryAfter > life+360*time.Second {
				t.Errorf("%s: %+v while the units are held", end, said)
			}
			if noticed {
				do(low, bucket.Check, 1)
			}
			switch end {
			case "settled":
				do(nil, bucket.Settle, units)
			case "spent":
				do(nil, bucket.Spend, units)
			case "returned":
				table.Return(now, bucket.Key{}, lease.ID, 0)
			default:
				now += int64(life)
			}
			if d := do(low, bucket.Read, 1); d.Allowed || d.RetryAfter > 360*time.Second {
				t.Errorf("%s, noticed %v: %+v, want to wait at most 360 s", end, noticed, d)
			}
			if now = day + int64(said.RetryAfter); !do(low, bucket.Check, 1).Allowed {
				t.Errorf("%s, noticed %v: denied after the %v that a read told", end, noticed, said.RetryAfter)
			}
			if d := do(high, bucket.Read, 1); d.Remaining > 1000-units+130 {
				t.Errorf("%s, noticed %v: changing back refills: %+v", end, noticed, d)
			}
		}
	}
}

// TestRaisedAgain: a limit that was lowered, and is then replaced by a third one that was never in force, is not refilled.
func TestRaisedAgain(t *testing.T) {
	for _, a := range algorithms {
		table := smallTable(t)
		for _, r := range []bucket.Request{{Limits: mustLimits(t, per(a.algorithm, 100, time.Hour)), Cost: 95}, {Limits: mustLimits(t, per(a.algorithm, 10, time.Hour)), Cost: 1}} {
			if d := table.Do(day, &r); d.Allowed != (r.Cost == 95) {
				t.Fatalf("%s: %+v", a.name, d)
			}
		}
		if got := left(table, day, &bucket.Request{Limits: mustLimits(t, per(a.algorithm, 100, 2*time.Hour))}); got != 5 {
			t.Errorf("%s: %d left, want 5", a.name, got)
		}
	}
}

// TestRefundAfterAChange: units that a full former limit has not counted are not refunded to it.
func TestRefundAfterAChange(t *testing.T) {
	for _, a := range algorithms {
		table := smallTable(t)
		low, high := mustLimits(t, per(a.algorithm, 10, time.Hour)), mustLimits(t, per(a.algorithm, 1000, time.Hour))
		for _, r := range []bucket.Request{{Limits: low, Cost: 10}, {Limits: high, Cost: 100}, {Limits: high, Cost: 100, Verb: bucket.Refund}} {
			if d := table.Do(day, &r); !d.Allowed {
				t.Fatalf("%s: %+v", a.name, d)
			}
		}
		if d := table.Do(day, &bucket.Request{Limits: low, Cost: 1}); d.Allowed {
			t.Errorf("%s: %+v", a.name, d)
		}
	}
}
