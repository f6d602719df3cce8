package limiter

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
)

// healthyCluster is three nodes as n1 sees them, and their reports.
func healthyCluster() (Members, []facts.Node) {
	m := Members{Self: "n1", State: State{
		MayDecide: true, Set: VoterSet{Version: 3, Members: []string{"n1", "n2", "n3"}}, Clocks: Clocks{MaxSkew: time.Second, Known: true, Agree: true},
	}}
	var nodes []facts.Node
	for _, name := range m.Set.Members {
		m.Members = append(m.Members, Member{
			Member: member.Member{Name: name, State: member.Serving, GRPC: "127.0.0.1:1", Version: "v1"}, Voter: true, Alive: true,
		})
		nodes = append(nodes, facts.Node{Name: name, MayDecide: true, Rules: "abc"})
	}
	return m, nodes
}

func TestJudgeHealth(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(m *Members, nodes []facts.Node)
		missing []string
		status  HealthStatus
		first   string // of the causes, its severity before it
		doc     string
	}{
		{name: "all well", change: func(*Members, []facts.Node) {}, status: Healthy},
		{
			name:   "this node has no quorum",
			change: func(m *Members, _ []facts.Node) { m.MayDecide, m.Reason = false, "it hears 1 of 3 voters" },
			status: NoQuorum, first: "critical n1 may not decide: it hears 1 of 3 voters", doc: "sluicewithoutquorum",
		},
		{
			name: "what is told already is not repeated",
			change: func(m *Members, _ []facts.Node) {
				m.Members[2].Alive, m.Members[2].Silent = false, -1
				m.Unreached = []string{"n3 is a voter that gossip does not show"}
			},
			status: Degraded, first: "warning n3, a voter, is not heard", doc: "sluicemembermissing",
		},
		{
			name:   "a node is not reached",
			change: func(m *Members, _ []facts.Node) { m.Unreached = []string{"n2 does not take connections"} },
			status: Degraded, first: "warning n2 does not take connections", doc: "sluicewithoutquorum",
		},
		{
			name:   "another node has none",
			change: func(_ *Members, nodes []facts.Node) { nodes[1].MayDecide, nodes[1].Reason = false, "it is isolated" },
			status: Degraded, first: "critical n2 may not decide: it is isolated", doc: "sluicewithoutquorum",
		},
		{
			name: "a voter is gone",
			change: func(m *Members, _ []facts.Node) {
				m.Members[2].Alive, m.Members[2].Silent = false, 12*time.Second
			},
			missing: []string{"n3"}, status: Degraded, first: "warning n3, a voter, has been silent for 12s", doc: "sluicemembermissing",
		},
		{
			name: "a node does not report", change: func(*Members, []facts.Node) {}, missing: []string{"n3"},
			status: Degraded, first: "warning n3 did not report in time", doc: "sluiceslow",
		},
		{
			name: "a region is not reached",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[0].Regions = []facts.Region{{Name: "us", State: facts.RegionUnreached, Reason: "10.0.0.1: refused"}, {Name: "ap", State: facts.RegionLinked}}
				nodes[1].Regions = nodes[0].Regions
			},
			status: Degraded, first: "warning seen from n1, n2, region us is unreached: 10.0.0.1: refused", doc: "/docs/internals/regions.md#reasons",
		},
		{
			name: "a region that was not asked yet",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[0].Regions = []facts.Region{{Name: "us", State: facts.RegionUnknown, InState: time.Second}}
			},
			status: Healthy,
		},
		{
			name:   "invalid rules",
			change: func(_ *Members, nodes []facts.Node) { nodes[2].RulesError = "a.yaml:3: not YAML\nmore" },
			status: StaleRules, first: "warning n3 keeps its old rules: a.yaml:3: not YAML", doc: "sluicerulesstale",
		},
		{
			name:   "different rules",
			change: func(_ *Members, nodes []facts.Node) { nodes[2].Rules = "abd" },
			status: StaleRules, first: "warning nodes have different rules: abc on n1, n2; abd on n3", doc: "sluicerulesdiffer",
		},
		{
			name: "an old certificate",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[0].Files = []facts.File{{Label: "api", Expires: 60, Left: 0.05}}
			},
			status: Degraded, first: "warning the api certificate of n1 expires at 1970-01-01T00:01:00Z", doc: "sluicecertificateends",
		},
		{
			name: "an expired certificate, and a keyring that is not in force",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[0].Files = []facts.File{{Label: "gossip_keyring", Error: "line 1"}, {Label: "api", Expires: 60}}
			},
			status: Degraded, first: "critical the api certificate of n1 has expired", doc: "sluicecertificateends",
		},
		{
			name:   "answers before deadlines",
			change: func(_ *Members, nodes []facts.Node) { nodes[1].Early = 12 },
			status: Degraded, first: "warning n2 answers checks with short deadlines without their owners, 12 so far", doc: "sluiceansweredbymargin",
		},
		{
			name:   "no access control",
			change: func(_ *Members, nodes []facts.Node) { nodes[1].Insecure = []string{"no --callers"} },
			status: Healthy, first: "notice n2: no --callers", doc: "security.md#callers",
		},
		{
			name:   "versions differ",
			change: func(m *Members, _ []facts.Node) { m.Members[0].Version = "v2" },
			status: Healthy, first: "notice versions differ: v1 on n2, n3; v2 on n1", doc: "sluiceversionsdiffer",
		},
		{
			name:   "partitions without a replica",
			change: func(_ *Members, nodes []facts.Node) { nodes[1].PartitionCounts.Unprotected = 7 },
			status: Degraded, first: "warning 7 partitions have no complete replica", doc: "sluiceunprotected",
		},
		{
			name: "a node alone has no replicas",
			change: func(m *Members, nodes []facts.Node) {
				m.Members, m.Set.Members = m.Members[:1], m.Set.Members[:1]
				nodes[0].PartitionCounts.Unprotected = 1021
			},
			status: Healthy,
		},
		{
			name:   "a clock is off",
			change: func(m *Members, _ []facts.Node) { m.Members[1].Ahead = new(-2 * time.Second) },
			status: Degraded, first: "warning the clock of n2 is off by -2.000s, more than --max-clock-skew 1s", doc: "sluiceclockskew",
		},
		{
			name: "a clock is off by less than the node's own setting",
			change: func(m *Members, _ []facts.Node) {
				m.Members[1].Ahead, m.Clocks.MaxSkew = new(-2*time.Second), 2*time.Second
			},
			status: Healthy,
		},
		{
			name: "a rule denies after a loss",
			change: func(m *Members, _ []facts.Node) {
				m.LostRules = []LostRule{{Domain: "shop", Rule: "user", Left: time.Minute}}
			},
			status: Degraded, first: "warning the rule user of shop denies, for at most 1m0s, because counters are lost", doc: "sluiceloststatedenied",
		},
		{
			name: "a snapshot was rejected, and counters are lost",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[1].SnapshotLost, nodes[2].PartitionCounts.Lost = "damaged", 3
			},
			status: Degraded, first: "warning n2 started without its snapshot: damaged", doc: "sluicesnapshotrejected",
		},
		{
			name: "a snapshot was rejected, and others have the counters",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[1].SnapshotLost = "damaged"
			},
			status: Healthy,
		},
		{
			name: "a region lacks its majority",
			change: func(_ *Members, nodes []facts.Node) {
				nodes[0].Region, nodes[0].Undecided = "eu", []string{"us"}
			},
			status: Degraded, doc: "internals/regions.md#reasons",
			first: "warning seen from n1, region eu must not decide keys with the home us: it reaches less than half of the regions, or has just started",
		},
	} {
		m, nodes := healthyCluster()
		c.change(&m, nodes)
		h := JudgeHealth(m, nodes, c.missing)
		first := Cause{}
		if len(h.Causes) > 0 {
			first = h.Causes[0]
		}
		if h.Status != c.status || strings.TrimSpace(string(first.Severity)+" "+first.Text) != c.first || !strings.HasSuffix(first.Doc, c.doc) {
			t.Errorf("%s: %+v", c.name, h)
		}
		for _, x := range h.Causes {
			file, anchor, _ := strings.Cut(strings.TrimPrefix(x.Doc, DocsURL), "#")
			page, err := os.ReadFile("../docs/" + file)
			if err != nil || !regexp.MustCompile(`(?im)^#+ `+regexp.QuoteMeta(anchor)+`$`).Match(page) {
				t.Errorf("%s: %s has no such section: %v", c.name, x.Doc, err)
			}
		}
		if strings.HasPrefix(c.name, "what is told") && len(h.Causes) != 1 {
			t.Errorf("%s: %+v", c.name, h.Causes)
		}
		if want := map[bool]string{true: "Healthy: ", false: ": " + first.Text}[h.Status == Healthy]; !strings.Contains(h.Summary, want) {
			t.Errorf("%s: summary %q", c.name, h.Summary)
		}
	}
	m, nodes := healthyCluster()
	if h := JudgeHealth(m, nodes, nil); h.Summary != "Healthy: 3 of 3 nodes serve, quorum 2 of 3, every partition has its replicas" {
		t.Errorf("%q", h.Summary)
	}
}
