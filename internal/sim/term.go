package sim

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/message"
)

// term is the time of one owner of a partition under one epoch, and what the model
// knows of its decisions.
type term struct {
	process   *process
	clusterID string
	state     handoff.State // as it began
	// before are the key's counts as it began, spent what each decision left.
	before []int64
	spent  [][]point
	// handed: another process was handed the partition from here, and answers for it.
	handed bool
	// last is the number of its last change that was decided.
	last uint64
	// unconfirmed are its changes that no copy has.
	unconfirmed []change
}

// point says that a key had spent so much as of a change.
type point struct {
	seq   uint64
	spent int64
}

// change is one that copies should have, by the owner's clock.
type change struct {
	seq uint64
	at  int64
}

// now returns what the key at place has spent by the last decision.
func (t *term) now(place int) int64 {
	if s := t.spent[place]; len(s) > 0 {
		return s[len(s)-1].spent
	}
	return t.before[place]
}

// asOf returns what the key at place had spent as of seq.
func (t *term) asOf(place int, seq uint64) int64 {
	s := t.spent[place]
	i := sort.Search(len(s), func(i int) bool { return s[i].seq > seq })
	if i == 0 {
		return t.before[place]
	}
	return s[i-1].spent
}

// history is what the simulated cluster knows of a partition in a cluster ID.
type history struct {
	byEpoch map[message.Epoch]*term
	// newest is the term of the highest epoch.
	newest *term
	// all are in the order in which they began.
	all []*term
	// partial are the epochs of states that were listed as partial in a claim.
	partial map[message.Epoch]bool
	// claimed are the generations that claims asked for, asked is since when, granted the processes that granted an epoch, told who was told of one.
	claimed map[claim]uint64
	asked   map[message.Epoch]int64
	granted map[message.Epoch][]*process
	told    map[told]bool
}

// claim names a claim.
type claim struct {
	by message.Peer
	id uint64
}

// chapter names a history.
type chapter struct {
	clusterID string
	partition int
}

// history returns what is known of part in a cluster ID.
func (w *simCluster) history(clusterID string, part int) *history {
	c := chapter{clusterID, part}
	h := w.histories[c]
	if h == nil {
		h = &history{
			byEpoch: map[message.Epoch]*term{}, partial: map[message.Epoch]bool{}, claimed: map[claim]uint64{}, asked: map[message.Epoch]int64{},
			granted: map[message.Epoch][]*process{}, told: map[told]bool{},
		}
		w.histories[c] = h
		w.chapters = append(w.chapters, c)
	}
	return h
}

// replaced reports whether from is a replica that had not all that its owner had decided: t, or one that it was handed over from until it came to t.
func (h *history) replaced(from message.Mark, t *term) bool {
	for t != nil && t.state.Mark.Epoch != from.Epoch && t.state.Mark.Epoch.Gen&(1<<message.Handoffs-1) != 0 {
		t = h.byEpoch[t.state.Start.Epoch]
	}
	return t != nil && t.state.Mark.Epoch == from.Epoch && from.Seq < t.last
}

// allNew reports whether the owner of before was lost, and the owner of t and all that granted its claim have started since: they are most of
// the voters, and none of them could know of before.
func (h *history) allNew(before, t *term) bool {
	lost := before.process.left
	old := func(p *process) bool { return lost == 0 || p.started < lost }
	return !old(t.process) && !slices.ContainsFunc(h.granted[t.state.Mark.Epoch], old)
}

// opens is called when p has become the owner of part, as state says.
func (w *simCluster) opens(p *process, part int, state handoff.State) {
	h, keys := w.history(p.set.ID, part), w.keysOf[part]
	t := &term{process: p, clusterID: p.set.ID, state: state, before: make([]int64, len(keys)), spent: make([][]point, len(keys))}
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
	if h.replaced(state.Start, before) {
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

// judgeContent holds what a new owner's table has against its start mark: all that was decided
// up to there.
func (w *simCluster) judgeContent(part int, t *term) {
	h := w.history(t.clusterID, part)
	start := t.state.Start
	// Who begins with a part names no change of that epoch.
	if start.Seq == 0 && start.Epoch != (message.Epoch{}) && (h.partial[start.Epoch] || t.process.torn[part] == start.Epoch) {
		w.Torn++
		return
	}
	from := h.byEpoch[start.Epoch]
	swapped := t.state.Mark.Epoch.Gen&(1<<message.Handoffs-1) != 0
	for i, k := range w.keysOf[part] {
		want := int64(0)
		if from != nil {
			want = from.asOf(i, start.Seq)
		}
		if k.request.Transient && !swapped {
			continue // copies do not have these
		}
		if t.before[i] < want {
			w.fail("I5 content", part, "%s begins at %s from %s with %d spent of %s; by then %d were", t.process,
				tellEpoch(t.state.Mark.Epoch), tellMark(start), t.before[i], k.name, want)
		}
	}
}

// judgeSwap wants a hand-off to start from the last change of the owner before.
func (w *simCluster) judgeSwap(part int, t *term) {
	start := t.state.Start
	from := w.history(t.clusterID, part).byEpoch[start.Epoch]
	switch {
	case from == nil:
		w.fail("I5 swap", part, "%s was handed the partition from %s, which nobody held", t.process, tellMark(start))
	case start.Seq >= from.last:
		from.handed = true
	default:
		w.fail("I5 swap", part, "%s was handed the partition as of %s; %s has decided up to %d", t.process, tellMark(start), from.process, from.last)
	}
}

// judgeChoice wants a claim to start from the best complete state that a process had which the claimer
// must have asked.
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

// together reports whether p and q have lived, heard and seen each other for so long.
func (w *simCluster) together(p, q *process, d time.Duration) bool {
	since := max(p.resumed, q.resumed, w.cutSince[p.place][q.place], w.cutSince[q.place][p.place],
		p.sights[q.place].since, q.sights[p.place].since)
	return !p.paused && !q.paused && w.net.reaches(p.place, q.place) && w.net.unwanted == nil &&
		p.sights[q.place].process == q && q.sights[p.place].process == p && w.now-since >= int64(d)
}

// confirm drops what a copy has from t's unconfirmed changes.
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
