package gossip

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/internal/member"
)

func TestChoose(t *testing.T) {
	const j, s, l = member.Joining, member.Serving, member.Leaving
	self := memberAt("self", 5, s)
	for _, c := range []struct {
		name   string
		others []member.Member
		want   []member.Member
	}{
		{"alone", nil, []member.Member{self}},
		{"sorted", []member.Member{memberAt("z", 1, s), memberAt("a", 1, j)}, []member.Member{memberAt("a", 1, j), self, memberAt("z", 1, s)}},
		{"the newest", []member.Member{memberAt("a", 2, s), memberAt("a", 1, s)}, []member.Member{memberAt("a", 2, s), self}},
		{"joining does not replace serving", []member.Member{memberAt("a", 2, j), memberAt("a", 1, s)}, []member.Member{memberAt("a", 1, s), self}},
		{"joining does not replace leaving", []member.Member{memberAt("a", 2, j), memberAt("a", 1, l)}, []member.Member{memberAt("a", 1, l), self}},
		{"of two that join, the newest", []member.Member{memberAt("a", 2, j), memberAt("a", 1, j)}, []member.Member{memberAt("a", 2, j), self}},
		{"serving replaces leaving", []member.Member{memberAt("a", 2, s), memberAt("a", 1, l)}, []member.Member{memberAt("a", 2, s), self}},
		{"leaving replaces serving", []member.Member{memberAt("a", 2, l), memberAt("a", 1, s)}, []member.Member{memberAt("a", 2, l), self}},
		{"of three", []member.Member{memberAt("a", 3, j), memberAt("a", 2, l), memberAt("a", 1, s)}, []member.Member{memberAt("a", 2, l), self}},
		{"ourselves, though newer serve", []member.Member{memberAt("self", 9, s), memberAt("self", 1, s)}, []member.Member{self}},
	} {
		if got := choose(slices.Clone(c.others), self); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestChooseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		self := memberAt("n2", 5, member.State(rapid.IntRange(0, 2).Draw(t, "own state")))
		var others []member.Member
		for _, k := range rapid.SliceOfNDistinct(rapid.IntRange(0, 49), 0, 20, rapid.ID[int]).Draw(t, "others") {
			m := memberAt(fmt.Sprintf("n%d", k/10), int64(k%10), member.State(rapid.IntRange(0, 2).Draw(t, "state")))
			if m.Name != self.Name || m.Boot != self.Boot {
				others = append(others, m)
			}
		}
		got := choose(slices.Clone(others), self)
		shuffled := rapid.Permutation(others).Draw(t, "order")
		if again := choose(shuffled, self); !slices.Equal(got, again) {
			t.Fatalf("another order gives another choice: %+v, %+v", got, again)
		}
		names := map[string]member.Member{}
		for i, m := range got {
			if i > 0 && got[i-1].Name >= m.Name {
				t.Fatalf("not sorted, or a name twice: %+v", got)
			}
			names[m.Name] = m
		}
		if names[self.Name] != self {
			t.Fatalf("we are not in it: %+v", got)
		}
		for _, m := range others {
			shown, ok := names[m.Name]
			if !ok {
				t.Fatalf("%s is missing", m.Name)
			}
			if m.Name != self.Name && m.Boot > shown.Boot && (m.State != member.Joining || shown.State == member.Joining) {
				t.Fatalf("%+v is shown although %+v is newer", shown, m)
			}
		}
	})
}
