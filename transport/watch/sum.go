package watch

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
)

// name is a rule's.
type name struct{ domain, rule string }

func (n name) compare(m name) int {
	return cmp.Or(cmp.Compare(n.domain, m.domain), cmp.Compare(n.rule, m.rule))
}

// seen is the last report of a process.
type seen struct {
	at     time.Time
	node   facts.Node
	byRule map[name]facts.Counts
}

// sum adds up the reports of nodes. It is not safe for concurrent use.
type sum struct {
	last   map[string]*seen // by boot id
	slots  map[int64]*slot
	newest int64           // the last slot that has ended, 0 before the first
	bounds []time.Duration // of the latency histograms
}

// slot has the checks of one slot of time, as the nodes that know it have counted them.
type slot struct {
	nodes   map[string]bool // by boot id
	members int             // the size of the cluster
	total   facts.Counts
	byRule  map[name]facts.Counts
	calls   []uint64 // by the buckets of their latency
}

func newSum() *sum { return &sum{last: make(map[string]*seen), slots: make(map[int64]*slot)} }

// settle is how long after its end a slot is reported: the clocks of nodes differ a little. Slots of nodes whose clocks are further
// behind are added later.
const settle = 500 * time.Millisecond

// shown is the number of slots in EventHistory. Nodes have two more, of which one has not ended and one has not settled.
const shown = facts.Slots - 2

// due returns how many slots have to be requested from nodes at this time: all at first and, at the end of a slot, those that have
// ended since, with two more for nodes that have not responded in time. 0 is none.
func (s *sum) due(at time.Time) int {
	newest := at.Add(-settle).UnixNano()/int64(facts.SlotTime) - 1
	passed := newest - s.newest
	if passed == 0 {
		return 0
	}
	s.newest = newest
	if passed < 0 || passed > facts.Slots { // the first, or the clock was set
		clear(s.slots)
		return facts.Slots
	}
	return int(min(passed+2, facts.Slots))
}

// addHistory adds the slots that node reports, each once. Slots that it does not know are left out.
func (s *sum) addHistory(node *facts.Node) {
	for i, c := range node.History {
		at := node.Slot - int64(len(node.History)-1-i)
		if i >= len(node.Members) || node.Members[i] == 0 || at <= s.newest-facts.Slots || at > s.newest+facts.Slots {
			continue
		}
		one := s.slots[at]
		if one == nil {
			one = &slot{nodes: make(map[string]bool), byRule: make(map[name]facts.Counts)}
			s.slots[at] = one
		}
		one.members = max(one.members, node.Members[i])
		if one.nodes[node.Boot] {
			continue
		}
		one.nodes[node.Boot] = true
		one.total = one.total.Plus(c)
		for j := range node.ByRule {
			if r := &node.ByRule[j]; i < len(r.History) && r.History[i] != (facts.Counts{}) {
				n := name{r.Domain, r.Name}
				one.byRule[n] = one.byRule[n].Plus(r.History[i])
			}
		}
		if i < len(node.Calls) {
			s.addCalls(one, node.Calls[i], &node.Latency)
		}
	}
}

// addCalls adds a node's calls to a slot, if its buckets are those of the other nodes.
func (s *sum) addCalls(to *slot, calls []uint64, l *facts.Latency) {
	if s.bounds == nil {
		s.bounds = l.Bounds
	}
	if len(calls) != len(l.Bounds)+1 || !slices.Equal(s.bounds, l.Bounds) {
		return
	}
	if to.calls == nil {
		to.calls = make([]uint64, len(calls))
	}
	for i, n := range calls {
		to.calls[i] += n
	}
}

// history returns the n newest slots that have ended, of all rules with any check in them.
func (s *sum) history(n int) *history {
	h := &history{Slot: facts.SlotTime.Seconds(), Until: float64(s.newest+1) * facts.SlotTime.Seconds(), Total: newSeries(n), ByRule: []ruleSeries{}}
	byRule := make(map[name]series)
	for i := range n {
		at := s.newest - int64(n-1-i)
		one := s.slots[at]
		if one == nil {
			one = &slot{}
		}
		h.Nodes, h.Members = append(h.Nodes, len(one.nodes)), append(h.Members, one.members)
		h.Total.set(i, one.total)
		h.P50, h.P95, h.P99 = append(h.P50, s.quantile(one.calls, 0.5)), append(h.P95, s.quantile(one.calls, 0.95)), append(h.P99, s.quantile(one.calls, 0.99))
		for rule, c := range one.byRule {
			if _, ok := byRule[rule]; !ok {
				byRule[rule] = newSeries(n)
			}
			byRule[rule].set(i, c)
		}
	}
	for rule, list := range byRule {
		h.ByRule = append(h.ByRule, ruleSeries{rule.domain, rule.rule, list})
	}
	slices.SortFunc(h.ByRule, func(a, b ruleSeries) int { return name{a.Domain, a.Name}.compare(name{b.Domain, b.Name}) })
	for at := range s.slots {
		if at <= s.newest-facts.Slots {
			delete(s.slots, at)
		}
	}
	return h
}

// quantile estimates a quantile of calls, in seconds, by interpolation within its bucket; it is at most the largest bound. nil
// without calls.
func (s *sum) quantile(calls []uint64, q float64) *float64 {
	var all, below, lower float64
	for _, n := range calls {
		all += float64(n)
	}
	if all == 0 {
		return nil
	}
	for i, bound := range s.bounds {
		n, upper := float64(calls[i]), bound.Seconds()
		if n > 0 && below+n >= q*all {
			return new(math.Round(1e6*(lower+(upper-lower)*(q*all-below)/n)) / 1e6)
		}
		below, lower = below+n, upper
	}
	return &lower
}

func newSeries(n int) series {
	return series{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
}

// set sets slot i to c.
func (s series) set(i int, c facts.Counts) {
	r := perSecond(c, facts.SlotTime)
	s.Allowed[i], s.Denied[i], s.Shadowed[i], s.Failed[i] = r.Allowed, r.Denied, r.Shadowed, r.Failed
}

func perSecond(c facts.Counts, d time.Duration) rates {
	f := func(n uint64) float64 { return round(float64(n) / d.Seconds()) }
	return rates{f(c.Allowed), f(c.Denied), f(c.Shadowed), f(c.Failed)}
}

// round keeps numbers short on the wire: three digits behind the point.
func round(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }

// state adds the reports of nodes at this moment. Rates are over the time since the last report of each; those of the first report
// of a process are not known.
func (s *sum) state(at time.Time, members limiter.Members, nodes []facts.Node, missing []string) *state {
	out := &state{
		At: float64(at.UnixMilli()) / 1000, Self: members.Self, Ring: members.Ring, Partitions: members.Partitions,
		Health:  limiter.JudgeHealth(members, nodes, missing),
		Missing: append([]string{}, missing...), Members: []memberJSON{}, ByRule: []ruleRates{},
	}
	if members.Set.Version > 0 {
		out.Set = &members.Set
	}
	byRule := make(map[name]rates)
	reports := make(map[string]*own, len(nodes))
	living := make(map[string]*seen, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		now := newSeen(at, node, byRule)
		living[node.Boot] = now
		report := &own{
			MayDecide: node.MayDecide, Reason: node.Reason, Rules: node.Rules, PartitionCounts: node.PartitionCounts,
			Uptime: math.Floor(node.Uptime.Seconds()), Keys: node.Keys, Bytes: node.Bytes, MaxBytes: node.MaxBytes,
		}
		reports[node.Boot] = report
		if node.Name == members.Self {
			out.Rules = node.Rules
		}
		before := s.last[node.Boot]
		if before == nil || !at.After(before.at) {
			continue
		}
		rate := addRates(before, now, byRule)
		if out.Total == nil {
			out.Total = &rates{}
		}
		out.Total.add(rate)
		report.Checks = new(round(rate.Allowed + rate.Denied + rate.Shadowed + rate.Failed))
	}
	for boot, before := range s.last {
		if living[boot] == nil && at.Sub(before.at) < forget {
			living[boot] = before
		}
	}
	s.last = living
	for rule, rate := range byRule {
		out.ByRule = append(out.ByRule, ruleRates{rule.domain, rule.rule, rate})
	}
	slices.SortFunc(out.ByRule, func(a, b ruleRates) int { return name{a.Domain, a.Name}.compare(name{b.Domain, b.Name}) })
	for i := range members.Members {
		out.Members = append(out.Members, memberOf(&members.Members[i], reports))
	}
	for _, r := range facts.RegionsOf(nodes) {
		out.Regions = append(out.Regions, regionJSON{r.Name, r.Self, r.State, math.Floor(r.InState.Seconds()), r.Linked, r.Of, math.Round(1e6*r.RTT.Seconds()) / 1e6, r.Weight, r.DecidedBy, r.Undecided, r.Reason})
	}
	return out
}

// newSeen returns the report of node, and adds its rules to byRule.
func newSeen(at time.Time, node *facts.Node, byRule map[name]rates) *seen {
	now := &seen{at: at, node: *node, byRule: make(map[name]facts.Counts, len(node.ByRule))}
	for _, r := range node.ByRule {
		rule := name{r.Domain, r.Name}
		now.byRule[rule] = r.Counts
		if _, ok := byRule[rule]; !ok {
			byRule[rule] = rates{}
		}
	}
	return now
}

// addRates adds the rates of a process between two of its reports to byRule. It returns the rate of all.
func addRates(before, now *seen, byRule map[name]rates) rates {
	passed := now.at.Sub(before.at)
	for rule, counts := range now.byRule {
		last, known := before.byRule[rule]
		if !known {
			continue
		}
		rate := byRule[rule]
		rate.add(perSecond(counts.Minus(last), passed))
		byRule[rule] = rate
	}
	return perSecond(now.node.All.Minus(before.node.All), passed)
}

// forget is how long a process that does not respond is remembered, so that its next report has a rate.
const forget = 30 * time.Second

func (r *rates) add(q rates) {
	r.Allowed, r.Denied = round(r.Allowed+q.Allowed), round(r.Denied+q.Denied)
	r.Shadowed, r.Failed = round(r.Shadowed+q.Shadowed), round(r.Failed+q.Failed)
}

func memberOf(m *limiter.Member, reports map[string]*own) memberJSON {
	j := memberJSON{
		Name: m.Name, Boot: m.Boot, Address: m.GRPC, Zone: m.Zone, State: m.StateName(), Version: m.Version, Voter: m.Voter, Alive: m.Alive,
		Partitions: m.Partitions, Owned: m.Owned, Own: reports[m.Boot],
	}
	if m.Silent >= 0 {
		j.Silent = new(round(m.Silent.Seconds()))
	}
	return j
}
