package ring

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/sluicecluster/sluice/test/seeded"
)

func names(t *rapid.T, label string, least int) []string {
	return rapid.SliceOfNDistinct(rapid.StringN(1, 12, -1), least, 20, rapid.ID[string]).Draw(t, label)
}

func config(t *rapid.T) Config {
	return Config{
		Partitions: rapid.IntRange(1, 300).Draw(t, "partitions"),
		Points:     rapid.IntRange(1, 40).Draw(t, "replication"),
		Load:       rapid.Float64Range(1, 3).Draw(t, "load"),
	}
}

// Any valid configuration and any set of members gives a whole table that does
// not depend on the order of the members.
func TestTableIsWholeAndOrderFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, members := config(t), names(t, "members", 1)
		table, err := Build(c, members)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, m := range members {
			sum += table.Owned(m)
		}
		if sum != c.Partitions || table.Partitions() != c.Partitions {
			t.Fatalf("%d of %d partitions are owned", sum, c.Partitions)
		}
		counted := map[string]int{}
		for p := range table.Partitions() {
			if i := table.OwnerIndex(p); table.Members()[i] != table.Owner(p) {
				t.Fatalf("partition %d: index %d, owner %q", p, i, table.Owner(p))
			}
			counted[table.Owner(p)]++
		}
		bound := c.Load*float64(c.Partitions)/float64(len(members)) + 1
		for _, m := range members {
			if counted[m] != table.Owned(m) {
				t.Fatalf("%q owns %d, Owned says %d", m, counted[m], table.Owned(m))
			}
			if float64(counted[m]) > bound {
				t.Fatalf("%q owns %d, want at most %v", m, counted[m], bound)
			}
		}
		other, err := Build(c, rapid.Permutation(members).Draw(t, "order"))
		if err != nil {
			t.Fatal(err)
		}
		if other.Hash() != table.Hash() || !slices.Equal(other.owners, table.owners) {
			t.Fatal("another order of members gives another table")
		}
	})
}

// Applying a diff to a table's owners gives the other table's owners.
func TestDiffLeadsFromOneTableToTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(t)
		from, err := Build(c, names(t, "from", 0))
		if err != nil {
			t.Fatal(err)
		}
		to, err := Build(c, names(t, "to", 0))
		if err != nil {
			t.Fatal(err)
		}
		owners := make([]string, c.Partitions)
		for p := range owners {
			owners[p] = from.Owner(p)
		}
		for _, m := range Diff(from, to) {
			if owners[m.Partition] != m.From || m.From == m.To {
				t.Fatalf("move %+v of a partition of %q", m, owners[m.Partition])
			}
			owners[m.Partition] = m.To
		}
		for p, owner := range owners {
			if owner != to.Owner(p) {
				t.Fatalf("partition %d ends with %q, want %q", p, owner, to.Owner(p))
			}
		}
	})
}
