package sim

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/rules"
)

// Bounds of shares.
//
// The simulated cluster keeps its own account of each process's knowledge of a key: the owner's last answer, or its own counter
// as owner or replica, for the current window as of the end of quorum. Then, for a limit L and n voters:
//
//   - "early share": no share is given before the process had quorum, nor within 0.7 s after a pause.
//   - "share": what a process has admitted in a window without acknowledgement by an owner is at most left/n, rounded down; for
//     an unknown key, L/n or 0 by unknown_share; in a later window, L/n. A lost answer acknowledges nothing, so it counts until
//     the window ends; charges restored from disk count too. For a limit that refills: at most left/n plus the refill at rate
//     L/n since the end of quorum.
//   - "shares in all": what owners and shares admit in a window is at most the sum of L, twice what owners have lost (in
//     crashes, pauses and cuts: judged elsewhere; twice, since shares divide it again), and each process's largest share in that
//     window. For processes that keep running, these shares sum up to at most what was left when they last heard, however often
//     they are isolated.
//   - "deferred": a process sends no more charges than it has admitted in the window and not yet sent, and an owner counts each
//     once; when all is settled nothing is left to send; a write to disk has all outstanding charges. So a restart may charge
//     again what was charged since the write, which admits less, never more.

// window is the model's data of one window of a shared key.
type window struct {
	// owners and shares are the admitted units. spent is the last count of the owner's table, lost the sum of its decreases.
	owners, shares, spent, lost int64
	// allowed is the sum of the largest share of each process.
	allowed int64
}

// shareAccount is the model's data of one process and one shared key.
type shareAccount struct {
	// knows: an answer with left units is known, valid until a time on the process's clock. newer: it is newer than
	// share.
	knows, newer bool
	// asked is when it was requested.
	left, from, to, until, asked int64
	// share is what the process may admit without acknowledgement in window, computed by expectShare in a spell.
	spell  int
	share  int64
	window int64
	// tokens is that share as a bucket that refills since a time.
	tokens float64
	since  int64
	// By window: unacknowledged is admitted without acknowledgement by an owner, deferred the part still to be sent, allowed
	// the largest share.
	unacknowledged, deferred, allowed map[int64]int64
}

func (a *shareAccount) init() {
	if a.deferred == nil {
		a.unacknowledged, a.deferred, a.allowed = map[int64]int64{}, map[int64]int64{}, map[int64]int64{}
	}
}

// window returns the data of window i.
func (s *sharing) window(i int64) *window {
	x := s.windows[i]
	if x == nil {
		x = new(window)
		s.windows[i] = x
	}
	return x
}

// knows is called when p learns what was left of k at a time.
func (w *simCluster) knows(p *process, k *key, at, left int64, reset time.Duration) {
	a := &p.accounts[k.shared.place]
	if a.knows && at < a.asked { // a check that was sent later was answered before
		if _, to, _ := k.request.Limits.Says(0, at, reset); a.asked < to && left < a.left {
			a.newer, a.left = true, left
		}
		return
	}
	a.knows, a.newer, a.left, a.asked = true, true, left, at
	a.from, a.to, a.until = k.request.Limits.Says(0, at, reset)
}

// keeps is called when p is about to drop its counter of k.
func (w *simCluster) keeps(p *process, k *key, now int64) {
	a := &p.accounts[k.shared.place]
	list, has := p.table.Look(now, k.request.Key, k.request.Limits)
	if has && !(a.knows && a.left <= list[0].Remaining && now < a.to) {
		w.knows(p, k, now, list[0].Remaining, list[0].ResetAfter)
	}
}

// expectShare computes what p may admit of k when a share is requested.
func (w *simCluster) expectShare(p *process, k *key, now int64, at share.Place) {
	a := &p.accounts[k.shared.place]
	a.init()
	asOf := p.shares.When.AsOf(now, at.Quorum)
	if a.knows {
		asOf = max(asOf, a.asked, min(a.from, now))
	}
	n := int64(p.voting())
	if p.among != n { // so all shares are computed again
		p.among = n
		p.spell++
	}
	given := a.spell == p.spell+1
	if given {
		if !(a.newer && now < a.until) && !(at.Quorum && at.Owns) {
			return
		}
		if !k.shared.refills && a.window == k.windowAt(now) {
			asOf = now
		}
	}
	left, units := w.shareAsOf(p, k, asOf)
	// A counter that is full again, or whose window has ended, counts as new once swept, and as of now before.
	if given && !k.shared.refills {
		_, unswept := w.shareAsOf(p, k, now)
		units = max(units, unswept)
	}
	a.spell, a.newer, a.window, a.share = p.spell+1, a.newer && asOf < a.from, k.windowAt(asOf), units
	a.tokens, a.since = float64(a.share), asOf
	if left >= 0 { // a refilled counter may have a fraction of a unit more
		a.tokens = float64(left+1) / float64(n)
	}
	w.tell(k.partition, "%s may share %d of %s as of %v ago, left %d, unacknowledged %v", p, a.share, k.name, time.Duration(now-asOf), left, a.unacknowledged)
}

// shareAsOf returns how many units of k are left as of a time, as far as p knows (-1 if unknown), and p's share of them.
func (w *simCluster) shareAsOf(p *process, k *key, asOf int64) (left, units int64) {
	a := &p.accounts[k.shared.place]
	left = -1
	if a.knows && asOf < a.until {
		if left = a.left; asOf < a.from || asOf >= a.to {
			left = 0
		}
	}
	if list, has := p.table.Look(asOf, k.request.Key, k.request.Limits); has && (left < 0 || list[0].Remaining < left) {
		left = list[0].Remaining
		if from, _, _ := k.request.Limits.Says(0, asOf, list[0].ResetAfter); asOf < from {
			left = 0
		}
	}
	switch n := int64(p.voting()); {
	case left >= 0:
		return left, left / n
	case k.shared.unknown == rules.UnknownNone:
		return left, 0
	default:
		return left, k.limit / n
	}
}

// sharedAt is called when p has admitted a check of k by its share.
func (w *simCluster) sharedAt(p *process, k *key, d bucket.Decision, now int64, at share.Place) {
	w.SharesAdmitted++
	a, n := &p.accounts[k.shared.place], int64(p.voting())
	if !p.hadQuorum {
		w.fail("early share", k.partition, "%s gives a share of %s and had no quorum since it started", p, k.name)
	}
	if woke := w.now - p.resumed; p.pausedFor >= int64(pausedFor+healthy) && woke < int64(wakeGrace)*9/10 {
		w.fail("early share", k.partition, "%s gives a share of %s %v after it was paused for %v", p, k.name, time.Duration(woke), time.Duration(p.pausedFor))
	}
	i := k.windowOf(now, &d)
	may := a.share
	if i != a.window {
		may = k.limit / n
	}
	a.unacknowledged[i]++
	a.deferred[i]++
	win := k.shared.window(i)
	win.shares++
	if k.shared.refills {
		part := float64(k.limit) / float64(n)
		a.tokens, a.since = min(part, a.tokens+part*float64(now-a.since)/float64(k.shared.period))-1, now
		if a.tokens < -0.5 { // times are rounded
			w.fail("share", k.partition, "%s admits more of %s than comes back: %v", p, k.name, a.tokens)
		}
		return
	}
	if out := a.unacknowledged[i]; out > may {
		w.fail("share", k.partition, "%s has admitted %d of %s in window %d that no owner has acknowledged, of a share of %d, among %d voters", p, out, k.name, i, may, n)
	}
	if more := may - a.allowed[i]; more > 0 {
		a.allowed[i] += more
		win.allowed += more
	}
	w.judgeShares(k, i)
}

// ownerDecides is called when an owner has decided a check or charge of k.
func (w *simCluster) ownerDecides(p *process, k *key, x *sentCharge, d bucket.Decision, now int64) {
	if x != nil {
		if x.applied {
			w.fail("deferred", k.partition, "%s is charged %d of %s again", p, x.Due, k.name)
		}
		x.applied = true
		w.ChargesApplied++
	}
	if k.shared.refills {
		return
	}
	i := k.windowOf(now, &d)
	if x != nil && i < x.window { // the owner's clock is behind, so it counts the charge in its previous window
		k.shared.window(x.window).lost += x.Due
	}
	win := k.shared.window(i)
	before, after := k.limit-d.Remaining, k.limit-d.Remaining
	switch {
	case x != nil && after < k.limit:
		before -= x.Due
	case x == nil && d.Allowed:
		before--
		win.owners++
	}
	if lost := win.spent - before; lost > 0 {
		win.lost += lost
		w.tell(k.partition, "%d of %s are lost in window %d", lost, k.name, i)
	}
	win.spent = after
	w.judgeShares(k, i)
}

func (w *simCluster) judgeShares(k *key, i int64) {
	x := k.shared.window(i)
	over := x.owners + x.shares - k.limit
	if x.shares > 0 {
		w.SharesExcess = max(w.SharesExcess, over-x.lost)
	}
	if may := 2*x.lost + x.allowed; over > may {
		w.fail("shares in all", k.partition, "%d of %s beyond the limit in window %d: %d by owners, %d by shares of %d allowed, %d lost", over, k.name, i,
			x.owners, x.shares, x.allowed, x.lost)
	}
}

// taken is called when p is about to send x.
func (w *simCluster) taken(p *process, k *key, x *sentCharge) {
	a := &p.accounts[k.shared.place]
	a.init()
	if deferred := a.deferred[x.window]; x.Due > deferred {
		w.fail("deferred", k.partition, "%s charges %d of %s in window %d, and owes %d", p, x.Due, k.name, x.window, deferred)
	}
	w.tell(k.partition, "%s charges %d of %s in window %d, and owes %v", p, x.Due, k.name, x.window, a.deferred)
}

// ended is called when x has completed.
func (w *simCluster) ended(p *process, k *key, x *sentCharge, o share.Outcome) {
	a := &p.accounts[k.shared.place]
	w.tell(k.partition, "%s: outcome %d of charge %d of %s in window %d, owes %v", p, o, x.Due, k.name, x.window, a.deferred)
	if o == share.NotCharged {
		return
	}
	a.deferred[x.window] -= x.Due
	if o == share.Charged {
		if !x.applied {
			w.fail("deferred", k.partition, "%s takes %d of %s for charged, and no owner has counted them", p, x.Due, k.name)
		}
		a.unacknowledged[x.window] -= x.Due
	}
}

// restored is called when p has read the charges left by an earlier process.
func (w *simCluster) restored(p *process, list []share.Charge, then int64) {
	for _, c := range list {
		for _, k := range w.shared {
			if k.request.Key == c.Key {
				a := &p.accounts[k.shared.place]
				a.init()
				i := k.windowAt(then)
				a.unacknowledged[i], a.deferred[i] = c.Cost, c.Cost
				w.ChargesRestored++
			}
		}
	}
}

// judgeSaved requires that a write of p has all outstanding charges.
func (w *simCluster) judgeSaved(p *process, table *bucket.Table, now int64) (all []int64) {
	for _, k := range w.shared {
		all = append(all, p.accounts[k.shared.place].deferred[0])
		if k.shared.refills {
			continue
		}
		deferred := p.accounts[k.shared.place].deferred[k.windowAt(now)]
		if list, _ := table.Look(now, k.request.Key, k.request.Limits); list[0].Spent < deferred {
			w.fail("deferred", k.partition, "%s writes %d of %s to disk, and owes %d", p, list[0].Spent, k.name, deferred)
		}
	}
	return all
}

// judgeRestored requires that p has restored all saved charges of keys whose windows last.
func (w *simCluster) judgeRestored(p *process, s savedCharges) {
	for i, k := range w.shared {
		if owes := p.accounts[i].deferred[0]; k.shared.period == 0 && owes < s.deferred[i] {
			w.fail("deferred", k.partition, "%s owes %d of %s, and %d are on its disk", p, owes, k.name, s.deferred[i])
		}
	}
}

// judgeCharged requires that no charge is outstanding after a settled period.
func (w *simCluster) judgeCharged() {
	for _, p := range w.running() {
		for _, k := range w.shared {
			if deferred := p.accounts[k.shared.place].deferred[0]; deferred > 0 && k.shared.period == 0 {
				w.fail("deferred", k.partition, "%s owes %d of %s, and does not charge them", p, deferred, k.name)
			}
		}
		if keys, _ := p.shares.Charges.Count(); keys > 0 {
			w.fail("deferred", general, "%s has charges of %d keys that it does not send", p, keys)
		}
	}
}
