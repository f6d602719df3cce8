package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// Violation is the first invariant that a run violated.
type Violation struct {
	Invariant string
	// Partition is the affected partition, -1 if none or all.
	Partition int
	// At is the simulated time.
	At   time.Duration
	What string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s, at %v: %s", v.Invariant, v.At.Round(time.Microsecond), v.What)
}

// fail records the run's first violation, which ends the run.
func (w *simCluster) fail(invariant string, part int, format string, args ...any) {
	if w.violation != nil {
		return
	}
	w.violation = &Violation{invariant, part, time.Duration(w.now), fmt.Sprintf(format, args...)}
	w.tell(part, "VIOLATED %s", w.violation)
}

// gateAge is the age of the oldest unconfirmed change at which an owner stops deciding, on a fast network.
const gateAge = 50 * time.Millisecond

// standing is what short stalls of processes add to the measured minimum round-trip time.
const standing = int64(100 * time.Millisecond)

// decidedAt is called for every decision.
func (w *simCluster) decidedAt(p *process, k *key, d bucket.Decision, seq uint64, now int64) {
	w.Decisions++
	t := p.terms[k.partition]
	if t == nil {
		if w.without.seal {
			w.judgeAlone(p, k.partition)
		}
		w.fail("I1", k.partition, "%s decides %s and does not hold its partition", p, k.name)
		return
	}
	w.judgeAlone(p, k.partition)
	if k.brief != nil || k.shared != nil {
		if k.brief != nil {
			w.judgeBrief(p, k, d)
		}
		if d.Allowed {
			t.last = max(t.last, seq)
			w.awaits(p, t, k, seq, now)
		}
		return
	}
	spent := k.limit - d.Remaining
	if w.trace != nil {
		w.trace.add(line{w.now, fmt.Sprintf("%s decides %s: %v, spent %d, change %d, confirmed %d", p, k.name, d.Allowed, spent, seq,
			p.handoff.Confirmed(k.partition)), 1 << k.partition, true})
	}
	before := t.now(k.place)
	if d.Allowed {
		before = min(before+1, k.limit)
	}
	if spent < before {
		w.fail("I5 in place", k.partition, "%s decides %s: spent %d, while its own decisions make it %d", p, k.name, spent, before)
	}
	w.judgeGate(p, t, k, now)
	if !d.Allowed {
		if n := int64(len(k.account(t.clusterID).charges)); w.exact && n < k.limit {
			w.fail("I6", k.partition, "%s denies %s after %d of %d", p, k.name, n, k.limit)
		}
		return
	}
	acc := k.account(t.clusterID)
	acc.charges = append(acc.charges, charge{w.now, p})
	if t != w.history(t.clusterID, k.partition).newest {
		acc.lost++ // every process that knew the higher epoch is gone or isolated, and its history counts
	}
	t.spent[k.place] = append(t.spent[k.place], point{seq, spent})
	t.last = max(t.last, seq)
	w.awaits(p, t, k, seq, now)
	if !k.sync {
		acc.released++
	}
	w.judgeExcess(k, acc)
}

// awaits notes that change seq of k must be confirmed, if it must: without a gate there is no replica
// that could.
func (w *simCluster) awaits(p *process, t *term, k *key, seq uint64, now int64) {
	if !k.request.Unreplicated && p.handoff.Gate(k.partition) != 0 {
		t.unconfirmed = append(t.unconfirmed, change{seq, now})
	}
}

// judgeGate requires that no decision is made while a change is unconfirmed for too long.
func (w *simCluster) judgeGate(p *process, t *term, k *key, now int64) {
	if k.request.Unreplicated {
		return
	}
	t.confirm(p.handoff.Confirmed(k.partition))
	if len(t.unconfirmed) == 0 {
		return
	}
	if p.handoff.Gate(k.partition) == 0 {
		return
	}
	gate := int64(max(p.handoff.Gate(k.partition), gateAge))
	if most := int64(gateAge) + 2*(w.net.roundTrip()+standing); gate > most {
		w.fail("gate", k.partition, "%s bears with %v where the network allows %v", p, time.Duration(gate), time.Duration(most))
	}
	w.longestGate = max(w.longestGate, gate)
	if first := t.unconfirmed[0]; now-first.at > gate {
		w.fail("gate", k.partition, "%s decides %s while its change %d is unconfirmed for %v", p, k.name, first.seq, time.Duration(now-first.at))
	}
}

// could reports whether p, if not paused, could decide part now.
func (w *simCluster) could(p *process, part int) bool {
	if !p.runs() || w.clock(p) >= p.quorum.QuorumUntil() {
		return false
	}
	r := w.keysOf[part][0].request
	r.Verb = bucket.Read
	_, _, v := p.table.Try(w.clock(p), &r, nil)
	return v != bucket.Sealed
}

// judgeAlone requires that no process but p can decide part (I1).
func (w *simCluster) judgeAlone(p *process, part int) {
	for _, q := range w.procs {
		if q != nil && q != p && q.set.ID == p.set.ID && w.could(q, part) && !w.outwaited(q, p.set.Version+1) && !w.outwaited(p, q.set.Version+1) && !w.estranged {
			w.fail("I1", part, "%s and %s could both decide", p, q)
		}
	}
}

// outwaited reports whether q, which knows this version or a later one, was stopped while a process started and waited for it
// as long as a restarted voter does. Then q continues in a set of its own when it wakes.
func (w *simCluster) outwaited(q *process, version uint64) bool {
	late := func(r *process) bool {
		return r != nil && r.started > q.stopped && r.started+int64(w.forgetAfter) < w.now
	}
	yes := q.paused && q.set.Version >= version && slices.ContainsFunc(w.procs, late)
	w.estranged = w.estranged || yes
	return yes
}

// watch is called after every step of p.
func (w *simCluster) watch(p *process) {
	w.watchSet(p)
	if r := p.handoff.Routes(); r != p.routes || p.routes == 0 {
		p.routes = r
		w.watchHeld(p)
	}
	for _, q := range w.procs {
		if q == nil || q == p {
			continue
		}
		for both := q.mask & p.mask; both != 0; both &= both - 1 {
			part := bits.TrailingZeros64(both)
			if w.could(p, part) {
				w.judgeAlone(p, part)
			}
		}
	}
	w.judgeOneSet(p)
	if len(p.waiting) > 0 {
		w.release(p)
	}
}

// judgeOneSet requires that only one cluster ID has quorum at a time.
func (w *simCluster) judgeOneSet(p *process) {
	if w.apart || p.set.Zero() || w.clock(p) >= p.quorum.QuorumUntil() {
		return
	}
	w.quorate[p.set.ID] = true
	for _, q := range w.procs {
		if q != nil && q.set.ID != p.set.ID && !q.set.Zero() && w.clock(q) < q.quorum.QuorumUntil() {
			w.fail("one set", general, "%s has quorum in %s, and %s in %s", p, tellSet(p.set), q, tellSet(q.set))
		}
	}
}

// watchHeld records where p has become owner or has stopped being owner.
func (w *simCluster) watchHeld(p *process) {
	w.states = p.handoff.States(w.states[:0])
	held := uint64(0)
	for _, s := range w.states {
		if !p.handoff.Owns(s.Partition) {
			continue
		}
		held |= 1 << s.Partition
		if t := p.terms[s.Partition]; t == nil || t.state.Mark.Epoch != s.Mark.Epoch {
			p.mask |= 1 << s.Partition
			w.opens(p, s.Partition, s)
		}
	}
	for gone := p.mask &^ held; gone != 0; gone &= gone - 1 {
		part := bits.TrailingZeros64(gone)
		w.tell(part, "%s holds p%d no longer", p, part)
		p.terms[part] = nil
	}
	p.mask = held
}

// watchSet requires that all processes agree on every version of the set, and that no process goes back from a confirmed set.
func (w *simCluster) watchSet(p *process) {
	s, unconfirmed := p.quorum.Set(), p.unconfirmed
	p.unconfirmed = p.quorum.Unconfirmed()
	if s.Version == p.set.Version && s.ID == p.set.ID {
		return
	}
	w.tell(general, "%s knows set %s", p, tellSet(s))
	// A founding that never had quorum is undone, or given up for a set with quorum. The stale set has no other member left.
	undone := p.set.Version == 1 && !w.quorate[p.set.ID] && (s.Zero() || w.quorate[s.ID]) || p.set.ID == staleID
	if !p.set.Zero() && !unconfirmed && !undone && !s.Outranks(p.set) {
		w.fail("set", general, "%s goes from %s to %s", p, tellSet(p.set), tellSet(s))
	}
	if s.ID != p.set.ID && !p.set.Zero() && !unconfirmed && !undone && !w.apart {
		w.fail("set", general, "%s knew cluster ID %s and now knows %s", p, tellSet(p.set), tellSet(s))
	}
	if p.set = s; s.Zero() {
		return
	}
	name := version{s.ID, s.Version}
	if known, ok := w.sets[name]; !ok {
		w.sets[name] = s.Members
		if old, ok := w.sets[version{s.ID, s.Version - 1}]; ok && differ(old, s.Members) != 1 {
			w.fail("set", general, "versions %d and %d are more than one name apart: %v, %v", s.Version-1, s.Version, old, s.Members)
		}
	} else if !slices.Equal(known, s.Members) && !w.estranged && !w.forgotten(p, s) {
		w.fail("set", general, "two sets are %s: %v, and at %s %v", tellSet(s), known, p, s.Members)
	}
}

// forgotten reports whether p is the only process left that knows this version of the set or a later one: all its members have
// crashed, and the restarted ones continue from the last known version.
func (w *simCluster) forgotten(p *process, s message.Set) bool {
	for _, q := range w.procs {
		if q != nil && q != p && q.set.ID == s.ID && q.set.Version >= s.Version && !w.outwaited(q, s.Version) {
			return false
		}
	}
	for name := range w.sets {
		if name.clusterID == s.ID && name.number >= s.Version {
			delete(w.sets, name)
		}
	}
	w.tell(general, "nobody knew %s any more", tellSet(s))
	w.sets[version{s.ID, s.Version}] = s.Members
	return true
}

// version identifies one version of a cluster ID.
type version struct {
	clusterID string
	number    uint64
}

// differ counts the names that are in only one of a and b.
func differ(a, b []string) (n int) {
	for _, x := range a {
		if !slices.Contains(b, x) {
			n++
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			n++
		}
	}
	return n
}

// sampling is the interval at which the simulated cluster checks which processes could decide.
const sampling = 50 * time.Millisecond

// sample records for how long no process could decide a partition under load.
func (w *simCluster) sample() {
	for part := range w.partitions {
		if slices.ContainsFunc(w.procs, func(p *process) bool { return p != nil && !p.paused && w.could(p, part) }) {
			w.idle[part] = 0
			continue
		}
		if w.idle[part] += sampling; w.idle[part] > w.Gap {
			w.Gap = w.idle[part]
		}
	}
	w.after(sampling, w.sample)
}

// note inspects the messages that p sends.
func (w *simCluster) note(p *process, e message.Envelope) {
	switch b := e.Body.(type) {
	case *message.OwnedPartitions:
		for _, x := range b.Partitions {
			w.history(e.ClusterID, x.Partition).inSync[message.Epoch{Gen: x.Gen, Boot: p.self.Boot}] = x.InSync
		}
	case *message.Claim:
		for _, c := range b.Parts {
			h := w.history(e.ClusterID, c.Partition)
			h.claimed[claim{p.self, b.ID}] = c.Gen
			if epoch := (message.Epoch{Gen: c.Gen, Boot: p.self.Boot}); h.asked[epoch] == 0 {
				h.asked[epoch] = w.now
			}
		}
	case *message.ClaimResponse:
		for _, part := range b.Parts {
			h := w.history(e.ClusterID, part.Partition)
			if part.Has == message.Partial {
				h.partial[part.State.Epoch] = true
			}
			epoch := message.Epoch{Gen: h.claimed[claim{e.To, b.ID}], Boot: e.To.Boot}
			if part.OK && !b.Probe && !slices.Contains(h.granted[epoch], p) {
				h.granted[epoch] = append(h.granted[epoch], p)
			}
		}
	}
}

// notePortions records which states p has received only partly: the sender may be lost before the end, and then a partial state
// is better than none.
func (w *simCluster) notePortions(p *process, e message.Envelope) {
	b, ok := e.Body.(*message.TransferBatch)
	if !ok || e.To != p.self || b.N != p.taken[e.From]+1 {
		return
	}
	p.taken[e.From] = b.N
	for _, part := range b.Parts {
		if part.Kind != message.Answer && part.Kind != message.InitialSync {
			continue
		}
		torn := message.Epoch{}
		if !p.handoff.Owns(part.Partition) {
			if s, ok := p.handoff.State(part.Partition); ok && !s.Complete {
				torn = s.Mark.Epoch
			}
		}
		p.torn[part.Partition] = torn
	}
}

// copies counts the complete copies of part at other processes that stay. level requires them to have all counts of the owner,
// except unreplicated ones.
func (w *simCluster) copies(owner *process, part int, level bool) (n int) {
	for _, q := range w.procs {
		if q != nil && q != owner && q.state != member.Leaving && w.hasCopy(q, owner, part, level) {
			n++
		}
	}
	return n
}

// hasCopy reports whether q has a complete copy of part, owned by owner.
func (w *simCluster) hasCopy(q, owner *process, part int, level bool) bool {
	s := w.state(q, part)
	if !s.Complete || s.Mark.Epoch != w.state(owner, part).Mark.Epoch {
		return false
	}
	return !level || !slices.ContainsFunc(w.keysOf[part], func(k *key) bool {
		return !k.request.Unreplicated && w.spent(q, k) < w.spent(owner, k)
	})
}

// state returns p's state of part.
func (w *simCluster) state(p *process, part int) handoff.State {
	w.states = p.handoff.States(w.states[:0])
	for _, s := range w.states {
		if s.Partition == part {
			return s
		}
	}
	return handoff.State{}
}
