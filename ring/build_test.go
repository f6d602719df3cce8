package ring

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/buraksezer/consistent"
)

// pods returns prefix-1 to prefix-n.
func pods(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i+1)
	}
	return names
}

func build(t testing.TB, members []string) *Table {
	t.Helper()
	table, err := Build(Config{}, members)
	if err != nil {
		t.Fatalf("Build(%v): %v", members, err)
	}
	return table
}

func TestBuildRejectsBadInput(t *testing.T) {
	tooMany := make([]string, MaxMembers+1)
	for i := range tooMany {
		tooMany[i] = fmt.Sprint(i)
	}
	for _, c := range []struct {
		name    string
		config  Config
		members []string
		want    []string // what the error must say
	}{
		{"negative partitions", Config{Partitions: -1}, pods("pod", 3), []string{"Partitions", "-1"}},
		{"too many partitions", Config{Partitions: MaxPartitions + 1}, pods("pod", 3), []string{"Partitions", "1048577"}},
		{"negative replication", Config{Points: -5}, pods("pod", 3), []string{"Points", "-5"}},
		{"too much replication", Config{Points: MaxPoints + 1}, nil, []string{"Points", "10001"}},
		{"load without room", Config{Load: 0.99}, pods("pod", 3), []string{"Load", "0.99"}},
		{"negative load", Config{Load: -1}, pods("pod", 3), []string{"Load", "-1"}},
		{"load not a number", Config{Load: math.NaN()}, pods("pod", 3), []string{"Load", "NaN"}},
		{"load without bound", Config{Load: math.Inf(1)}, pods("pod", 3), []string{"Load", "+Inf"}},
		{"several fields", Config{Partitions: -1, Load: -1}, nil, []string{"Partitions", "Load"}},
		{"empty name", Config{}, []string{"a", ""}, []string{"empty name"}},
		{"same name twice", Config{}, []string{"b", "a", "b"}, []string{`"b"`, "twice"}},
		{"too many members", Config{}, tooMany, []string{"65536", "65535"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, err := Build(c.config, c.members)
			if err == nil {
				t.Fatalf("Build accepted it: %d partitions", table.Partitions())
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestBuildWithoutMembers(t *testing.T) {
	table := build(t, nil)
	if got := table.Partitions(); got != DefaultPartitions {
		t.Errorf("Partitions() = %d, want %d", got, DefaultPartitions)
	}
	for p := range table.Partitions() {
		if table.Owner(p) != "" || table.OwnerIndex(p) != -1 {
			t.Fatalf("partition %d has owner %q, index %d", p, table.Owner(p), table.OwnerIndex(p))
		}
	}
	if got := table.Owned("pod-1"); got != 0 {
		t.Errorf("Owned of an unauthenticated client = %d, want 0", got)
	}
}

func TestBuildOneMember(t *testing.T) {
	for _, c := range []Config{{}, {Partitions: 1, Points: 1, Load: 1}} {
		table, err := Build(c, []string{"only"})
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Owned("only"); got != table.Partitions() {
			t.Errorf("%+v: the only member owns %d of %d", c, got, table.Partitions())
		}
	}
}

func TestOwnerOutsideTheTable(t *testing.T) {
	table := build(t, pods("pod", 3))
	for _, p := range []int{-1, math.MinInt, DefaultPartitions, math.MaxInt} {
		if table.Owner(p) != "" || table.OwnerIndex(p) != -1 {
			t.Errorf("partition %d has owner %q, index %d", p, table.Owner(p), table.OwnerIndex(p))
		}
	}
}

func TestBuildLeavesItsInputAlone(t *testing.T) {
	names := []string{"c", "a", "b"}
	table := build(t, names)
	if !slices.Equal(names, []string{"c", "a", "b"}) {
		t.Errorf("Build changed its argument to %v", names)
	}
	names[0] = "z"
	if !slices.Equal(table.Members(), []string{"a", "b", "c"}) {
		t.Errorf("Members() = %v", table.Members())
	}
}

func TestEqualSetsGiveEqualTables(t *testing.T) {
	names := pods("pod", 12)
	want := build(t, names)
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		got := build(t, names)
		if got.Hash() != want.Hash() || len(Diff(want, got)) != 0 {
			t.Fatalf("order %v gives another table", names)
		}
	}
}

func TestOtherSetsGiveOtherHashes(t *testing.T) {
	seen := map[uint64][]string{}
	for _, names := range [][]string{
		nil, {"a"}, {"b"}, {"ab"}, {"a", "b"}, {"a", "bc"}, {"ab", "c"}, pods("pod", 3), pods("pod", 4),
	} {
		h := build(t, names).Hash()
		if other, ok := seen[h]; ok {
			t.Errorf("%v and %v have the same hash", other, names)
		}
		seen[h] = names
	}
	one, err := Build(Config{Partitions: 7}, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	if one.Hash() == build(t, []string{"a"}).Hash() {
		t.Error("tables of 7 and of 1021 partitions have the same hash")
	}
}

// A failure here means that nodes of this build and of earlier ones would send
// keys to different owners. If that is wanted, raise Placement.
func TestPlacementIsGolden(t *testing.T) {
	for _, c := range []struct {
		members []string
		want    uint64
	}{
		{[]string{"only"}, 0x89b732c2363c7ab7},
		{pods("pod", 3), 0xcdbd2ecdc7d366e7},
		{pods("pod", 12), 0x2084ffb8778fbcb3},
		{[]string{"10.0.0.1:7462", "sluice-0.sluice.default", "ζ"}, 0xfd27d93ead62d01},
	} {
		if got := build(t, c.members).Hash(); got != c.want {
			t.Errorf("Placement %d: %v has hash %#x, want %#x", Placement, c.members, got, c.want)
		}
	}
}

// recorder sees every point that the library puts on the ring.
type recorder struct{ points map[string]int }

func (r recorder) Sum64(b []byte) uint64 {
	// A partition's number is hashed as 8 bytes, most of them zero; a point is text.
	if !bytes.ContainsRune(b, 0) {
		r.points[string(b)]++
	}
	return hasher{}.Sum64(b)
}

func TestPointsDoNotCollide(t *testing.T) {
	names := pods("pod", 12)
	members := make([]consistent.Member, len(names))
	for i, name := range names {
		members[i] = point(name)
	}
	seen := recorder{points: map[string]int{}}
	consistent.New(members, consistent.Config{
		Hasher: seen, PartitionCount: 7, ReplicationFactor: DefaultPoints, Load: DefaultLoad,
	})
	if want := len(names) * DefaultPoints; len(seen.points) != want {
		t.Errorf("%d different points, want %d", len(seen.points), want)
	}
	hashes := map[uint64]string{}
	for p, n := range seen.points {
		if n != 1 {
			t.Errorf("point %q is used %d times", p, n)
		}
		h := hasher{}.Sum64([]byte(p))
		if other, ok := hashes[h]; ok {
			t.Errorf("points %q and %q have the same hash", p, other)
		}
		hashes[h] = p
	}
}
