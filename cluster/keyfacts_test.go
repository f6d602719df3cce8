package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
)

// TestKeyFacts: the owner tells how a key stands, a replica that it has a copy, and who leases what it has left; who
// was denied remembers it for a moment. Nobody is changed by being asked.
func TestKeyFacts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHotFleet(t, "a", "b", "c")
		limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10_000, Period: time.Hour})
		r := request(f.nodes["a"].Node, "c", 1, limits)
		told := func(name string) facts.Key {
			t.Helper()
			k, err := f.nodes[name].KeyFacts(t.Context(), r.Key, limits)
			if err != nil || k.Node != name || k.Partition != r.Key.Shard(31) {
				t.Fatalf("%+v, %v", k, err)
			}
			return k
		}
		f.flows(r, time.Second, evenly(time.Millisecond, "a", "b"))
		c := told("c")
		if !c.Owner || c.Replica || !c.Counted || c.Gen == 0 || len(c.Limits) != 1 || c.Limits[0].Limit != 10_000 || c.Limits[0].Spent < 1500 || c.Limits[0].Spent+c.Limits[0].Remaining != 10_000 || c.Grants == 0 || c.Granted == 0 {
			t.Errorf("the owner: %+v", c)
		}
		copies, leases := 0, int64(0)
		for _, name := range []string{"a", "b"} {
			k := told(name)
			if k.Owner || k.Limits != nil {
				t.Errorf("%s does not hold it: %+v", name, k)
			}
			if k.Replica && k.Complete && k.Gen == c.Gen {
				copies++
			}
			if k.Leased {
				leases += k.LeaseLeft
			}
		}
		if copies != 1 || leases == 0 || leases > c.Granted {
			t.Errorf("%d copies, %d units in leases of %d", copies, leases, c.Granted)
		}
		if again := told("c"); again.Limits[0].Spent != c.Limits[0].Spent {
			t.Errorf("looking has spent %d", again.Limits[0].Spent-c.Limits[0].Spent)
		}

		few := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour})
		r = request(f.nodes["a"].Node, "c", 1, few)
		r.Key.Hi++
		for range 2 {
			decide(t.Context(), f.nodes["a"].Node, r)
		}
		if k := told("a"); k.Denies <= 0 || k.Denies > 100*time.Millisecond {
			t.Errorf("denies from memory for %v", k.Denies)
		}
		time.Sleep(time.Second)
		if k := told("a"); k.Denies != 0 {
			t.Errorf("a second later for %v", k.Denies)
		}
	})
}
