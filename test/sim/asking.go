package sim

import (
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/message"
)

// Waits of a check, as in cluster.
const (
	maxForwards = 3
	firstWait   = 5 * time.Millisecond
	lastWait    = 50 * time.Millisecond
	// hopTimeout is the minimum time that a node waits for another's answer; it is extended to two round trips.
	hopTimeout = 100 * time.Millisecond
	// patience is how long a client waits.
	patience = 3 * time.Second
)

// ask is one check in progress.
type ask struct {
	key      *key
	at       *process // the node that the client asked
	began    int64
	wait     time.Duration
	forwards int   // in this attempt
	hop      int   // numbers hops, so that late answers are recognized
	sent     int64 // start of this attempt or hop, on the clock of at
	// charge is set for a deferred charge.
	charge *sentCharge
}

// hop is a forwarded check, or its outcome on the way back.
type hop struct {
	ask     *ask
	n       int
	from    *process
	back    bool
	outcome outcome
	hint    message.Peer
	said    bucket.Decision // for shared keys
}

// outcome is a node's result for a check.
type outcome int

const (
	decided     outcome = iota + 1
	notOwner            // ask the hint
	later               // retry in a moment
	unconfirmed         // decided, but the answer waits for a replica
)

// ask starts a check of k at p.
func (w *simCluster) ask(p *process, k *key) {
	a := &ask{key: k, at: p, began: w.now, wait: firstWait}
	w.Asked++
	w.attempt(a)
}

// attempt starts a round of up to three forwards from the node that the client asked.
func (w *simCluster) attempt(a *ask) {
	p := a.at
	switch {
	case !p.runs():
		return // the client's connection is closed
	case p.paused:
		w.after(ticking, func() { w.attempt(a) })
		return
	case a.key.shared != nil && w.withoutOwner(a):
		return
	case w.now-a.began > int64(patience):
		w.Undecided++
		if w.healthy(a.began) {
			w.fail("liveness", a.key.partition, "a check of %s, asked at %s when all was well, was not decided within %v", a.key.name, p, patience)
		}
		return
	}
	a.forwards, a.sent = 0, w.clock(p)
	out, hint, _ := w.decide(p, a, nil)
	w.onward(a, out, hint)
}

// onward processes an outcome at the node that the client asked.
func (w *simCluster) onward(a *ask, out outcome, hint message.Peer) {
	p := a.at
	switch out {
	case decided:
		if a.charge != nil {
			w.charged(a, share.Charged)
			return
		}
		w.answered(a)
		return
	case unconfirmed:
		return
	case notOwner:
		a.forwards++
		if hint == p.self || hint == (message.Peer{}) || a.forwards > maxForwards {
			break
		}
		a.hop++
		n := a.hop
		to := w.place(hint.Name)
		w.send(&controlMessage{from: p.place, to: to, hop: &hop{ask: a, n: n, from: p}})
		limit := max(hopTimeout, 2*time.Duration(w.net.base[p.place][to]+w.net.base[to][p.place]))
		if a.key.sync {
			limit = max(limit, checkTimeout)
		}
		a.sent = w.clock(p)
		w.after(limit, func() {
			if a.hop == n && p.runs() {
				a.hop++
				if a.charge != nil {
					w.charged(a, share.AnswerLost)
					return
				}
				w.again(a)
			}
		})
		return
	}
	w.again(a)
}

// again schedules the next attempt.
func (w *simCluster) again(a *ask) {
	w.after(a.wait, func() { w.attempt(a) })
	a.wait = min(2*a.wait, lastWait)
}

func (w *simCluster) answered(a *ask) {
	took := time.Duration(w.now - a.began)
	w.Slowest = max(w.Slowest, took)
	if w.healthy(a.began) {
		if w.SlowestHealthy = max(w.SlowestHealthy, took); took > 500*time.Millisecond {
			w.tell(a.key.partition, "a check of %s, asked at %s, was decided after %v", a.key.name, a.at, took)
		}
	}
}

// hopped processes a forwarded check, or its outcome, at p.
func (w *simCluster) hopped(p *process, l *controlMessage) {
	h := l.hop
	if h.back {
		if h.ask.at == p && h.ask.hop == h.n {
			h.ask.hop++
			if h.outcome == decided && h.ask.key.shared != nil {
				w.heard(h.ask, &h.said)
			}
			w.onward(h.ask, h.outcome, h.hint)
		}
		return
	}
	out, hint, d := w.decide(p, h.ask, h)
	if out != unconfirmed {
		w.send(&controlMessage{from: p.place, to: h.from.place, hop: &hop{ask: h.ask, n: h.n, back: true, outcome: out, hint: hint, said: d}})
	}
}

// reply sends the outcome of h back.
func (w *simCluster) reply(p *process, h *hop, out outcome, hint message.Peer) {
	w.send(&controlMessage{from: p.place, to: h.from.place, hop: &hop{ask: h.ask, n: h.n, back: true, outcome: out, hint: hint}})
}

// decide decides a's check at p if p may, as the node does: quorum, seal and gate. h is nil at the node that the client asked.
func (w *simCluster) decide(p *process, a *ask, h *hop) (out outcome, hint message.Peer, d bucket.Decision) {
	k, now := a.key, w.clock(p)
	part := k.partition
	if now >= p.quorum.QuorumUntil() && !w.without.quorum {
		out, hint = w.direct(p, part)
		return out, hint, d
	}
	request := &k.request
	if x := a.charge; x != nil {
		request = &bucket.Request{Key: x.Key, Limits: x.Limits, Cost: x.Due, Verb: bucket.Charge}
	}
	var seq uint64
	if w.without.seal {
		// Only the ring determines the owner.
		if o := p.shown.Owner; o == nil || o[part] < 0 || p.shown.Members[o[part]] != p.self {
			out, hint = w.direct(p, part)
			return out, hint, d
		}
		d = p.table.Do(now, request)
	} else {
		var v bucket.Verdict
		d, seq, v = p.table.Try(now, request, nil)
		if holds := p.handoff.Owns(part); holds == (v == bucket.Sealed) {
			w.fail("seal", part, "that %s holds the partition is %v, and what it says to a check is %d", p, holds, v)
		}
		switch v {
		case bucket.Sealed:
			out, hint = w.direct(p, part)
			return out, hint, d
		case bucket.Behind:
			w.Behind++
			return later, message.Peer{}, d
		}
	}
	w.decidedAt(p, k, d, seq, now)
	if k.shared != nil {
		w.ownerDecides(p, k, a.charge, d, now)
	}
	if !k.sync || !d.Allowed {
		return decided, message.Peer{}, d
	}
	p.waiting = append(p.waiting, waiting{
		ask: a, hop: h, clusterID: p.set.ID, term: p.handoff.LocalTerm(a.key.partition), seq: seq, since: w.now,
	})
	p.handoff.Flush()
	w.turn(p, now)
	return unconfirmed, message.Peer{}, d
}

// direct returns where p forwards a check of part.
func (w *simCluster) direct(p *process, part int) (outcome, message.Peer) {
	owner := p.handoff.Owner(part)
	if owner == (message.Peer{}) && p.shown.Owner != nil && p.shown.Owner[part] >= 0 {
		owner = p.shown.Members[p.shown.Owner[part]]
	}
	return notOwner, owner
}

// waiting is an admitted check of a sync key whose answer waits for a replica.
type waiting struct {
	ask       *ask
	hop       *hop // nil if the client asked this node
	clusterID string
	term      uint64
	seq       uint64
	since     int64
}

// checkTimeout is how long a node waits for a replica before it gives up.
const checkTimeout = 500 * time.Millisecond

// release answers the checks that replicas have confirmed. A check that waits too long is retried and charged again.
func (w *simCluster) release(p *process) {
	waits := p.waiting
	p.waiting = nil
	for _, x := range waits {
		switch {
		case p.handoff.Confirmed(x.ask.key.partition) >= x.seq && p.handoff.LocalTerm(x.ask.key.partition) == x.term:
			acc := x.ask.key.account(x.clusterID)
			acc.released++
			w.judgeReleased(x.ask.key, acc)
			if x.hop != nil {
				w.reply(p, x.hop, decided, message.Peer{})
			} else {
				w.answered(x.ask)
			}
		case w.now-x.since <= int64(checkTimeout):
			p.waiting = append(p.waiting, x)
		case x.hop != nil:
			w.reply(p, x.hop, later, message.Peer{})
		default:
			w.again(x.ask)
		}
	}
}

// learned is a process and an epoch that it has learned of.
type learned struct {
	process *process
	epoch   message.Epoch
}

// noteLearned records the epochs that owners and granters report to p.
func (w *simCluster) noteLearned(p *process, e message.Envelope) {
	if e.To != p.self || e.ClusterID != p.set.ID {
		return
	}
	note := func(part int, gen uint64, boot string) {
		w.history(e.ClusterID, part).learned[learned{p, message.Epoch{Gen: gen, Boot: boot}}] = true
	}
	switch b := e.Body.(type) {
	case *message.OwnedPartitions:
		for _, x := range b.Partitions {
			note(x.Partition, x.Gen, e.From.Boot)
		}
	case *message.PendingGrants:
		for _, x := range b.Grants {
			note(x.Partition, x.Gen, x.Claimer.Boot)
		}
	case *message.ClaimResponse:
		for _, x := range b.Parts {
			for _, epoch := range []message.Epoch{x.Known, x.LastOwned, x.MaybeOwned} {
				note(x.Partition, epoch.Gen, epoch.Boot)
			}
		}
	}
}

// promiseForgotten reports whether the owner of t could not know of before: it had not learned of it, every process that owned or
// granted before was stopped or gone when the claim of t began, and one of them has crashed. Unless processes are stopped, no
// granter of the claim had learned of it either.
func (w *simCluster) promiseForgotten(h *history, before, t *term) bool {
	asked, claims := h.asked[t.state.Mark.Epoch]
	knew := func(p *process) bool {
		return p.runs() && !p.paused && (!claims || p == t.process || p.resumed <= asked)
	}
	if !w.stops && slices.ContainsFunc(h.granted[t.state.Mark.Epoch], func(p *process) bool { return h.learned[learned{p, before.state.Mark.Epoch}] }) {
		return false
	}
	all := append(slices.Clone(h.granted[before.state.Mark.Epoch]), before.process)
	return !h.learned[learned{t.process, before.state.Mark.Epoch}] && !slices.ContainsFunc(all, knew) &&
		slices.ContainsFunc(all, func(p *process) bool { return p.crashed })
}

// event is a scheduled event. Exactly one of do and transferBatch is set.
type event struct {
	at  int64
	seq uint64 // events at the same time run in the order of queueing
	do  func()
	// transferBatch is a message to deliver.
	transferBatch *controlMessage
}

// queue has the future events as a binary heap.
type queue struct {
	events []event
	seq    uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.events = append(q.events, e)
	h, i := q.events, len(q.events)-1
	for i > 0 {
		up := (i - 1) / 2
		if !before(&h[i], &h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() (event, bool) {
	h := q.events
	if len(h) == 0 {
		return event{}, false
	}
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	q.events = h
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < last && before(&h[down], &h[least]) {
				least = down
			}
		}
		if least == i {
			return first, true
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }
