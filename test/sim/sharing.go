package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/rules"
)

// A simulated cluster may have keys of rules with share: a process that cannot reach the owner of such a key within
// checkTimeout, or has no quorum and does not hear the owner, answers by its share and charges the owner later. This file does
// around cluster/share what the node does, without relays. sharing_judged.go checks the bound.

// Intervals of sending deferred charges and of writing them to disk.
const (
	settlePeriod = 100 * time.Millisecond
	savePeriod   = 300 * time.Millisecond
	// wakeGrace is how long a process that has resumed or lost quorum waits for its peers.
	wakeGrace = 700 * time.Millisecond
	// pausedFor is the minimum length of a stall that counts as a pause.
	pausedFor = 300 * time.Millisecond
)

// sharing is the model's data of a key that shares may answer.
type sharing struct {
	place   int // index among these keys
	unknown rules.UnknownShare
	// period is the length of its windows or of its refill; 0 if none ends within a run.
	period  int64
	refills bool
	windows map[int64]*window
}

// newSharedKeys draws one or two keys for each partition.
func newSharedKeys(r *rand.Rand, partitions int) []*key {
	var keys []*key
	for i := range partitions + r.IntN(partitions+1) {
		limit := 6 + r.Int64N(60)
		s := &sharing{place: i, unknown: rules.UnknownShare(r.IntN(2)), windows: map[int64]*window{}}
		k := &key{partition: i % partitions, limit: limit, shared: s}
		k.request.Key = bucket.Key{Hi: uint64(2_000_000 + i), Lo: uint64(i)}
		k.request.Cost = 1
		rule := bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: long, Align: bucket.AlignFirstHit}
		switch period := between(r, 2500*time.Millisecond, 8*time.Second); r.IntN(5) {
		case 0:
			rule = bucket.Limit{Algorithm: bucket.TokenBucket, Count: limit, Period: long}
		case 1:
			rule = bucket.Limit{Algorithm: bucket.TokenBucket, Count: limit, Period: period}
			s.period, s.refills = int64(period), true
		case 2, 3:
			rule = bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: period}
			s.period = int64(period)
		}
		limits, err := bucket.NewLimits(rule)
		if err != nil {
			panic(fmt.Sprintf("sim: %+v: %v", rule, err)) // all of these are valid
		}
		k.request.Limits = limits
		k.name = fmt.Sprintf("p%d shared %d, %s of %d in %v, unknown_share %d", k.partition, i, rule.Algorithm, limit, rule.Period, s.unknown)
		keys = append(keys, k)
	}
	return keys
}

// loadShared starts a stream of checks of these keys.
func (w *simCluster) loadShared() {
	const rate = 120
	stream := w.steady
	var next func()
	next = func() {
		if stream != w.steady {
			return
		}
		if p := w.someone(); p != nil {
			k := w.shared[w.rng.IntN(len(w.shared))]
			for range 1 + w.rng.IntN(3)*w.rng.IntN(3) {
				w.ask(p, k)
			}
		}
		w.after(time.Duration(w.rng.ExpFloat64()/rate*float64(time.Second)), next)
	}
	w.after(0, next)
}

// savedCharges are deferred charges on disk.
type savedCharges struct {
	images   []bucket.Image // by partition
	at       int64          // simulated time
	voters   int
	deferred []int64 // by key, for keys whose windows last
}

// startShares starts the part of a process that answers without owners.
func (w *simCluster) startShares(p *process, now int64) {
	var err error
	p.shares, err = share.New(share.Config{Counters: p.table, Shards: w.partitions, MaxKeys: 1000})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	grace := wakeGrace
	if w.without.grace {
		grace = 0
	}
	p.shares.When.Start(now, grace, checkTimeout)
	p.accounts = make([]shareAccount, len(w.shared))
	if s := w.saved[p.place]; w.disk && s.images != nil {
		if !w.without.saved {
			w.restoreCharges(p, now, s)
		}
		w.judgeRestored(p, s)
	}
	w.after(settlePeriod, func() { w.settleUp(p) })
	if w.disk {
		w.after(savePeriod, func() { w.saveCharges(p) })
	}
}

// turnShares is the part of turn for shares.
func (w *simCluster) turnShares(p *process, now int64) {
	if p.shares == nil {
		return
	}
	until := p.quorum.QuorumUntil()
	if p.shares.When.Turn(now, until) {
		p.shares.Forget()
		p.spell++
	}
	if p.shares.When.Settling() {
		p.shares.When.NoteSettled(now, w.without.early || w.hasSettled(p, now))
	}
	if set := p.quorum.Set(); now < until && !set.Zero() {
		p.voters, p.hadQuorum = len(set.Members), true
	}
}

// hasSettled reports whether p has quorum, its partitions and their replicas.
func (w *simCluster) hasSettled(p *process, now int64) bool {
	v := &p.shown
	if p.state != member.Serving || v.Owner == nil || now >= p.quorum.QuorumUntil() {
		return false
	}
	for part, owner := range v.Owner {
		if owner >= 0 && v.Members[owner] == p.self && !p.handoff.Owns(part) {
			return false
		}
	}
	s := p.handoff.Stats()
	return len(v.Members) == 1 || s.Unprotected == 0 && s.BelowReplicas == 0
}

// voting returns the number of processes that p divides by.
func (p *process) voting() int {
	if p.voters == 0 {
		return max(1, len(p.view))
	}
	return p.voters
}

// withoutOwner ends a, a check or charge of a shared key, after its timeout, or at once if a process without quorum does not
// hear the owner.
func (w *simCluster) withoutOwner(a *ask) bool {
	p, now := a.at, w.clock(a.at)
	late := w.now-a.began > int64(checkTimeout)
	if a.charge != nil {
		if late {
			w.charged(a, share.NotCharged)
		}
		return late
	}
	if !late && (now < p.quorum.QuorumUntil() || !p.shares.When.AtOnce(now) || w.hearsOwner(p, a.key.partition)) {
		return false
	}
	if p.shares.When.MayShare(now) {
		w.answerByShare(p, a.key, now)
	}
	return true
}

// hearsOwner reports whether p hears another process that it considers the owner.
func (w *simCluster) hearsOwner(p *process, part int) bool {
	_, owner := w.direct(p, part)
	return owner != p.self && slices.ContainsFunc(p.view, func(s seen) bool { return s.process.self == owner })
}

func (w *simCluster) answerByShare(p *process, k *key, now int64) {
	at := share.Place{Parts: share.Parts{Voters: p.voting()}, Quorum: now < p.quorum.QuorumUntil(), Owns: p.handoff.Owns(k.partition)}
	w.expectShare(p, k, now, at)
	if w.without.voters {
		at.Voters = 1
	}
	d, charged := p.shares.Answer(now, at, &k.request, k.shared.unknown, nil)
	w.Shares++
	if charged {
		w.sharedAt(p, k, d, now, at)
	}
}

// heard records at p the owner's answer to a.
func (w *simCluster) heard(a *ask, d *bucket.Decision) {
	a.at.shares.Answers.Note(a.sent, &a.key.request, d)
	w.knows(a.at, a.key, a.sent, d.Remaining, d.ResetAfter)
}

// dropping is called before p drops the counters of part.
func (w *simCluster) dropping(p *process, part int) {
	now := w.clock(p)
	for _, k := range w.shared {
		if k.partition == part {
			w.keeps(p, k, now)
		}
	}
	p.shares.Keep(now, part)
}

// settleUp sends p's deferred charges to owners, if it has quorum and all earlier ones have completed.
func (w *simCluster) settleUp(p *process) {
	if !p.runs() {
		return
	}
	w.after(settlePeriod, func() { w.settleUp(p) })
	now := w.clock(p)
	if p.paused || p.charging > 0 || now >= p.quorum.QuorumUntil() {
		return
	}
	voters := p.voting()
	list := p.shares.Take(now, share.Parts{Voters: voters}, 512)
	if p.charging = len(list); p.charging == 0 {
		p.shares.Charges.Answered()
	}
	for _, c := range list {
		i := slices.IndexFunc(w.shared, func(k *key) bool { return k.request.Key == c.Key })
		k := w.shared[i]
		x := &sentCharge{Charge: c, voters: voters, window: k.windowAt(now)}
		w.taken(p, k, x)
		w.attempt(&ask{key: k, at: p, began: w.now, wait: firstWait, charge: x})
	}
}

// sentCharge is a deferred charge in flight.
type sentCharge struct {
	share.Charge
	voters  int
	window  int64
	applied bool
	ended   bool
}

// charged completes a, a charge.
func (w *simCluster) charged(a *ask, o share.Outcome) {
	p, x := a.at, a.charge
	if x.ended {
		return
	}
	x.ended = true
	w.ended(p, a.key, x, o)
	p.shares.Ended(w.clock(p), x.Charge, share.Parts{Voters: x.voters}, o)
	if p.charging--; p.charging == 0 {
		p.shares.Charges.Answered()
	}
}

// saveCharges writes p's deferred charges to disk periodically.
func (w *simCluster) saveCharges(p *process) {
	switch {
	case !p.runs():
		return
	case p.paused:
		w.after(ticking, func() { w.saveCharges(p) })
		return
	}
	now := w.clock(p)
	table, _, err := p.shares.Table(now, share.Parts{Voters: p.voting()}, w.partitions)
	if err != nil {
		panic(err) // the configuration is a constant
	}
	s := savedCharges{images: make([]bucket.Image, w.partitions), at: w.now, voters: p.voting()}
	for part := range s.images {
		table.Export(now, part, table.Keys(part, nil), &s.images[part])
	}
	s.deferred = w.judgeSaved(p, table, now)
	w.after(between(w.rng, 100*time.Microsecond, w.fsync), func() {
		if p.runs() {
			w.saved[p.place] = s
		}
	})
	w.after(savePeriod, func() { w.saveCharges(p) })
}

func (w *simCluster) restoreCharges(p *process, now int64, s savedCharges) {
	table, err := bucket.NewTable(bucket.Config{Shards: w.partitions})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	then := now - (w.now - s.at)
	for part := range s.images {
		im := &s.images[part]
		if err := table.Import(then, part, im, im.Data, im.Counters, false); err != nil {
			w.fail("disk", part, "deferred charges: %v", err)
		}
		list := share.FromTable(then, table, part)
		p.shares.Restore(list, share.Parts{Voters: s.voters})
		w.restored(p, list, then)
	}
}

// windowAt returns the window of k at a clock time.
func (k *key) windowAt(now int64) int64 {
	if k.shared.period == 0 || k.shared.refills {
		return 0
	}
	return now/k.shared.period + 1
}

// windowOf returns the window of k that a decision at a time belongs to: the one that ends at the reset, rounded, because
// counters may stand still in transfer.
func (k *key) windowOf(now int64, d *bucket.Decision) int64 {
	if k.shared.period == 0 || k.shared.refills {
		return 0
	}
	return int64(math.Round(float64(now+int64(d.ResetAfter)) / float64(k.shared.period)))
}
