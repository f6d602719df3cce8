//go:build guards

package cluster

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// without runs worlds without a rule, from the seed first, until one finds that.
func without(t *testing.T, name string, first uint64, g guard.Guard, world func(seed uint64) (bad string)) {
	t.Run(name, func(t *testing.T) {
		guard.Off = g
		defer func() { guard.Off = 0 }()
		for seed := first; seed < first+400; seed++ {
			if bad := world(seed); bad != "" {
				t.Logf("seed %d: %s", seed, bad)
				return
			}
		}
		t.Error("not found")
	})
}

// TestRolesGuards: the worlds find each rule of roles that is left out.
func TestRolesGuards(t *testing.T) {
	one := func(seed uint64) string {
		w := newRoleWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		w.after(0, w.fault)
		w.run(2 * time.Minute)
		return w.bad
	}
	several := func(seed uint64) string {
		w := newNodesWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		w.after(0, w.fault)
		w.run(2 * time.Minute)
		return w.bad
	}
	for name, g := range map[string]guard.Guard{"RoleWait": guard.RoleWait, "RoleLease": guard.RoleLease} {
		without(t, name+", one node", 0, g, one)
		without(t, name+", several nodes", 0, g, several)
	}
	without(t, "RoleCounters, several nodes", 330, guard.RoleCounters, several)
	without(t, "RoleBegun", 0, guard.RoleBegun, one)
}

// TestRoleCountersGuard: a role that is passed on without its counters admits limits twice.
func TestRoleCountersGuard(t *testing.T) {
	guard.Off = guard.RoleCounters
	defer func() { guard.Off = 0 }()
	bubble(t, func(t *testing.T) {
		p := newPlaying(t, 0, nil)
		p.carry.drop = func(_, _ string, m *message.RegionMessages) bool { return m.Counters != nil }
		admitted := make([]int64, 60)
		var asking sync.WaitGroup
		asking.Go(func() {
			p.ask(admitted, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Hour}), 25*time.Millisecond, 60*time.Second)
		})
		time.Sleep(15 * time.Second)
		if err := p.pass("eu", "us"); err != nil {
			t.Fatal(err)
		}
		asking.Wait()
		if most := slices.Max(admitted); most <= 100 {
			t.Errorf("not found: %d admitted of a key", most)
		}
	})
}
