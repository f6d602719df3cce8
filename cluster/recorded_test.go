package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

// TestWholeRestart: a cluster of which every node is stopped goes on where it was, older by
// the time it was down. A node that was seen since need not be waited for when it crashes.
func TestWholeRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute})) // 1 every 6 s
		f := kept(t, keys, "a", "b", "c")
		spent := time.Now()
		f.stopAll()
		time.Sleep(time.Until(spent.Add(7 * time.Second)))
		start := time.Now()
		f.back("a", "b", "c")
		f.allHeld(5 * time.Second)
		for name, n := range f.nodes {
			f.within(5*time.Second, name+" is settled", n.Settled)
		}
		f.kill("b")
		f.allHeld(3 * time.Second)
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("all was held after %v", took)
		}
		time.Sleep(time.Until(spent.Add(20 * time.Second))) // 3 of the 6 are back
		f.wantLeft(keys, 7)
		f.protected()
		if copies := f.sum(func(s Stats) int { return s.Partitions.Replicas }); copies != 31 {
			t.Errorf("%d copies, want one of each partition", copies)
		}
		if set := f.nodes["a"].Stats().Set; len(set.Members) != 3 {
			t.Errorf("the set is %+v", set)
		}
	})
}

// TestWholeRestartOneByOne: one node of three serves nothing by itself; two wait for the third,
// whose counters may be later, and go on without it when it does not come.
func TestWholeRestartOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(10))
		f := kept(t, keys, "a", "b", "c")
		f.stopAll()
		f.serve(f.start("a"))
		time.Sleep(20 * time.Second)
		if s := f.nodes["a"].Stats(); s.HasQuorum || s.Partitions.Owned != 0 {
			t.Errorf("alone: %+v", s)
		}
		if a := decide(t.Context(), f.nodes["a"].Node, keys[0])[0]; a.Source != check.Closed || a.Allowed || f.nodes["a"].Stats().MinorityClosed != 1 {
			t.Errorf("asked for a key meanwhile: %+v", a)
		}
		f.crash("a")

		f.serve(f.start("a"))
		f.serve(f.start("b"))
		time.Sleep(9 * time.Second)
		if n := f.owned(); n != 0 {
			t.Errorf("%d partitions are held without the third", n)
		}
		f.allHeld(3 * time.Second)
		// Of what the third held there are copies.
		f.wantLeft(keys, 4)
		f.join("c")
		f.eventually(10*time.Second, "c has its own again", func() bool { return f.nodes["c"].Stats().Partitions.Owned > 5 })
		f.eventually(10*time.Second, "what c brought is merged", func() bool { return f.nodes["c"].Stats().Partitions.Divergent == 0 })
		f.allHeld(time.Second)
		f.wantLeft(keys, 4)
	})
}

// TestLostFile: a node whose file is lost is counted all the same, and waits as the others do.
func TestLostFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(10))
		f := kept(t, keys, "a", "b", "c")
		f.stopAll()
		if _, err := f.disks["a"].SetAside(time.Now()); err != nil {
			t.Fatal(err)
		}
		f.serve(f.start("b"))
		a := f.start("a")
		f.serve(a)
		time.Sleep(5 * time.Second)
		if s := a.Stats().Partitions; s.Owned != 0 {
			t.Errorf("a has not waited for c: %+v", s)
		}
		f.serve(f.start("c"))
		f.allHeld(5 * time.Second)
		f.wantLeft(keys, 4)
	})
}

// TestLoneRestart: who is counted alone goes on at once.
func TestLoneRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(10))
		f := kept(t, keys, "a")
		f.stopAll()
		f.serve(f.start("a"))
		f.allHeld(200 * time.Millisecond)
		f.wantLeft(keys, 4)
	})
}

// TestLeaverKeepsNothing: who has handed everything off and is counted no more writes a set
// without itself and no counters, so what it had does not come back later.
func TestLeaverKeepsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(10))
		f := kept(t, keys, "a", "b", "c")
		f.save("a") // as it was now and then
		a := f.nodes["a"]
		f.handOff("a")
		f.within(time.Second, "a rests", a.Rest)
		if totals := f.save("a"); totals.Complete != 0 {
			t.Errorf("a wrote %+v", totals)
		}
		f.crash("a")
		// Nobody whom it knows is there: it cannot begin anew by itself.
		others := f.members
		f.members = map[string]member.Member{}
		a = f.start("a")
		f.within(time.Second, "a may found", func(ctx context.Context) error { return a.MayFound(ctx, true, true) })
		time.Sleep(30 * time.Second)
		if s := a.Stats(); len(s.Set.Members) != 2 || s.HasQuorum {
			t.Errorf("alone it knows %+v, right %v", s.Set, s.HasQuorum)
		}
		f.members["b"], f.members["c"] = others["b"], others["c"]
		f.gossip()
		f.serve(a)
		f.within(10*time.Second, "a is settled", a.Settled)
		f.wantLeft(keys, 4)
	})
}

// TestLoadOfAnother: counters that belong elsewhere are rejected, and none of the file stays.
func TestLoadOfAnother(t *testing.T) {
	table := tableOf(t, 2)
	for i := range uint64(100) {
		table.Do(time.Now().UnixNano(), &bucket.Request{Key: bucket.Key{Hi: i << 32, Lo: i}, Limits: hourly(5), Cost: 1})
	}
	r := written(t, 2, func(w *snapshot.Writer) (err error) {
		for p := range 2 {
			var im bucket.Image
			table.Export(time.Now().UnixNano(), 0, table.Keys(0, nil), &im) // both times the first
			err = errors.Join(err, w.Section(snapshot.Section{Partition: p, Complete: true, At: time.Now()}), w.Image(&im))
		}
		return err
	})
	fresh := tableOf(t, 2)
	_, err := Load(fresh, r, time.Now())
	if unfit := (*bucket.ImportError)(nil); !errors.As(err, &unfit) || !strings.Contains(err.Error(), "partition 1") {
		t.Errorf("error %v", err)
	}
	if n := fresh.Stats().Entries; n != 0 {
		t.Errorf("%d counters stay", n)
	}
}
