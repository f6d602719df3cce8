package limiter

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/ring"
)

// clustered is a Config change: the cluster is o.
func clustered(o Overview) func(*Config) {
	return func(c *Config) { c.Cluster.(*fakeCluster).overview = func(context.Context) Overview { return o } }
}

func TestMembers(t *testing.T) {
	table, err := ring.Build(ring.Config{}, []string{"n1", "n2"})
	if err != nil {
		t.Fatal(err)
	}
	view := &member.View{Self: "n1", Members: []member.Member{
		{Name: "n1", State: member.Serving, GRPC: "127.0.0.1:7460"},
		{Name: "n2", State: member.Serving},
		{Name: "n3", State: member.Leaving},
	}}
	m := newService(t, newNode(t), clustered(Overview{View: view, Ring: table})).Members(t.Context())
	if m.Self != "n1" || len(m.Members) != 3 || m.Members[0].GRPC != "127.0.0.1:7460" {
		t.Fatalf("%+v", m)
	}
	if m.Members[0].Partitions+m.Members[1].Partitions != m.Partitions || m.Members[2].Partitions != 0 || m.Partitions == 0 {
		t.Errorf("partitions %+v", m)
	}
	if len(m.Ring) != 16 || m.Health.Status != NoQuorum {
		t.Errorf("ring %q, health %+v", m.Ring, m.Health)
	}
	// Before the first view there is nothing to tell, and nothing to fail.
	if m := newService(t, newNode(t)).Members(t.Context()); m.Self != "" || len(m.Members) != 0 || m.Ring != "" {
		t.Errorf("%+v", m)
	}
}

// What the node knows of the others is joined to the process that it is about.
func TestStandings(t *testing.T) {
	set := VoterSet{ClusterID: "b1", Version: 7, Members: []string{"a", "n1", "n2", "n4"}}
	counts := PartitionCounts{Owned: 9, Unprotected: 2, HandingOver: 1, Replicas: 5, TakingOver: 3, Divergent: 4, BelowReplicas: 6}
	shown := func(name, boot string, s member.State) member.Member {
		return member.Member{Name: name, Boot: boot, State: s}
	}
	view := &member.View{Self: "n1", Members: []member.Member{
		shown("n1", "b1", member.Serving), shown("n2", "b2", member.Serving), shown("n3", "b3", member.Joining), shown("n4", "b5", member.Serving),
	}}
	m := newService(t, newNode(t), clustered(Overview{
		View: view, State: State{Set: set, MayDecide: false, Reason: "no majority", PartitionCounts: counts},
		Standings: []Standing{
			{Name: "n4", Boot: "b4", Alive: true, Silent: 0, Owned: 8}, // an earlier run
			{Name: "a", Silent: 3 * time.Minute},
			{Name: "n2", Boot: "b2", Alive: true, Silent: time.Millisecond, Owned: 7},
			{Name: "n1", Boot: "b1", Silent: -1, Owned: 9},
			{Name: "gone", Boot: "b9", Owned: 1},
		},
	})).Members(t.Context())
	want := []Member{
		{Member: member.Member{Name: "a"}, Missing: true, Voter: true, Silent: 3 * time.Minute},
		{Member: view.Members[0], Voter: true, Alive: true, Owned: 9},
		{Member: view.Members[1], Voter: true, Alive: true, Silent: time.Millisecond, Owned: 7},
		{Member: view.Members[2], Silent: -1},
		{Member: view.Members[3], Voter: true, Silent: -1},
	}
	if len(m.Members) != len(want) {
		t.Fatalf("%+v", m.Members)
	}
	states := []string{"missing", "serving", "serving", "joining", "serving"}
	for i := range want {
		if m.Members[i] != want[i] || m.Members[i].StateName() != states[i] {
			t.Errorf("%+v, %s\nwant %+v, %s", m.Members[i], m.Members[i].StateName(), want[i], states[i])
		}
	}
	if !reflect.DeepEqual(m.Set, set) || m.MayDecide || m.Reason != "no majority" || m.PartitionCounts != counts {
		t.Errorf("%+v", m)
	}
}
