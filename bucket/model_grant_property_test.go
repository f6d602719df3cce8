package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// genGranting draws a limit that grants.
func genGranting(t *rapid.T, algorithm bucket.Algorithm) bucket.Limit {
	l := genAnyOf(t, algorithm)
	l.MinInterval, l.BlockFor, l.CountDenied = 0, 0, false
	l.Count += l.Cost
	if l.Burst > 0 {
		l.Burst += l.Cost
	}
	if l.Period < 200*time.Millisecond || l.Period > 30*24*time.Hour {
		l.Period = rapid.SampledFrom([]time.Duration{200 * time.Millisecond, time.Second, time.Minute, 7777777777, time.Hour}).Draw(t, "longer period")
	}
	return l
}

func genGrantingSet(t *rapid.T) *bucket.Limits {
	var list []bucket.Limit
	for range rapid.IntRange(2, 3).Draw(t, "limits") {
		list = append(list, genGranting(t, rapid.SampledFrom([]bucket.Algorithm{
			bucket.TokenBucket, bucket.LeakyBucket, bucket.FixedWindow, bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow,
		}).Draw(t, "algorithm")))
	}
	return mustLimits(t, list...)
}

// TestGrantedNeverMore: whatever leaseholders do, and when, each unit is spent where the limits alone would admit it, given all that was
// spent before; and while units are granted the limits would admit all of them at any moment.
func TestGrantedNeverMore(t *testing.T) {
	for _, c := range algorithms {
		if c.algorithm == bucket.LeakyQueue {
			continue // does not grant
		}
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				neverMore(t, mustLimits(t, genGranting(t, c.algorithm)))
			})
		})
	}
	t.Run("together", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { neverMore(t, genGrantingSet(t)) })
	})
}

// effects are what happens to a key that is granted, as often as they are listed.
var effects = []string{
	"grant", "grant", "grant", "grant", "spend", "spend", "spend", "wait", "wait", "wait", "wait", "wait",
	"check", "check", "flood", "flood", "give back", "return", "return", "hand off", "sweep", "reset",
}

func neverMore(t *rapid.T, limits *bucket.Limits) {
	h := &granting{t: t, table: smallTable(t), accounts: []*account{newAccount(limits)}, now: genStart.Draw(t, "start")}
	a := h.accounts[0]
	for range 60 {
		h.step(a, func() { h.handOff(false) })
		h.addUp(true)
	}
}

// step does one random effects. Checks and leases are of a's limits.
func (h *granting) step(a *account, handOff func()) {
	switch rapid.SampledFrom(effects).Draw(h.t, "what") {
	case "check":
		h.check(a)
	case "flood":
		h.flood(a)
	case "grant":
		h.grant(a)
	case "spend":
		h.spend()
	case "return":
		h.giveBackLease(len(h.accounts) == 1)
	case "give back":
		h.giveBack()
	case "reset":
		h.reset(a)
	case "hand off":
		handOff()
	case "sweep":
		if len(h.accounts) == 1 { // else it would no longer know all of them
			h.table.Sweep(h.now+h.ahead, 0)
		}
	case "wait":
		h.wait(a.limits)
	}
}

// TestGrantedUnderOtherClocks: clocks that step back, and owners whose clocks differ, make nothing of it that is not aligned.
func TestGrantedUnderOtherClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := []bucket.Limit{genGranting(t, rapid.SampledFrom([]bucket.Algorithm{
			bucket.TokenBucket, bucket.LeakyBucket, bucket.FixedWindow, bucket.SlidingLog,
		}).Draw(t, "algorithm"))}
		if l := &list[0]; aligned(*l) {
			l.Align, l.Unit, l.Zone = bucket.AlignFirstHit, 0, ""
		}
		h := &granting{t: t, table: smallTable(t), accounts: []*account{newAccount(mustLimits(t, list...))}, now: genStart.Draw(t, "start")}
		for range 60 {
			h.step(h.accounts[0], func() { h.handOff(true) })
			if rapid.IntRange(0, 7).Draw(t, "back") == 0 {
				h.ahead -= rapid.Int64Range(0, int64(list[0].Period)).Draw(t, "by")
				h.stepped = true
			}
			h.addUp(!h.stepped)
		}
	})
}

// TestGrantedAcrossChanges: two sets of limits take turns, as where nodes run different rules for a moment. What either admits or grants, its exact
// account admits, fed with everything that was spent and with all that is granted, whichever of the two has granted it.
func TestGrantedAcrossChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := genGrantingSet(t)
		other := genGrantingSet(t)
		if rapid.Bool().Draw(t, "alike") { // as a count that is edited is
			var list []bucket.Limit
			for i := range one.Len() {
				l := one.At(i)
				l.Count += rapid.Int64Range(0, 5).Draw(t, "more")
				list = append(list, l)
			}
			other = mustLimits(t, list...)
		}
		accounts := []*account{newAccount(toEpoch(t, one)), newAccount(toEpoch(t, other))}
		h := &granting{t: t, table: smallTable(t), accounts: accounts, now: genStart.Draw(t, "start")}
		h.introduce()
		for range 40 {
			a := rapid.SampledFrom(accounts).Draw(t, "set")
			h.step(a, func() { h.handOff(false) })
			h.addUp(false)
		}
	})
}

// toEpoch returns the limits with all windows and steps aligned to the epoch, and without unit costs: what was spent is
// kept in units of the limit it was spent under.
func toEpoch(t *rapid.T, limits *bucket.Limits) *bucket.Limits {
	var list []bucket.Limit
	for i := range limits.Len() {
		l := limits.At(i)
		l.Align, l.Unit, l.Zone, l.Cost = bucket.AlignEpoch, 0, "", 0
		list = append(list, l)
	}
	return mustLimits(t, list...)
}
