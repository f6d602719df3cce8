package limiter

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// history has the counts of rules in the last slots of time. It reads plain counters once a slot, and takes 2 KB a rule. Safe
// for concurrent use.
type history struct {
	mu struct {
		sync.Mutex
		active *activeRules // of tracks
		all    track
		tracks []*track
		slot   int64 // the present one, 0 before the first

		size    int              // of the cluster, since the beginning of the present slot
		last    []uint64         // calls by the buckets of their latency, at the beginning of the present slot
		members [facts.Slots]int // as facts.Node.Members; slot n is at n % facts.Slots
		calls   [facts.Slots][]uint64
	}
}

// track is one rule's, or that of all.
type track struct {
	name   ruleName
	counts *counts
	last   facts.Counts              // at the beginning of the present slot
	ring   [facts.Slots]facts.Counts // slot n is at n % facts.Slots
}

func (c *counts) load() facts.Counts {
	t := c.results()
	return facts.Counts{Allowed: t.passed(), Denied: t[ResultDenied], Shadowed: t[ResultShadowed], Failed: t[ResultError]}
}

// advance ends the slots that are over at now. If that is more than one, it is not known which checks were in which, and they are
// unknown. After the clock was set back the history restarts. calls are those since the start, by the buckets of their latency.
func (h *history) advance(now time.Time, active *activeRules, all *counts, calls []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.active != active {
		h.followLocked(active, all)
	}
	from, to := h.mu.slot, now.UnixNano()/int64(facts.SlotTime)
	if to == from {
		return
	}
	lost := to - from - 1 // slots that are unknown, from the present one on
	if lost < 0 || lost > facts.Slots {
		lost = facts.Slots
	}
	h.mu.all.advance(to, lost)
	for _, t := range h.mu.tracks {
		t.advance(to, lost)
	}
	for s := max(0, to-1-lost); s < to; s++ {
		h.mu.members[s%facts.Slots] = 0
	}
	if lost == 0 {
		i := from % facts.Slots
		h.mu.members[i] = h.mu.size
		h.mu.calls[i] = slices.Grow(h.mu.calls[i][:0], len(calls))
		for b, n := range calls {
			h.mu.calls[i] = append(h.mu.calls[i], n-h.mu.last[b])
		}
	}
	h.mu.slot, h.mu.last = to, calls
}

// setSize sets the size of the cluster in the present slot.
func (h *history) setSize(members int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.size = members
}

// advance ends the slot before slot to, which gets the counts, unless that slot and as many before it as are lost are unknown.
func (t *track) advance(to, lost int64) {
	now := t.counts.load()
	for s := max(0, to-1-lost); s < to; s++ {
		t.ring[s%facts.Slots] = facts.Counts{}
	}
	if lost == 0 {
		t.ring[(to-1)%facts.Slots] = now.Minus(t.last)
	}
	t.last = now
}

// followLocked follows the rules of active. Rules that stay keep their history.
func (h *history) followLocked(active *activeRules, all *counts) {
	before := make(map[*counts]*track, len(h.mu.tracks))
	for _, t := range h.mu.tracks {
		before[t.counts] = t
	}
	if h.mu.all.counts == nil {
		h.mu.all.counts, h.mu.all.last = all, all.load()
	}
	h.mu.active, h.mu.tracks = active, nil
	names := slices.SortedFunc(maps.Keys(active.counts.byName), ruleName.compare)
	for _, name := range names[:min(len(names), facts.MaxHistories)] {
		c := active.counts.byName[name]
		t := before[c]
		if t == nil {
			t = &track{name: name, counts: c, last: c.load()}
		}
		h.mu.tracks = append(h.mu.tracks, t)
	}
}

// copyTo copies the newest slots before the present one to n and its rules.
func (h *history) copyTo(n *facts.Node, slots int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.slot == 0 {
		return
	}
	n.Slot = h.mu.slot - 1
	first := max(0, n.Slot-int64(min(slots, facts.Slots-1))+1) // the present one has the place of the oldest
	n.History = h.mu.all.slots(first, n.Slot)
	for s := first; s <= n.Slot; s++ {
		n.Members = append(n.Members, h.mu.members[s%facts.Slots])
		n.Calls = append(n.Calls, slices.Clone(h.mu.calls[s%facts.Slots]))
	}
	of := make(map[ruleName]*track, len(h.mu.tracks))
	for _, t := range h.mu.tracks {
		of[t.name] = t
	}
	for i := range n.ByRule {
		if t := of[ruleName{n.ByRule[i].Domain, n.ByRule[i].Name}]; t != nil {
			n.ByRule[i].History = t.slots(first, n.Slot)
		}
	}
}

// slots returns the slots from first to last.
func (t *track) slots(first, last int64) []facts.Counts {
	out := make([]facts.Counts, 0, last-first+1)
	for s := first; s <= last; s++ {
		out = append(out, t.ring[s%facts.Slots])
	}
	return out
}

// RunHistory keeps the history of what rules count, until ctx ends.
func (l *Limiter) RunHistory(ctx context.Context) error {
	for {
		now := time.Now()
		_, latency := l.apiLatencies()
		l.history.advance(now, l.rules.Load(), &l.results, latency.Counts)
		l.history.setSize(max(1, len(membersOf(l.config.Cluster.Overview(ctx)).Members)))
		if !pause.For(ctx, time.Until(now.Truncate(facts.SlotTime).Add(facts.SlotTime))) {
			return nil
		}
	}
}

// FactsHere is this node's report of itself, with the newest slots of its history. Name, Boot and what is not the limiter's are
// empty.
func (l *Limiter) FactsHere(ctx context.Context, slots int) facts.Node {
	o := l.config.Cluster.Overview(ctx)
	active := l.rules.Load()
	_, latency := l.apiLatencies()
	n := l.reportOf(&o.State)
	n.All, n.Latency = l.results.load(), facts.Latency(latency)
	n.ByRule = make([]facts.Rule, 0, len(active.counts.byName))
	for name, c := range active.counts.byName {
		n.ByRule = append(n.ByRule, facts.Rule{Domain: name.domain, Name: name.name, Counts: c.load()})
	}
	name := func(r *facts.Rule) ruleName { return ruleName{r.Domain, r.Name} }
	if len(n.ByRule) > facts.MaxRules { // those with the most checks
		slices.SortFunc(n.ByRule, func(a, b facts.Rule) int {
			return cmp.Or(cmp.Compare(b.Sum(), a.Sum()), name(&a).compare(name(&b)))
		})
		n.ByRule = n.ByRule[:facts.MaxRules]
	}
	slices.SortFunc(n.ByRule, func(a, b facts.Rule) int { return name(&a).compare(name(&b)) })
	if slots > 0 {
		l.history.copyTo(&n, slots)
	}
	return n
}
