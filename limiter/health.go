package limiter

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
)

// HealthStatus is the state of the cluster in one word, as one node sees it.
type HealthStatus string

// The values of HealthStatus, the best first.
const (
	Healthy    HealthStatus = "healthy"
	StaleRules HealthStatus = "stale_rules" // nodes decide by different rules, or by older ones than their files have
	Degraded   HealthStatus = "degraded"    // the cluster decides, with less redundancy or exactness than it is configured for
	NoQuorum   HealthStatus = "no_quorum"   // the node that judges may not decide: on_partition does
)

// statusWords are the words for a status that people see.
type statusWords struct {
	status HealthStatus
	words  string
}

// statuses are in order, the best first.
var statuses = []statusWords{{Healthy, "Healthy"}, {StaleRules, "Stale rules"}, {Degraded, "Degraded"}, {NoQuorum, "No quorum"}}

// Severity says how much a Cause matters.
type Severity string

// The values of Severity. Notices do not change the status.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Notice   Severity = "notice"
)

// Cause is one reason of a Health. Doc is the URL of the page to read.
type Cause struct {
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	Doc      string   `json:"doc"`
}

// Health is the judgement of the cluster that `sluice status`, `sluice members`, the APIs and the console share.
type Health struct {
	Status HealthStatus `json:"status"`
	// Summary is one line: the status in words, and its first cause or, if it is healthy, the size of the cluster.
	Summary string `json:"summary"`
	// Causes are sorted by severity, the worst first; never nil.
	Causes []Cause `json:"causes"`
}

// DocsURL is where the pages of the documentation are.
const DocsURL = "https://github.com/sluicecluster/sluice/blob/main/docs/"

// lifeLeft is the share of a certificate's life below which it should have been replaced.
const lifeLeft = 0.1

// JudgeHealth judges the cluster as the node of m sees it. nodes are reports of nodes about themselves, its own among them, and
// missing are the other nodes that gave none in time; without the others' reports it judges by m alone.
func JudgeHealth(m Members, nodes []facts.Node, missing []string) Health {
	h := Health{Status: Healthy, Causes: []Cause{}}
	serving := 0
	for i := range m.Members {
		if x := &m.Members[i]; x.Alive && x.Serves() {
			serving++
		}
	}
	if !m.MayDecide {
		h.add(NoQuorum, Critical, "sluicewithoutquorum", "%s may not decide: %s", m.Self, cmp.Or(m.Reason, "it gives no reason"))
	}
	h.judgeMembers(&m, missing)
	h.judgeReports(&m, nodes)
	h.judgePartitions(nodes, serving)
	h.judgeClocks(&m)
	h.judgeRegions(&m, nodes)
	rank := []Severity{Critical, Warning, Notice}
	slices.SortStableFunc(h.Causes, func(a, b Cause) int {
		return cmp.Compare(slices.Index(rank, a.Severity), slices.Index(rank, b.Severity))
	})
	for _, s := range statuses {
		if s.status == h.Status {
			h.Summary = s.words + ": "
		}
	}
	if h.Status == Healthy {
		h.Summary += fmt.Sprintf("%d of %d nodes serve, quorum %d of %d", serving, len(m.Members), len(m.Set.Members)/2+1, len(m.Set.Members))
		if serving > 1 {
			h.Summary += ", every partition has its replicas"
		}
		return h
	}
	h.Summary += h.Causes[0].Text
	return h
}

// judgeRegions judges the links to other regions. Reports that say the same of a region are one cause.
func (h *Health) judgeRegions(m *Members, nodes []facts.Node) {
	byText := map[string][]string{}
	for i := range nodes {
		for _, r := range nodes[i].Regions {
			if text := r.Problem(); text != "" {
				byText[text] = append(byText[text], cmp.Or(nodes[i].Name, m.Self))
			}
		}
		for _, home := range nodes[i].Undecided {
			text := fmt.Sprintf("region %s must not decide keys with the home %s: it reaches less than half of the regions, or has just started", nodes[i].Region, home)
			byText[text] = append(byText[text], cmp.Or(nodes[i].Name, m.Self))
		}
	}
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		h.add(Degraded, Warning, "../internals/regions.md#reasons", "seen from %s, %s", strings.Join(byText[text], ", "), text)
	}
}

// add adds a cause that makes the status at least s. anchor is that of docs/operate/troubleshooting.md, or a page and its anchor.
func (h *Health) add(s HealthStatus, severity Severity, anchor, format string, args ...any) {
	if !strings.Contains(anchor, "#") {
		anchor = "troubleshooting.md#" + anchor
	}
	h.Causes = append(h.Causes, Cause{severity, fmt.Sprintf(format, args...), DocsURL + path.Join("operate", anchor)})
	at := func(of HealthStatus) int {
		return slices.IndexFunc(statuses, func(one statusWords) bool { return one.status == of })
	}
	if at(s) > at(h.Status) {
		h.Status = s
	}
}

func (h *Health) judgeMembers(m *Members, missing []string) {
	versions := map[string][]string{}
	for i := range m.Members {
		switch x := &m.Members[i]; {
		case !x.Alive && x.Voter && x.Silent > 0:
			h.add(Degraded, Warning, "sluicemembermissing", "%s, a voter, has been silent for %v", x.Name, x.Silent.Round(time.Second))
		case !x.Alive && x.Voter:
			h.add(Degraded, Warning, "sluicemembermissing", "%s, a voter, is not heard", x.Name)
		case !x.Alive:
		case slices.Contains(missing, x.Name):
			h.add(Degraded, Warning, "sluiceslow", "%s did not report in time", x.Name)
		case x.Serves():
			versions[x.Version] = append(versions[x.Version], x.Name)
		}
	}
	if len(versions) > 1 {
		h.add(Healthy, Notice, "sluiceversionsdiffer", "versions differ: %s", groups(versions))
	}
	for _, line := range m.Unreached {
		if line == m.Reason || slices.ContainsFunc(m.Members, func(x Member) bool { return !x.Alive && x.Voter && strings.HasPrefix(line, x.Name+" ") }) {
			continue // there is a cause of it
		}
		h.add(Degraded, Warning, "sluicewithoutquorum", "%s", line)
	}
}

// groups lists names by value, as "v1 on n1, n2; v2 on n3".
func groups(byValue map[string][]string) string {
	var parts []string
	for value, names := range byValue {
		slices.Sort(names)
		parts = append(parts, cmp.Or(value, "none")+" on "+strings.Join(names, ", "))
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

func (h *Health) judgeReports(m *Members, nodes []facts.Node) {
	byRules := map[string][]string{}
	lost := slices.ContainsFunc(nodes, func(n facts.Node) bool { return n.PartitionCounts.Lost > 0 })
	for i := range nodes {
		n := &nodes[i]
		name := cmp.Or(n.Name, m.Self)
		if !n.MayDecide && name != m.Self {
			h.add(Degraded, Critical, "sluicewithoutquorum", "%s may not decide: %s", name, cmp.Or(n.Reason, "it gives no reason"))
		}
		byRules[n.Rules] = append(byRules[n.Rules], name)
		if n.RulesError != "" {
			first, _, _ := strings.Cut(n.RulesError, "\n")
			h.add(StaleRules, Warning, "sluicerulesstale", "%s keeps its old rules: %s", name, first)
		}
		for _, f := range n.Files {
			switch {
			case f.Error != "":
				h.add(Degraded, Warning, "sluicesecretsstale", "%s keeps the old %s files: %s", name, f.Label, f.Error)
			case f.Expires != 0 && f.Left <= 0:
				h.add(Degraded, Critical, "sluicecertificateends", "the %s certificate of %s has expired", f.Label, name)
			case f.Expires != 0 && f.Left < lifeLeft:
				h.add(Degraded, Warning, "sluicecertificateends", "the %s certificate of %s expires at %s", f.Label, name,
					time.Unix(f.Expires, 0).UTC().Format(time.RFC3339))
			}
		}
		if lost && n.SnapshotLost != "" {
			h.add(Degraded, Warning, "sluicesnapshotrejected", "%s started without its snapshot: %s", name, n.SnapshotLost)
		}
		if n.Early > 0 {
			h.add(Degraded, Warning, "sluiceansweredbymargin", "%s answers checks with short deadlines without their owners, %d so far", name, n.Early)
		}
		for _, text := range n.Insecure {
			h.add(Healthy, Notice, "security.md#callers", "%s: %s", name, text)
		}
	}
	if len(byRules) > 1 {
		h.add(StaleRules, Warning, "sluicerulesdiffer", "nodes have different rules: %s", groups(byRules))
	}
	for _, r := range m.LostRules {
		h.add(Degraded, Warning, "sluiceloststatedenied", "the rule %s of %s denies, for at most %v, because counters are lost", r.Rule, r.Domain, r.Left.Round(time.Second))
	}
}

// judgePartitions judges the partitions of all nodes with a report. A node alone has no replicas, and needs none.
func (h *Health) judgePartitions(nodes []facts.Node, serving int) {
	var all facts.PartitionCounts
	for i := range nodes {
		p := &nodes[i].PartitionCounts
		all.Unprotected += p.Unprotected
		all.BelowReplicas += p.BelowReplicas
		all.TakingOver += p.TakingOver
		all.Divergent += p.Divergent
		all.Lost += p.Lost
	}
	for _, c := range []struct {
		n            int
		anchor, text string
	}{
		{all.Lost, "sluicestatelost", "partitions were taken over without their counters"},
		{all.TakingOver, "sluicetakeoverstuck", "partitions have no owner, their takeover is in progress"},
		{all.Unprotected, "sluiceunprotected", "partitions have no complete replica"},
		{max(0, all.BelowReplicas-all.Unprotected), "sluiceunprotected", "partitions have fewer replicas than --replicas"},
		{all.Divergent, "sluicedivergentstate", "divergent states are not merged yet"},
	} {
		if c.n > 0 && (serving > 1 || c.anchor != "sluiceunprotected") {
			h.add(Degraded, Warning, c.anchor, "%d %s", c.n, c.text)
		}
	}
}

func (h *Health) judgeClocks(m *Members) {
	if m.Clocks.Known && !m.Clocks.Agree {
		h.add(Degraded, Critical, "sluiceclocksdisagree", "no majority of the voters' clocks agrees")
	}
	for i := range m.Members {
		x := &m.Members[i]
		if x.Ahead != nil && x.Ahead.Abs() > m.Clocks.MaxSkew {
			h.add(Degraded, Warning, "sluiceclockskew", "the clock of %s is off by %+.3fs, more than --max-clock-skew %v", x.Name, x.Ahead.Seconds(), m.Clocks.MaxSkew)
		}
	}
}

// Status is the health of the cluster, and what it is judged by.
type Status struct {
	// Members.Health is judged by all reports.
	Members Members
	// Nodes are the reports of all nodes, sorted by name; Missing are the nodes that gave none in time.
	Nodes   []facts.Node
	Missing []string
}

// Status implements Service.
func (l *Limiter) Status(ctx context.Context) Status {
	s := Status{Members: l.Members(ctx)}
	s.Nodes, s.Missing = l.config.Cluster.AskFacts(ctx, 0)
	own := l.FactsHere(ctx, 0)
	own.Name = s.Members.Self
	s.Nodes = append(s.Nodes, own)
	slices.SortFunc(s.Nodes, func(a, b facts.Node) int { return cmp.Compare(a.Name, b.Name) })
	s.Members.Health = JudgeHealth(s.Members, s.Nodes, s.Missing)
	return s
}
