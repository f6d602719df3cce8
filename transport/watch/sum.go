package watch

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/limiter"
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
	last  map[string]*seen // by boot id
	slot  int64            // the present one
	total *line
	rules map[name]*line
}

// line has the counts of the facts.Slots slots before the present one, the oldest first, and of that.
type line struct {
	slots []facts.Counts
	now   facts.Counts
}

func newLine() *line { return &line{slots: make([]facts.Counts, facts.Slots)} }

// push ends the present slot, and skips n-1 whose counts are unknown; n is at most facts.Slots.
func (l *line) push(n int) {
	for range n {
		copy(l.slots, l.slots[1:])
		l.slots[facts.Slots-1], l.now = l.now, facts.Counts{}
	}
}

// counted reports whether a slot has any check.
func counted(slots []facts.Counts) bool {
	return slices.ContainsFunc(slots, func(c facts.Counts) bool { return c != facts.Counts{} })
}

func slotOf(at time.Time) int64 { return at.UnixNano() / int64(facts.SlotTime) }

// newSum begins with the histories that nodes report.
func newSum(at time.Time, nodes []facts.Node) *sum {
	s := &sum{last: make(map[string]*seen), slot: slotOf(at), total: newLine(), rules: make(map[name]*line)}
	for i := range nodes {
		n := &nodes[i]
		if n.Slot == 0 {
			continue
		}
		s.total.add(s.slot, n.Slot, n.History)
		for j := range n.ByRule {
			r := &n.ByRule[j]
			s.line(name{r.Domain, r.Name}).add(s.slot, n.Slot, r.History)
		}
	}
	return s
}

// add adds a history that ends with slot last to l, whose present slot is now.
func (l *line) add(now, last int64, history []facts.Counts) {
	for i, c := range history {
		at := last - int64(len(history)-1-i)     // its slot
		place := int64(facts.Slots) - (now - at) // facts.Slots-1 is the one before now
		if place >= 0 && place < facts.Slots {
			l.slots[place] = l.slots[place].Plus(c)
		}
	}
}

func (s *sum) line(n name) *line {
	l := s.rules[n]
	if l == nil {
		l = newLine()
		s.rules[n] = l
	}
	return l
}

// turn begins the slot of at. It returns the one before it, if that has ended.
func (s *sum) turn(at time.Time) *history {
	passed := slotOf(at) - s.slot
	if passed == 0 {
		return nil
	}
	s.slot += passed
	n := int(min(passed, facts.Slots))
	if passed < 0 {
		n = facts.Slots // the clock was set back
	}
	s.total.push(n)
	for name, l := range s.rules {
		if l.push(n); !counted(l.slots) {
			delete(s.rules, name)
		}
	}
	return s.history(1)
}

// history returns the last n slots, of all rules with any check in them.
func (s *sum) history(n int) *history {
	h := &history{
		Slot: facts.SlotTime.Seconds(), Until: float64(s.slot) * facts.SlotTime.Seconds(),
		Total: seriesOf(s.total.slots[facts.Slots-n:]), ByRule: []ruleSeries{},
	}
	for name, l := range s.rules {
		list := l.slots[facts.Slots-n:]
		if counted(list) {
			h.ByRule = append(h.ByRule, ruleSeries{name.domain, name.rule, seriesOf(list)})
		}
	}
	slices.SortFunc(h.ByRule, func(a, b ruleSeries) int { return name{a.Domain, a.Name}.compare(name{b.Domain, b.Name}) })
	return h
}

func seriesOf(list []facts.Counts) (s series) {
	for _, c := range list {
		r := perSecond(c, facts.SlotTime)
		s.Allowed, s.Denied = append(s.Allowed, r.Allowed), append(s.Denied, r.Denied)
		s.Shadowed, s.Failed = append(s.Shadowed, r.Shadowed), append(s.Failed, r.Failed)
	}
	return s
}

func perSecond(c facts.Counts, d time.Duration) rates {
	f := func(n uint64) float64 { return round(float64(n) / d.Seconds()) }
	return rates{f(c.Allowed), f(c.Denied), f(c.Shadowed), f(c.Failed)}
}

// round keeps numbers short on the wire: three digits behind the point.
func round(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }

// state adds the reports of nodes at this moment. Rates are over the time since the last report of each; the first of a
// process has none.
func (s *sum) state(at time.Time, m limiter.Members, nodes []facts.Node, missing []string) *state {
	out := &state{
		At: float64(at.UnixMilli()) / 1000, Self: m.Self, Ring: m.Ring, Partitions: m.Partitions,
		Missing: append([]string{}, missing...), Members: []memberJSON{}, ByRule: []ruleRates{},
	}
	if m.Set.Version > 0 {
		out.Set = &m.Set
	}
	var bounds []time.Duration
	var calls []uint64
	var spent time.Duration
	byRule := make(map[name]rates)
	reports := make(map[string]*own, len(nodes))
	living := make(map[string]*seen, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		now := &seen{at: at, node: *n, byRule: make(map[name]facts.Counts, len(n.ByRule))}
		for _, r := range n.ByRule {
			rule := name{r.Domain, r.Name}
			now.byRule[rule] = r.Counts
			if _, ok := byRule[rule]; !ok {
				byRule[rule] = rates{}
			}
		}
		living[n.Boot] = now
		o := &own{MayDecide: n.MayDecide, Reason: n.Reason, Rules: n.Rules, PartitionCounts: limiter.PartitionCounts(n.PartitionCounts)}
		reports[n.Boot] = o
		if n.Name == m.Self {
			out.Rules = n.Rules
		}
		before := s.last[n.Boot]
		if before == nil || !at.After(before.at) {
			continue
		}
		passed := at.Sub(before.at)
		all := n.All.Minus(before.node.All)
		s.total.now = s.total.now.Plus(all)
		rate := perSecond(all, passed)
		out.Total.add(rate)
		o.Checks = round(rate.Allowed + rate.Denied + rate.Shadowed + rate.Failed)
		for name, c := range now.byRule {
			b, known := before.byRule[name]
			d := c.Minus(b)
			if !known || d == (facts.Counts{}) {
				continue
			}
			l, r := s.line(name), byRule[name]
			l.now = l.now.Plus(d)
			r.add(perSecond(d, passed))
			byRule[name] = r
		}
		if l := n.Latency; len(l.Counts) == len(l.Bounds)+1 && len(l.Counts) == len(before.node.Latency.Counts) && (bounds == nil || slices.Equal(bounds, l.Bounds)) {
			if bounds == nil {
				bounds, calls = l.Bounds, make([]uint64, len(l.Counts))
			}
			for j, c := range l.Counts {
				calls[j] += c - min(c, before.node.Latency.Counts[j])
			}
			spent += max(0, l.Sum-before.node.Latency.Sum)
			out.Latency.Calls += float64(count(l.Counts)-min(count(l.Counts), count(before.node.Latency.Counts))) / passed.Seconds()
		}
	}
	out.Latency = latencyOf(round(out.Latency.Calls), bounds, calls, spent)
	for boot, before := range s.last {
		if living[boot] == nil && at.Sub(before.at) < forget {
			living[boot] = before
		}
	}
	s.last = living
	for n, r := range byRule {
		out.ByRule = append(out.ByRule, ruleRates{n.domain, n.rule, r})
	}
	slices.SortFunc(out.ByRule, func(a, b ruleRates) int { return name{a.Domain, a.Name}.compare(name{b.Domain, b.Name}) })
	for i := range m.Members {
		out.Members = append(out.Members, memberOf(&m.Members[i], reports))
	}
	return out
}

// forget is how long a process that does not respond is remembered, so that its next report has a rate.
const forget = 30 * time.Second

func (r *rates) add(q rates) {
	r.Allowed, r.Denied = round(r.Allowed+q.Allowed), round(r.Denied+q.Denied)
	r.Shadowed, r.Failed = round(r.Shadowed+q.Shadowed), round(r.Failed+q.Failed)
}

func memberOf(m *limiter.Member, reports map[string]*own) memberJSON {
	j := memberJSON{
		Name: m.Name, Boot: m.Boot, State: m.StateName(), Version: m.Version, Voter: m.Voter, Alive: m.Alive,
		Partitions: m.Partitions, Owned: m.Owned, Own: reports[m.Boot],
	}
	if m.Silent >= 0 {
		j.Silent = new(round(m.Silent.Seconds()))
	}
	return j
}

func count(list []uint64) (n uint64) {
	for _, c := range list {
		n += c
	}
	return n
}

// latencyOf returns mean and quantiles, in seconds, of a histogram. A quantile is the upper bound of its bucket, or the
// lower bound of the last bucket, which has no upper one.
func latencyOf(rate float64, bounds []time.Duration, counts []uint64, spent time.Duration) latency {
	n := count(counts)
	l := latency{Calls: rate}
	if n == 0 {
		return l
	}
	quantile := func(q float64) float64 {
		var below uint64
		for i, c := range counts {
			if below += c; float64(below) >= q*float64(n) {
				return bounds[min(i, len(bounds)-1)].Seconds()
			}
		}
		return bounds[len(bounds)-1].Seconds()
	}
	l.Mean, l.P50, l.P99 = spent.Seconds()/float64(n), quantile(0.5), quantile(0.99)
	return l
}
