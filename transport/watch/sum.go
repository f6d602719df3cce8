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
func (s *sum) state(at time.Time, members limiter.Members, nodes []facts.Node, missing []string) *state {
	out := &state{
		At: float64(at.UnixMilli()) / 1000, Self: members.Self, Ring: members.Ring, Partitions: members.Partitions,
		Missing: append([]string{}, missing...), Members: []memberJSON{}, ByRule: []ruleRates{},
	}
	if members.Set.Version > 0 {
		out.Set = &members.Set
	}
	var sumOfCalls calls
	byRule := make(map[name]rates)
	reports := make(map[string]*own, len(nodes))
	living := make(map[string]*seen, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		now := newSeen(at, node, byRule)
		living[node.Boot] = now
		report := &own{MayDecide: node.MayDecide, Reason: node.Reason, Rules: node.Rules, PartitionCounts: node.PartitionCounts}
		reports[node.Boot] = report
		if node.Name == members.Self {
			out.Rules = node.Rules
		}
		before := s.last[node.Boot]
		if before == nil || !at.After(before.at) {
			continue
		}
		rate := s.addRates(before, now, byRule)
		out.Total.add(rate)
		report.Checks = round(rate.Allowed + rate.Denied + rate.Shadowed + rate.Failed)
		sumOfCalls.add(&node.Latency, &before.node.Latency, at.Sub(before.at))
	}
	out.Latency = sumOfCalls.latency()
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

// addRates adds the checks of a process between two of its reports to the present slot, and their rates to byRule. It returns
// the rate of all.
func (s *sum) addRates(before, now *seen, byRule map[name]rates) rates {
	passed := now.at.Sub(before.at)
	for rule, counts := range now.byRule {
		last, known := before.byRule[rule]
		added := counts.Minus(last)
		if !known || added == (facts.Counts{}) {
			continue
		}
		line, rate := s.line(rule), byRule[rule]
		line.now = line.now.Plus(added)
		rate.add(perSecond(added, passed))
		byRule[rule] = rate
	}
	all := now.node.All.Minus(before.node.All)
	s.total.now = s.total.now.Plus(all)
	return perSecond(all, passed)
}

// calls adds up the latency histograms of nodes with equal bounds.
type calls struct {
	bounds []time.Duration
	counts []uint64
	spent  time.Duration
	rate   float64 // calls a second
}

// add adds the calls between the histograms before and now of a node, which are the time passed apart.
func (c *calls) add(now, before *facts.Latency, passed time.Duration) {
	if len(now.Counts) != len(now.Bounds)+1 || len(now.Counts) != len(before.Counts) || c.bounds != nil && !slices.Equal(c.bounds, now.Bounds) {
		return
	}
	if c.bounds == nil {
		c.bounds, c.counts = now.Bounds, make([]uint64, len(now.Counts))
	}
	for i, n := range now.Counts {
		c.counts[i] += n - min(n, before.Counts[i])
	}
	c.spent += max(0, now.Sum-before.Sum)
	c.rate += float64(count(now.Counts)-min(count(now.Counts), count(before.Counts))) / passed.Seconds()
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

// latency returns mean and quantiles, in seconds. A quantile is the upper bound of its bucket, or the
// lower bound of the last bucket, which has no upper one.
func (c *calls) latency() latency {
	total := count(c.counts)
	l := latency{Calls: round(c.rate)}
	if total == 0 {
		return l
	}
	quantile := func(q float64) float64 {
		var below uint64
		for i, n := range c.counts {
			if below += n; float64(below) >= q*float64(total) {
				return c.bounds[min(i, len(c.bounds)-1)].Seconds()
			}
		}
		return c.bounds[len(c.bounds)-1].Seconds()
	}
	l.Mean, l.P50, l.P99 = c.spent.Seconds()/float64(total), quantile(0.5), quantile(0.99)
	return l
}
