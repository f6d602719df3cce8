package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// TestPlace: the ring is of those who serve and live; who copies is the owner without this
// process; and tables of the same members are kept.
func TestPlace(t *testing.T) {
	c := ring.Config{Partitions: 31}
	none, err := ring.Build(c, nil)
	must(t, err)
	last := &assignment{table: none, withoutSelf: none}
	sceneOf := func(dead string, v member.View) *liveMembers {
		nodes, self := nodesOf(v, message.Peer{Name: "b", Boot: bootOf("b")})
		for i := range nodes {
			nodes[i].lives = nodes[i].name != dead
		}
		return &liveMembers{1, nodes, self}
	}
	leaving := viewOf(1, "a", "b", "c")
	leaving.Members[1].State = member.Leaving
	for _, x := range []struct {
		name             string
		scene            *liveMembers
		members          []string
		serving, without string
		built            bool
	}{
		{"alone", sceneOf("", viewOf(1, "b")), []string{"b"}, "b", "", true},
		{"three", sceneOf("", viewOf(1, "c", "a", "b")), []string{"a", "b", "c"}, "abc", "ac", true},
		{"the same three", sceneOf("", viewOf(2, "a", "b", "c")), []string{"a", "b", "c"}, "abc", "ac", false},
		{"one is dead", sceneOf("c", viewOf(2, "a", "b", "c")), []string{"a", "b"}, "ab", "a", true},
		{"leaving", sceneOf("", leaving), []string{"a", "b", "c"}, "ac", "ac", true},
	} {
		p := assign(c, x.scene, last)
		if p.err != nil {
			t.Fatal(p.err)
		}
		var members []string
		for _, m := range p.view.Members {
			members = append(members, m.Name)
		}
		if !slices.Equal(members, x.members) || p.changed != x.built {
			t.Errorf("%s: members %v, built=%v", x.name, members, p.changed)
		}
		if got := strings.Join(p.table.Members(), ""); got != x.serving {
			t.Errorf("%s: the ring is of %s, want %s", x.name, got, x.serving)
		}
		if got := strings.Join(p.withoutSelf.Members(), ""); got != x.without {
			t.Errorf("%s: the ring of copies is of %s, want %s", x.name, got, x.without)
		}
		for i := range p.view.Owner {
			if got := nameAt(p.view.Members, p.view.Owner[i]); got != p.table.Owner(i) {
				t.Errorf("%s: partition %d is for %q, want %q", x.name, i, got, p.table.Owner(i))
			}
			if got := nameAt(p.view.Members, p.view.Replica[i]); got != p.withoutSelf.Owner(i) || got == "b" {
				t.Errorf("%s: partition %d has its copy at %q, want %q", x.name, i, got, p.withoutSelf.Owner(i))
			}
		}
		last = p
	}
	if p := assign(c, sceneOf("z", viewOf(9, "b", "")), last); p.err == nil {
		t.Error("a ring with a nameless member")
	}
}

func nameAt(members []message.Peer, i int) string {
	if i < 0 {
		return ""
	}
	return members[i].Name
}

// TestOwners: checks go to the owner that is known and lives, else to the assigned owner.
func TestOwners(t *testing.T) {
	n := newTestCluster(t, "a", "b", "c").nodes["a"]
	nodes, self := nodesOf(viewOf(1, "a", "b", "c"), n.runner.self)
	for i := range nodes {
		nodes[i].lives = nodes[i].name != "c"
	}
	r := newRouting(nodes, self, n.Ring())
	owner := func(p int) string { return n.Ring().Owner(p) }
	for _, x := range []struct {
		name  string
		owner message.Peer
		want  func(p int) string
	}{
		{"unknown", message.Peer{}, owner},
		{"this one", n.runner.self, func(int) string { return "a" }},
		{"another", message.Peer{Name: "b", Boot: bootOf("b")}, func(int) string { return "b" }},
		{"restarted since", message.Peer{Name: "b", Boot: "before"}, owner},
		{"dead", message.Peer{Name: "c", Boot: bootOf("c")}, owner},
		{"an unauthenticated client", message.Peer{Name: "z", Boot: bootOf("z")}, owner},
	} {
		r.setOwners(func(int) message.Peer { return x.owner })
		for p := range r.owners {
			if got := r.nameOf(int(r.owners[p])); got != x.want(p) {
				t.Errorf("%s: partition %d is asked of %q, want %q", x.name, p, got, x.want(p))
			}
		}
	}
}

// TestNodesOf: a process sees itself under its name, whatever the view says.
func TestNodesOf(t *testing.T) {
	self := message.Peer{Name: "b", Boot: bootOf("b")}
	twin := viewOf(1, "a", "b")
	twin.Members[1].Boot = "another process"
	for name, v := range map[string]member.View{
		"shown": viewOf(1, "c", "b", "a"), "not shown": viewOf(1, "a", "c"), "another process": twin, "no view": {},
	} {
		nodes, at := nodesOf(v, self)
		if nodes[at].peer() != self || !nodes[at].lives {
			t.Errorf("%s: %+v at %d", name, nodes, at)
		}
		if (nodes[at].state == member.Serving) != (name == "shown") {
			t.Errorf("%s: %v", name, nodes[at].state)
		}
		if !slices.IsSortedFunc(nodes, func(a, b node) int { return strings.Compare(a.name, b.name) }) {
			t.Errorf("%s: not sorted: %+v", name, nodes)
		}
	}
}

// TestConfig: every wrong field is named.
func TestConfig(t *testing.T) {
	table := tableOf(t, 31)
	good := newTestCluster(t, "a").nodes["a"].cfg
	for field, change := range map[string]func(*Config){
		"Name":          func(c *Config) { c.Name = "" },
		"Boot":          func(c *Config) { c.Boot = "" },
		"Peers":         func(c *Config) { c.Peers = nil },
		"CheckTimeout":  func(c *Config) { c.CheckTimeout = -1 },
		"QuorumTimeout": func(c *Config) { c.QuorumTimeout = -1 },
		"Hot":           func(c *Config) { c.Hot = -1 },
		"ForgetAfter":   func(c *Config) { c.ForgetAfter = -1 },
		"Partitions":    func(c *Config) { c.Ring.Partitions = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c, table); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(good, table); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

// TestGossipLosesOne: a member that gossip shows no more keeps its partitions as long as it is heard on the peer port, and
// loses them when it is not.
func TestGossipLosesOne(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		pause.For(t.Context(), 3*time.Second) // all partitions are where they belong
		before := f.owners()
		delete(f.members, "b")
		f.gossipTo("a", "c")
		for range 10 {
			pause.For(t.Context(), time.Second)
			if now := f.owners(); !maps.Equal(now, before) {
				t.Fatalf("held are %v, before gossip lost b it was %v", now, before)
			}
		}
		for name, n := range f.nodes {
			if !n.Stats().HasQuorum {
				t.Errorf("%s may not decide", name)
			}
		}
		f.nodes["b"].stop()
		<-f.nodes["b"].ended
		delete(f.nodes, "b")
		f.eventually(3*time.Second, "b's partitions are taken over", func() bool { return f.owned() == 31 })
	})
}
