package limiter

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/facts"
)

// history has the counts of rules in the last slots of time. It reads plain counters once a slot, and takes 1.9 KB a rule. Safe
// for concurrent use.
type history struct {
	mu struct {
		sync.Mutex
		active *activeRules // of tracks
		all    track
		tracks []*track
		slot   int64 // the present one, 0 before the first
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
	return facts.Counts{Allowed: c.allowed.Load(), Denied: c.denied.Load(), Shadowed: c.shadowed.Load(), Failed: c.errors.Load()}
}

// advance ends the slots that are over at now.
func (h *history) advance(now time.Time, active *activeRules, all *counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.active != active {
		h.followLocked(active, all)
	}
	slot := now.UnixNano() / int64(facts.SlotTime)
	if slot == h.mu.slot {
		return
	}
	first := h.mu.slot == 0
	h.mu.all.advance(h.mu.slot, slot, first)
	for _, t := range h.mu.tracks {
		t.advance(h.mu.slot, slot, first)
	}
	h.mu.slot = slot
}

// advance ends slot from, which gets the counts, and begins slot to. Those between are unknown and stay empty. After the clock was
// set back the history restarts.
func (t *track) advance(from, to int64, first bool) {
	now := t.counts.load()
	if to < from || to-from >= facts.Slots {
		t.ring = [facts.Slots]facts.Counts{}
	} else if !first {
		for s := from + 1; s <= to; s++ {
			t.ring[s%facts.Slots] = facts.Counts{}
		}
	}
	if !first && to > from {
		t.ring[from%facts.Slots] = now.Minus(t.last)
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

// copyTo copies the slots before the present one to n and its rules.
func (h *history) copyTo(n *facts.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.slot == 0 {
		return
	}
	n.Slot = h.mu.slot - 1
	n.History = h.mu.all.slots(n.Slot)
	of := make(map[ruleName]*track, len(h.mu.tracks))
	for _, t := range h.mu.tracks {
		of[t.name] = t
	}
	for i := range n.ByRule {
		if t := of[ruleName{n.ByRule[i].Domain, n.ByRule[i].Name}]; t != nil {
			n.ByRule[i].History = t.slots(n.Slot)
		}
	}
}

// slots returns the slots up to last, the oldest first. The present one has the place of the oldest.
func (t *track) slots(last int64) []facts.Counts {
	out := make([]facts.Counts, 0, facts.Slots-1)
	for s := max(0, last-facts.Slots+2); s <= last; s++ {
		out = append(out, t.ring[s%facts.Slots])
	}
	return out
}

// RunHistory keeps the history of what rules count, until ctx ends.
func (l *Limiter) RunHistory(ctx context.Context) error {
	for {
		now := time.Now()
		l.history.advance(now, l.rules.Load(), &l.results)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(now.Truncate(facts.SlotTime).Add(facts.SlotTime).Sub(now)):
		}
	}
}

// FactsHere is this node's report of itself, with the history of its rules or without. Name and Boot are empty.
func (l *Limiter) FactsHere(ctx context.Context, history bool) facts.Node {
	o := l.config.Cluster.Overview(ctx)
	active := l.rules.Load()
	_, latency := l.apiLatencies()
	n := facts.Node{
		Rules: active.hash, MayDecide: o.MayDecide, Reason: o.Reason, PartitionCounts: o.PartitionCounts,
		All: l.results.load(), Latency: facts.Latency(latency),
	}
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
	if history {
		l.history.copyTo(&n)
	}
	return n
}
