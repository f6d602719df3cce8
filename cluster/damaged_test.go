package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// spentKeys are keys without a unit left, that deny what may have been spent.
func spentKeys() []check.Request {
	keys := requests(60, hourly(6))
	for i := range keys {
		keys[i].DenyLost = true
	}
	return keys
}

// admits asks a node for keys, and returns how many are admitted, and denied because their counters
// are lost.
func (f *fleet) admits(name string, keys []check.Request) (admitted, lost int) {
	f.t.Helper()
	for i, a := range decide(f.t.Context(), f.nodes[name].Node, keys...) {
		if a.Err != nil || a.Source > check.Forwarded && !a.Lost {
			f.t.Errorf("key %d: %+v", i, a)
		}
		if a.Allowed {
			admitted++
		}
		if a.Lost {
			lost++
		}
	}
	return admitted, lost
}

// file is the snapshot of name.
func (f *fleet) file(name string) string { return filepath.Join(f.dirs, name, "counters.snapshot") }

// back starts nodes whose disks are as they were left.
func (f *fleet) back(names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.start(name)
	}
	for _, name := range names {
		f.serve(f.nodes[name])
	}
}

// TestDamagedSnapshots: all nodes stop, and some find their snapshots damaged when they are back.
// Partitions of which no node has the counters are lost; no spent key is admitted. When the
// snapshots are put back, nothing is lost any more.
func TestDamagedSnapshots(t *testing.T) {
	for _, c := range []struct {
		damaged, intact []string
		with            string
		lost            bool
	}{
		{[]string{"a"}, []string{"b", "c"}, "garbage", false},
		{[]string{"a", "b"}, []string{"c"}, "garbage", true},
		{[]string{"a", "b", "c"}, nil, "garbage", true},
		{[]string{"a", "b", "c"}, nil, "", true},
		{[]string{"a"}, nil, "garbage", true},
	} {
		bubbleAs(t, fmt.Sprintf("%d of %d, %q", len(c.damaged), len(c.damaged)+len(c.intact), c.with), func(t *testing.T) {
			keys := spentKeys()
			names := append(append([]string{}, c.damaged...), c.intact...)
			f := kept(t, keys, names...)
			f.stopAll()
			whole := map[string][]byte{}
			for _, name := range c.damaged {
				data, err := os.ReadFile(f.file(name))
				must(t, err)
				whole[name] = data
				must(t, os.WriteFile(f.file(name), []byte(c.with), 0o600))
			}
			f.back(names...)
			f.allHeld(12 * time.Second)
			admitted, lost := f.admits("a", keys)
			t.Logf("%d admitted, %d lost", admitted, lost)
			if admitted > 0 || lost > 0 != c.lost || lostAt(f, names...) > 0 != c.lost {
				t.Errorf("%d spent keys are admitted, %d are denied as lost, %d partitions are lost", admitted, lost, lostAt(f, names...))
			}
			for _, name := range c.damaged { // crash: the others go on
				f.crash(name)
				must(t, os.WriteFile(f.file(name), whole[name], 0o600))
				f.back(name)
				f.allHeld(12 * time.Second)
			}
			f.eventually(10*time.Second, "nothing is lost any more", func() bool { return lostAt(f, names...) == 0 })
			if admitted, lost := f.admits("a", keys); admitted > 0 || lost > 0 {
				t.Errorf("snapshots are back: %d spent keys are admitted, %d are denied as lost", admitted, lost)
			}
		})
	}
}

// TestOwnersStayAway: all nodes stop, and two of five do not come back. The others know from their
// snapshots that the partitions of these two were owned, so that no spent key is admitted; the
// denials end when one comes back.
func TestOwnersStayAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := spentKeys()
		f := kept(t, keys, "a", "b", "c", "d", "e")
		f.stopAll()
		f.back("a", "b", "c")
		f.allHeld(12 * time.Second)
		if admitted, lost := f.admits("b", keys); admitted > 0 || lost == 0 {
			t.Errorf("%d spent keys are admitted, %d are denied as lost", admitted, lost)
		}
		f.back("d")
		f.eventually(10*time.Second, "nothing is lost any more", func() bool { return lostAt(f, "a", "b", "c", "d") == 0 })
		if admitted, lost := f.admits("b", keys); admitted > 0 || lost > 0 {
			t.Errorf("d is back: %d spent keys are admitted, %d are denied as lost", admitted, lost)
		}
	})
}

// TestLossIsInSnapshots: a node that lost its snapshot crashes before or after its next snapshot.
// Its partitions are still lost.
func TestLossIsInSnapshots(t *testing.T) {
	for _, saves := range []string{"nothing", "before it owns anything", "as the owner"} {
		bubble(t, func(t *testing.T) {
			keys := spentKeys()
			f := kept(t, keys, "a")
			f.stopAll()
			must(t, os.WriteFile(f.file("a"), []byte("garbage"), 0o600))
			a := f.start("a")
			if saves == "before it owns anything" {
				if totals := f.save("a"); totals.Complete != 0 || totals.Sections != 31 {
					t.Errorf("a has written %+v", totals)
				}
			}
			f.serve(a)
			f.allHeld(time.Second)
			if saves == "as the owner" {
				f.save("a")
			}
			f.crash("a")
			f.back("a")
			f.allHeld(time.Second)
			if admitted, lost := f.admits("a", keys); admitted > 0 || lost != len(keys) {
				t.Errorf("saved %s: %d spent keys are admitted, %d are denied as lost", saves, admitted, lost)
			}
			if _, _, err := f.nodes["a"].AcceptLoss(t.Context()); err != nil {
				t.Fatal(err)
			}
			if admitted, lost := f.admits("a", keys); admitted != len(keys) || lost > 0 {
				t.Errorf("saved %s, the loss is accepted: %d keys are admitted, %d are denied as lost", saves, admitted, lost)
			}
		})
	}
}

// TestFirstCrashLosesNothing: a new cluster crashes before its first snapshots. No partition counts
// as lost.
func TestFirstCrashLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := spentKeys()
		f := kept(t, keys, "a", "b", "c")
		f.crash("a", "b", "c")
		f.back("a", "b", "c")
		f.allHeld(12 * time.Second)
		if admitted, lost := f.admits("a", keys); admitted != len(keys) || lost > 0 {
			t.Errorf("%d keys are admitted, %d are denied as lost", admitted, lost)
		}
	})
}

// TestHigherEpochsComeBack: two of three nodes lost their snapshots and own all, when the third is
// back with its counters, of epochs that the others do not know. It takes nothing from them that
// they decided meanwhile, and the loss ends for what it has.
func TestHigherEpochsComeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := spentKeys()
		f := kept(t, keys, "a", "b", "c")
		for range 3 { // raises the epochs
			f.save("a")
			f.crash("a")
			f.allHeld(5 * time.Second)
			f.back("a")
			f.within(20*time.Second, "a is settled", f.nodes["a"].Settled)
			f.allHeld(5 * time.Second)
		}
		f.stopAll()
		for _, name := range []string{"a", "b"} {
			must(t, os.WriteFile(f.file(name), nil, 0o600))
		}
		f.back("a", "b")
		f.allHeld(12 * time.Second)
		fresh := spentKeys()
		for i := range fresh {
			fresh[i].Key.Lo++
			fresh[i].DenyLost = false
		}
		if admitted, lost := f.admits("a", fresh); admitted != len(fresh) {
			t.Errorf("%d keys are admitted, %d are denied as lost", admitted, lost)
		}
		f.back("c")
		f.eventually(10*time.Second, "c is merged", func() bool { return f.nodes["c"].Stats().Partitions.Divergent == 0 })
		f.allHeld(10 * time.Second)
		_, before := f.admits("a", keys)
		if admitted, lost := f.admits("c", keys); admitted > 0 || lost == len(keys) {
			t.Errorf("%d spent keys are admitted, %d are denied as lost, %d before", admitted, lost, before)
		}
		for _, name := range []string{"a", "b"} {
			if n := f.nodes[name].Stats().Partitions.SteppedDown; n > 0 {
				t.Errorf("%s gave up %d partitions for higher epochs", name, n)
			}
		}
		for i, r := range fresh {
			r.Cost = 6
			if a := decide(t.Context(), f.nodes["b"].Node, r)[0]; a.Allowed || a.Err != nil {
				t.Errorf("key %d, of which one of six is spent: %+v", i, a)
			}
		}
	})
}
