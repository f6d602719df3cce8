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

// regions are what a node says of two others, of which us is in a state.
func regions(state facts.RegionState, reason string) []facts.Region {
	return []facts.Region{{Name: "us", State: state, Reason: reason, InState: time.Second}, {Name: "ap", State: facts.RegionLinked}}
}

// judged are changes of a healthy cluster, and what is said of it then: the status, and the first of the causes with its severity and document.
var judged = []struct {
	name, first, doc string
	status           HealthStatus
	change           func(m *Members, nodes []facts.Node)
}{
	{"all well", "", "", Healthy, func(*Members, []facts.Node) {}},
	{"this node has no quorum", "critical n1 may not decide: it hears 1 of 3 voters", "sluicewithoutquorum", NoQuorum, func(m *Members, _ []facts.Node) {
		m.MayDecide, m.Reason = false, "it hears 1 of 3 voters"
	}},
	{"what is told already is not repeated", "warning n3, a voter, is not heard", "sluicemembermissing", Degraded, func(m *Members, _ []facts.Node) {
		m.Members[2].Alive, m.Members[2].Silent = false, -1
		m.Unreached = []string{"n3 is a voter that gossip does not show"}
	}},
	{"a node is not reached", "warning n2 does not take connections", "sluicewithoutquorum", Degraded, func(m *Members, _ []facts.Node) {
		m.Unreached = []string{"n2 does not take connections"}
	}},
	{"another node has none", "critical n2 may not decide: it is isolated", "sluicewithoutquorum", Degraded, func(_ *Members, nodes []facts.Node) {
		nodes[1].MayDecide, nodes[1].Reason = false, "it is isolated"
	}},
	{"a voter is gone", "warning n3, a voter, has been silent for 12s", "sluicemembermissing", Degraded, func(m *Members, _ []facts.Node) {
		m.Members[2].Alive, m.Members[2].Silent = false, 12*time.Second
	}},
	{"a node does not report", "warning n3 did not report in time", "sluiceslow", Degraded, func(*Members, []facts.Node) {}},
	{
		"a region is not reached", "warning seen from n1, n2, region us is unreached: 10.0.0.1: refused", "/docs/internals/regions.md#reasons", Degraded,
		func(_ *Members, nodes []facts.Node) {
			nodes[0].Regions, nodes[1].Regions = regions(facts.RegionUnreached, "10.0.0.1: refused"), regions(facts.RegionUnreached, "10.0.0.1: refused")
		},
	},
	{"a region that was not asked yet", "", "", Healthy, func(_ *Members, nodes []facts.Node) {
		nodes[0].Regions = regions(facts.RegionUnknown, "")
	}},
	{"invalid rules", "warning n3 keeps its old rules: a.yaml:3: not YAML", "sluicerulesstale", StaleRules, func(_ *Members, nodes []facts.Node) {
		nodes[2].RulesError = "a.yaml:3: not YAML\nmore"
	}},
	{
		"different rules", "warning nodes have different rules: abc on n1, n2; abd on n3", "sluicerulesdiffer", StaleRules,
		func(_ *Members, nodes []facts.Node) { nodes[2].Rules = "abd" },
	},
	{
		"an old certificate", "warning the api certificate of n1 expires at 1970-01-01T00:01:00Z", "sluicecertificateends", Degraded,
		func(_ *Members, nodes []facts.Node) {
			nodes[0].Files = []facts.File{{Label: "api", Expires: 60, Left: 0.05}}
		},
	},
	{
		"an expired certificate, and a keyring that is not in force", "critical the api certificate of n1 has expired", "sluicecertificateends", Degraded,
		func(_ *Members, nodes []facts.Node) {
			nodes[0].Files = []facts.File{{Label: "gossip_keyring", Error: "line 1"}, {Label: "api", Expires: 60}}
		},
	},
	{
		"answers before deadlines", "warning n2 answers checks with short deadlines without their owners, 12 so far", "sluiceansweredbymargin", Degraded,
		func(_ *Members, nodes []facts.Node) { nodes[1].Early = 12 },
	},
	{"no access control", "notice n2: no --callers", "security.md#callers", Healthy, func(_ *Members, nodes []facts.Node) {
		nodes[1].Insecure = []string{"no --callers"}
	}},
	{"versions differ", "notice versions differ: v1 on n2, n3; v2 on n1", "sluiceversionsdiffer", Healthy, func(m *Members, _ []facts.Node) {
		m.Members[0].Version = "v2"
	}},
	{
		"partitions without a replica", "warning 7 partitions have no complete replica", "sluiceunprotected", Degraded,
		func(_ *Members, nodes []facts.Node) { nodes[1].PartitionCounts.Unprotected = 7 },
	},
	{"a node alone has no replicas", "", "", Healthy, func(m *Members, nodes []facts.Node) {
		m.Members, m.Set.Members = m.Members[:1], m.Set.Members[:1]
		nodes[0].PartitionCounts.Unprotected = 1021
	}},
	{
		"a clock is off", "warning the clock of n2 is off by -2.000s, more than --max-clock-skew 1s", "sluiceclockskew", Degraded,
		func(m *Members, _ []facts.Node) { m.Members[1].Ahead = new(-2 * time.Second) },
	},
	{"a clock is off by less than the node's own setting", "", "", Healthy, func(m *Members, _ []facts.Node) {
		m.Members[1].Ahead, m.Clocks.MaxSkew = new(-2*time.Second), 2*time.Second
	}},
	{
		"a rule denies after a loss", "warning the rule user of shop denies, for at most 1m0s, because counters are lost", "sluiceloststatedenied", Degraded,
		func(m *Members, _ []facts.Node) {
			m.LostRules = []LostRule{{Domain: "shop", Rule: "user", Left: time.Minute}}
		},
	},
	{
		"a snapshot was rejected, and counters are lost", "warning n2 started without its snapshot: damaged", "sluicesnapshotrejected", Degraded,
		func(_ *Members, nodes []facts.Node) {
			nodes[1].SnapshotLost, nodes[2].PartitionCounts.Lost = "damaged", 3
		},
	},
	{"a snapshot was rejected, and others have the counters", "", "", Healthy, func(_ *Members, nodes []facts.Node) {
		nodes[1].SnapshotLost = "damaged"
	}},
	{
		"a region lacks its majority",
		"warning seen from n1, region eu must not decide keys with the home us: it reaches less than half of the regions, or has just started",
		"internals/regions.md#reasons", Degraded,
		func(_ *Members, nodes []facts.Node) { nodes[0].Region, nodes[0].Undecided = "eu", []string{"us"} },
	},
}

func TestJudgeHealth(t *testing.T) {
	for _, c := range judged {
		m, nodes := healthyCluster()
		c.change(&m, nodes)
		var missing []string
		if c.name == "a node does not report" {
			missing = []string{"n3"}
		}
		h := JudgeHealth(m, nodes, missing)
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
