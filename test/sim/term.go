package sim

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/message"
)

// term is an ownership term: one owner of a partition under one epoch, and the model's data of its decisions.
type term struct {
	process   *process
	clusterID string
	state     handoff.State // at its beginning
	// before are the keys' counts at the beginning, spent the counts after each decision.
	before []int64
	spent  [][]point
	// began is the simulated time.
	began int64
	// handed: the partition was handed off, so the next owner is judged for it.
	handed bool
	// last is the number of its last decided change.
	last uint64
	// unconfirmed are its changes that no replica has.
	unconfirmed []change
}

// point is the count of a key as of a change.
type point struct {
	seq   uint64
	spent int64
}

// change is a change to be replicated, with the owner's clock.
type change struct {
	seq uint64
	at  int64
}

// now returns the count of the key at place after the last decision.
func (t *term) now(place int) int64 {
	if s := t.spent[place]; len(s) > 0 {
		return s[len(s)-1].spent
	}
	return t.before[place]
}

// asOf returns the count of the key at place as of seq.
func (t *term) asOf(place int, seq uint64) int64 {
	s := t.spent[place]
	i := sort.Search(len(s), func(i int) bool { return s[i].seq > seq })
	if i == 0 {
		return t.before[place]
	}
	return s[i-1].spent
}

// history is the model's data of a partition in a cluster ID.
type history struct {
	byEpoch map[message.Epoch]*term
	// newest is the term of the highest epoch.
	newest *term
	// all are the terms in the order of their beginning.
	all []*term
	// partial are the epochs of states that were offered as partial to a claim.
	partial map[message.Epoch]bool
	// inSync are the newest in-sync replicas that an owner has announced.
	inSync map[message.Epoch]message.InSync
	// claimed are the generations of claims, asked when they were sent, granted the processes that granted an epoch,
	// learned the processes that learned of one.
	claimed map[claim]uint64
	asked   map[message.Epoch]int64
	granted map[message.Epoch][]*process
	learned map[learned]bool
}

// claim identifies a claim.
type claim struct {
	by message.Peer
	id uint64
}

// chapter identifies a history.
type chapter struct {
	clusterID string
	partition int
}

// history returns the data of part in a cluster ID.
func (w *simCluster) history(clusterID string, part int) *history {
	c := chapter{clusterID, part}
	h := w.histories[c]
	if h == nil {
		h = &history{
			byEpoch: map[message.Epoch]*term{}, partial: map[message.Epoch]bool{}, inSync: map[message.Epoch]message.InSync{}, claimed: map[claim]uint64{}, asked: map[message.Epoch]int64{},
			granted: map[message.Epoch][]*process{}, learned: map[learned]bool{},
		}
		w.histories[c] = h
		w.chapters = append(w.chapters, c)
	}
	return h
}

// replaced reports whether from is a replica that lacked decisions of its owner: of t, or of the owner that handed off to t,
// directly or through others.
func (h *history) replaced(from message.Mark, t *term) bool {
	for t != nil && t.state.Mark.Epoch != from.Epoch && t.state.Mark.Epoch.Gen&(1<<message.Handoffs-1) != 0 {
		t = h.byEpoch[t.state.Start.Epoch]
	}
	return t != nil && t.state.Mark.Epoch == from.Epoch && from.Seq < t.last
}

// restartedSince reports whether a process has crashed since then, or has left and started again: it
// may have been the only one left that knew which replicas were out of date.
func (w *simCluster) restartedSince(then int64) bool {
	return slices.ContainsFunc(w.every, func(p *process) bool {
		return !p.runs() && p.left >= then && (p.crashed || w.procs[p.place] != nil)
	})
}

// allNew reports whether the owner of before was lost, and the owner of t and all granters of its claim have started since:
// they are a majority of the voters, and none of them could know of before.
func (h *history) allNew(before, t *term) bool {
	lost := before.process.left
	old := func(p *process) bool { return lost == 0 || p.started < lost }
	return !old(t.process) && !slices.ContainsFunc(h.granted[t.state.Mark.Epoch], old)
}

// opens is called when p has become the owner of part.
func (w *simCluster) opens(p *process, part int, state handoff.State) {
	h, keys := w.history(p.set.ID, part), w.keysOf[part]
	t := &term{process: p, clusterID: p.set.ID, state: state, began: w.now, before: make([]int64, len(keys)), spent: make([][]point, len(keys))}
	t.last = state.Mark.Seq
	for i, k := range keys {
		t.before[i] = w.spent(p, k)
	}
	w.tell(part, "%s holds p%d at %s, from %s, spent %v", p, part, tellEpoch(state.Mark.Epoch), tellMark(state.Start), t.before)
	if other := h.byEpoch[state.Mark.Epoch]; other != nil {
		w.fail("epoch", part, "%s holds at %s, which began before at %s", p, tellEpoch(state.Mark.Epoch), other.process)
	}
	before := h.newest
	h.byEpoch[state.Mark.Epoch], p.terms[part] = t, t
	h.all = append(h.all, t)
	if before != nil && state.Start.Epoch.Less(before.state.Mark.Epoch) && (w.forgets || w.promiseForgotten(h, before, t) || h.allNew(before, t)) {
		w.outdated |= 1 << part
	}
	if before != nil && state.Mark.Epoch.Less(before.state.Mark.Epoch) && before.process.runs() {
		return // it comes too late, and cannot get quorum before it has heard of the other
	}
	h.newest = t
	if before == nil {
		return
	}
	if h.replaced(state.Start, before) && w.restartedSince(before.began) {
		w.outdated |= 1 << part
	}
	claimed := state.Mark.Epoch.Gen&(1<<message.Handoffs-1) == 0
	if claimed {
		w.Claims++
	}
	w.judgeContent(part, t)
	if claimed {
		w.judgeChoice(part, t)
	} else {
		w.Handoffs++
		w.judgeSwap(part, t)
	}
	for i, k := range keys {
		if lost := before.now(i) - t.before[i]; lost > 0 {
			k.account(t.clusterID).lost += lost
			w.tell(part, "%d of %s are lost", lost, k.name)
		}
	}
}

// judgeContent compares a new owner's table with its start mark: it must have all decisions up to there.
func (w *simCluster) judgeContent(part int, t *term) {
	h := w.history(t.clusterID, part)
	start := t.state.Start
	// An owner that starts with a partial state names no change of that epoch.
	if start.Seq == 0 && start.Epoch != (message.Epoch{}) && (h.partial[start.Epoch] || t.process.torn[part] == start.Epoch) {
		w.Torn++
		return
	}
	from := h.byEpoch[start.Epoch]
	afterHandoff := t.state.Mark.Epoch.Gen&(1<<message.Handoffs-1) != 0
	for i, k := range w.keysOf[part] {
		want := int64(0)
		if from != nil {
			want = from.asOf(i, start.Seq)
		}
		if k.request.Unreplicated && !afterHandoff {
			continue // replicas do not have these
		}
		if t.before[i] < want {
			w.fail("I5 content", part, "%s begins at %s from %s with %d spent of %s; by then %d were", t.process,
				tellEpoch(t.state.Mark.Epoch), tellMark(start), t.before[i], k.name, want)
		}
	}
}

// judgeSwap requires a handoff to start from the last change of the previous owner.
func (w *simCluster) judgeSwap(part int, t *term) {
	start := t.state.Start
	from := w.history(t.clusterID, part).byEpoch[start.Epoch]
	switch {
	case from == nil:
		w.fail("I5 handoff", part, "%s was handed the partition from %s, which nobody held", t.process, tellMark(start))
	case start.Seq >= from.last:
		from.handed = true
	default:
		w.fail("I5 handoff", part, "%s was handed the partition as of %s; %s has decided up to %d", t.process, tellMark(start), from.process, from.last)
	}
}

// judgeChoice requires a claim to start from the best complete state of all processes that the claimer must have asked.
func (w *simCluster) judgeChoice(part int, t *term) {
	c := t.process
	for _, q := range w.procs {
		if q == nil || q == c || q.set.ID != c.set.ID || !w.together(c, q, 4*time.Second) {
			continue
		}
		for _, s := range q.handoff.States(nil) {
			if s.Partition == part && s.Complete && s.Mark.Epoch.Less(t.state.Mark.Epoch) && t.state.Start.Compare(s.Mark) < 0 {
				w.fail("claim", part, "%s claimed from %s, while %s has the complete state %s", c, tellMark(t.state.Start), q, tellMark(s.Mark))
			}
		}
	}
}

// together reports whether p and q have lived, heard and seen each other for d.
func (w *simCluster) together(p, q *process, d time.Duration) bool {
	since := max(p.resumed, q.resumed, w.cutSince[p.place][q.place], w.cutSince[q.place][p.place],
		p.sights[q.place].since, q.sights[p.place].since)
	return !p.paused && !q.paused && w.net.reaches(p.place, q.place) && w.net.unwanted == nil &&
		p.sights[q.place].process == q && q.sights[p.place].process == p && w.now-since >= int64(d)
}

// confirm removes t's changes that a replica has.
func (t *term) confirm(upTo uint64) {
	if upTo == math.MaxUint64 {
		t.unconfirmed = t.unconfirmed[:0]
		return
	}
	n := 0
	for n < len(t.unconfirmed) && t.unconfirmed[n].seq <= upTo {
		n++
	}
	t.unconfirmed = t.unconfirmed[:copy(t.unconfirmed, t.unconfirmed[n:])]
}
