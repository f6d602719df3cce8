package bucket_test

import (
	"math/big"
	"slices"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// leased is a grant as its leaseholder has it.
type leased struct {
	bucket.Grant
	// end is when it may be spent no more on the leaseholder's clock, over when it has ended on the owner's.
	end, over int64
	spent     int64
	returned  bool
}

func (b *leased) left() int64 { return b.Units - b.spent }

// granting plays checks and leases of one key. All spending goes into the exact accounts when it happens. now is the true time;
// the owner's clock is ahead of it by ahead.
type granting struct {
	t     *rapid.T
	table *bucket.Table
	// accounts are exact, one for each set of limits that takes turns.
	accounts   []*account
	now, ahead int64
	leases     []*leased
	// receipts are of charges that may be given back, with their times.
	receipts []heldCharge
	// granted = spent + returned + expired + live
	granted, spent, returned, expired int64
	// stepped: the owner's clock has been set back, so it ends leases later.
	stepped bool
}

type heldCharge struct {
	rc       bucket.Receipt
	at, cost int64
}

// live returns the leases that may still be spent.
func (h *granting) live() (list []*leased) {
	for _, b := range h.leases {
		if !b.returned && b.left() > 0 && h.now < b.end {
			list = append(list, b)
		}
	}
	return list
}

// admissible fails h.t unless the exact account of a's limits has room for cost and all that may still be spent of leases.
func (h *granting) admissible(a *account, cost int64, what string) {
	h.t.Helper()
	for _, b := range h.live() {
		cost += b.left()
	}
	for i, m := range a.models {
		if m.limit.Align == bucket.AlignFirstHit {
			continue // its windows begin where the counter's do not; see bursts
		}
		if units := m.units(cost); cost > 0 && !m.counted(h.now, units) {
			h.t.Fatalf("at %d, %s: limit %d has no room for %d, with what is granted; used %s", h.now, what, i, units, m.used(h.now).FloatString(3))
		}
	}
}

// charge records cost, which a check under the limits of by has spent, or a lease, in all accounts.
func (h *granting) charge(by *account, cost int64) {
	for _, a := range h.accounts {
		if a == by || len(h.accounts) == 1 {
			a.charge(h.now, cost, false)
		} else {
			a.chargeOthers(h.now, cost)
		}
		a.bursts(h.t)
	}
}

// bursts fails t if windows that begin with their first charge admit more than two of them can, whichever way they lie.
func (a *account) bursts(t *rapid.T) {
	for i, m := range a.models {
		if m.limit.Align != bucket.AlignFirstHit || len(m.charges) == 0 {
			continue
		}
		most := new(big.Int).Add(m.ceiling(), m.ceiling())
		last, sum := m.charges[len(m.charges)-1].at, new(big.Int)
		for j := len(m.charges) - 1; j >= 0 && last-m.charges[j].at < int64(m.limit.Period); j-- {
			if sum.Add(sum, m.charges[j].units); sum.Cmp(most) > 0 {
				t.Fatalf("limit %d: %s in less than a period", i, sum)
			}
		}
	}
}

// check asks for a few units.
func (h *granting) check(a *account) { h.checkFor(a, rapid.Int64Range(1, 4).Draw(h.t, "cost")) }

// flood asks for single units until there are none.
func (h *granting) flood(a *account) {
	for n := 0; n < 40 && h.checkFor(a, 1); n++ {
	}
}

// checkFor asks for cost and reports whether it was admitted.
func (h *granting) checkFor(a *account, cost int64) bool {
	r := &bucket.Request{Limits: a.limits, Cost: cost}
	var rc bucket.Receipt
	d, charged := h.table.DoHeld(h.now+h.ahead, r, &rc)
	wellFormed(h.t, a.limits, r.Verb, d)
	if !charged {
		return false
	}
	h.admissible(a, r.Cost, "a check")
	h.charge(a, r.Cost)
	h.receipts = append(h.receipts, heldCharge{rc, h.now, r.Cost})
	return true
}

// giveBack takes a charge back, as if it had never been.
func (h *granting) giveBack() {
	if len(h.receipts) == 0 {
		return
	}
	i := rapid.IntRange(0, len(h.receipts)-1).Draw(h.t, "receipt")
	x := h.receipts[i]
	h.receipts = slices.Delete(h.receipts, i, i+1)
	h.table.GiveBack(h.now+h.ahead, &x.rc)
	for _, a := range h.accounts {
		for _, m := range a.models {
			j := slices.IndexFunc(m.charges, func(c charge) bool { return c.at == x.at && c.units.Cmp(m.units(x.cost)) == 0 })
			m.charges = slices.Delete(m.charges, j, j+1)
		}
	}
}

func (h *granting) grant(a *account) {
	l := genLeaseRequest(h.t, a.limits)
	if rapid.Bool().Draw(h.t, "all") { // there is, for as long as there is
		l.Want, l.Part, l.Reserve = 100, l.Whole, 0
		l.For = max(l.For, a.limits.LongestFarLease())
	}
	asked := h.now
	if rapid.IntRange(0, 3).Draw(h.t, "slow") == 0 {
		h.now += rapid.Int64Range(0, int64(l.For)).Draw(h.t, "on its way")
	}
	g, _, _ := h.table.Grant(h.now+h.ahead, l)
	wellFormed(h.t, a.limits, bucket.Read, g.Decision)
	if g.Units == 0 {
		if g.RetryAfter <= 0 {
			h.t.Fatalf("at %d: nothing granted, and retry after %d", h.now, g.RetryAfter)
		}
		return
	}
	if g.Units > l.Want || g.For > l.For || g.For < bucket.LeastLease || g.RetryAfter != 0 || !g.Decision.Allowed {
		h.t.Fatalf("at %d: %+v of %+v", h.now, g, *l)
	}
	h.leases = append(h.leases, &leased{Grant: g, end: asked + int64(g.For), over: h.now + int64(g.For)})
	h.granted += g.Units
	h.admissible(a, 0, "a lease")
}

// spend spends some units of a lease.
func (h *granting) spend() {
	list := h.live()
	if len(list) == 0 {
		return
	}
	b := rapid.SampledFrom(list).Draw(h.t, "lease_request")
	n := b.left()
	if rapid.Bool().Draw(h.t, "some") {
		n = rapid.Int64Range(1, n).Draw(h.t, "units")
	}
	if len(h.accounts) == 1 {
		for i, m := range h.accounts[0].models {
			if m.limit.Align != bucket.AlignFirstHit && !m.counted(h.now, m.units(n)) {
				h.t.Fatalf("at %d: %d of %+v spent, but limit %d alone would not admit it", h.now, n, *b, i)
			}
		}
	}
	b.spent += n
	h.spent += n
	h.charge(nil, n)
}

// giveBackLease returns a lease, maybe once more or too late.
func (h *granting) giveBackLease(exact bool) {
	if len(h.leases) == 0 {
		return
	}
	b := rapid.SampledFrom(h.leases).Draw(h.t, "lease_request")
	for _, other := range h.leases {
		if other != b && other.ID == b.ID {
			return // two tables granted within nanoseconds of each other, as if one clock had shown the same twice
		}
	}
	back, _, _ := h.table.Return(h.now+h.ahead, bucket.Key{}, b.ID, b.left())
	if want := b.left(); back > want || back != 0 && b.returned || exact && !b.returned && h.now < b.over && back != want {
		h.t.Fatalf("at %d: %d came back of %+v", h.now, back, *b)
	}
	h.returned += back
	if !b.returned {
		h.expired += b.left() - back // returned too late, or to an owner that gives nothing back
	}
	b.returned = true
}

// reset makes all forget what was charged. What is granted goes on.
func (h *granting) reset(a *account) {
	h.table.Do(h.now+h.ahead, &bucket.Request{Limits: a.limits, Verb: bucket.Reset})
	for _, each := range h.accounts {
		each.reset()
	}
	h.receipts = nil
	h.introduce()
}

// introduce makes the counter know all sets that take turns, which it must before time passes.
func (h *granting) introduce() {
	if len(h.accounts) == 1 {
		return
	}
	for _, a := range h.accounts {
		h.table.Do(h.now, &bucket.Request{Limits: a.limits, Cost: 1, Verb: bucket.Charge})
		h.charge(a, 1)
	}
}

// handOff moves the counter into another table, whose clock differs if it may.
func (h *granting) handOff(anyClock bool) {
	frozen, from, fromAhead := h.now, h.table, h.ahead
	h.now += rapid.SampledFrom([]int64{0, 1, 1e6, 1e9}).Draw(h.t, "on its way")
	if anyClock {
		h.ahead = genAhead.Draw(h.t, "ahead")
	}
	at := frozen
	windows := func(a *account) bool {
		return slices.ContainsFunc(a.models, func(m *model) bool { return aligned(m.limit) })
	}
	if !slices.ContainsFunc(h.accounts, windows) {
		// The windows of the accounts do not move.
		at = rapid.SampledFrom([]int64{frozen, h.now}).Draw(h.t, "as of")
	}
	for _, b := range h.leases {
		if b.over > frozen {
			b.over += at - frozen // the counter has not aged
		}
	}
	h.table = smallTable(h.t)
	hand(h.t, from, h.table, frozen+fromAhead, at+h.ahead, false)
	h.receipts = nil
}

// wait lets time pass, mostly to where something ends.
func (h *granting) wait(limits *bucket.Limits) {
	l := limits.At(rapid.IntRange(0, limits.Len()-1).Draw(h.t, "guide"))
	switch list := h.live(); {
	case len(list) > 0 && rapid.IntRange(0, 3).Draw(h.t, "to an end") > 0:
		b := rapid.SampledFrom(list).Draw(h.t, "whose")
		to := b.end
		if rapid.Bool().Draw(h.t, "the owner's") {
			to = b.over
		}
		h.now = max(h.now, to+rapid.Int64Range(-2, 1).Draw(h.t, "off"))
	case len(list) > 0 && rapid.Bool().Draw(h.t, "within"):
		h.now += rapid.Int64Range(0, max(0, list[0].end-h.now)).Draw(h.t, "some of it")
	case len(h.leases) > 0 && rapid.Bool().Draw(h.t, "a period after"):
		b := rapid.SampledFrom(h.leases).Draw(h.t, "whose")
		granted := b.over - int64(b.For)
		h.now = max(h.now, granted+min(int64(l.Period), exactly/2)+rapid.Int64Range(-1, 1).Draw(h.t, "off"))
	default:
		h.now += genStep(h.t, h.now+h.ahead, l, bucket.Decision{})
	}
}

// add up fails h.t unless every unit granted is accounted for, by the leaseholders and by the owner.
func (h *granting) addUp(exact bool) {
	var live, open, held int64
	for _, b := range h.leases {
		switch {
		case b.returned:
			continue
		case h.now < b.over:
			open++
			held += b.Units
			fallthrough
		case h.now < b.end:
			live += b.left()
		default:
			live += b.left() // expired, but not counted so yet
		}
	}
	if h.granted != h.spent+h.returned+h.expired+live {
		h.t.Fatalf("%d granted, %d spent, %d returned, %d expired, %d live", h.granted, h.spent, h.returned, h.expired, live)
	}
	if n, units := h.table.Granted(h.now+h.ahead, bucket.Key{}); exact && (int64(n) != open || units != held) {
		h.t.Fatalf("at %d: the owner has granted %d units in %d grants, the leaseholders have %d in %d", h.now, units, n, held, open)
	}
}
