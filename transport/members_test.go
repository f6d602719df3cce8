package transport

import (
	"testing"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
)

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
	s := newService(t, newNode(t), func(c *Config) {
		c.Cluster = func() (*member.View, *ring.Table) { return view, table }
	})
	m := s.Members()
	if m.Self != "n1" || len(m.Members) != 3 || m.Members[0].GRPC != "127.0.0.1:7460" {
		t.Fatalf("%+v", m)
	}
	if m.Members[0].Partitions+m.Members[1].Partitions != m.Partitions || m.Members[2].Partitions != 0 || m.Partitions == 0 {
		t.Errorf("partitions %+v", m)
	}
	if len(m.Ring) != 16 {
		t.Errorf("ring %q", m.Ring)
	}
	if got := hex16(0xab); got != "00000000000000ab" {
		t.Errorf("hex16 %q", got)
	}
	// Before the first view there is nothing to tell, and nothing to fail.
	if m := newService(t, newNode(t)).Members(); m.Self != "" || len(m.Members) != 0 || m.Ring != "" {
		t.Errorf("%+v", m)
	}
}
