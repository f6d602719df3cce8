package cluster

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

// TestRest: from then on nothing is decided, and what was decided before is in the snapshot.
func TestRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(1_000_000))
		f := newFleetWithDisks(t, "a", "b")
		var l load
		l.ask(f.nodes["a"].Node, keys)
		l.ask(f.nodes["b"].Node, keys)
		time.Sleep(100 * time.Millisecond)
		f.within(time.Second, "a rests", f.nodes["a"].Rest)
		f.within(time.Second, "b rests", f.nodes["b"].Rest)
		f.save("a")
		f.save("b")
		before, _ := l.soFar()
		time.Sleep(time.Second)
		spent, _ := l.end()
		for i, after := range spent {
			// Answers may have been under way.
			if after > before[i]+2 {
				t.Errorf("key %d: %d admitted, %d before the rest", i, after, before[i])
			}
		}
		f.crash("a", "b")
		f.serve(f.start("a"))
		f.serve(f.start("b"))
		f.allHeld(10 * time.Second)
		for i, r := range keys {
			r.Verb = bucket.Read
			got := 1_000_000 - decide(t.Context(), f.nodes["a"].Node, r)[0].Remaining
			if got < spent[i] || got > spent[i]+4 { // lost answers are charged too
				t.Errorf("key %d: %d spent, %d admitted", i, got, spent[i])
			}
		}
	})
}

// TestSnapshotWhileMoving: partitions come, go and are synced anew while they are written. What
// a snapshot has of a partition it has all of.
func TestSnapshotWhileMoving(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const each = 100 // counters of a partition
		f := newFleet(t)
		f.keep("a", "b", "c")
		f.join("a")
		count := make([]int, 31)
		var keys []check.Request
		for i := uint64(0); len(keys) < each*31; i++ {
			r := check.Request{Request: bucket.Request{Key: bucket.Key{Hi: i << 20, Lo: i}, Limits: hourly(5), Cost: 1}}
			if p := r.Key.Shard(31); count[p] < each {
				count[p]++
				keys = append(keys, r)
			}
		}
		decide(t.Context(), f.nodes["a"].Node, keys...)
		f.join("b")
		var saving sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		written, b, disk := 0, f.nodes["b"].Node, f.disks["b"]
		saving.Go(func() {
			for ctx.Err() == nil {
				save(t, b, disk)
				written += wantWhole(t, disk, each)
				if !pause.For(ctx, 50*time.Millisecond) {
					return
				}
			}
		})
		for range 3 {
			f.join("c")
			time.Sleep(300 * time.Millisecond)
			f.leave("c")
		}
		stop()
		saving.Wait()
		if written < 100 {
			t.Errorf("%d partitions were written", written)
		}
	})
}

// TestSyncedAnew: what is read of a partition while another initial sync begins is read again. Copies of
// who is not counted any more are left out.
func TestSyncedAnew(t *testing.T) {
	const first, second, holds = 1, 2, 3
	state := map[int]handoff.State{
		first:  {InitialSync: 1, Mark: message.Mark{Seq: 10}, Complete: true},
		second: {InitialSync: 2, Mark: message.Mark{Seq: 20}, Complete: true},
		holds:  {Mark: message.Mark{Epoch: message.Epoch{Gen: 5}, Seq: 30}, Complete: true, Owned: true},
	}
	for _, c := range []struct {
		name   string
		copies bool  // are wanted
		seen   []int // before and after each reading; 0 is nothing
		wrote  uint64
	}{
		{"nothing", true, []int{0}, 0},
		{"the same", true, []int{first, first}, 10},
		{"synced anew", true, []int{first, second, second, second}, 20},
		{"dropped", true, []int{first, 0, 0}, 0},
		{"opened", true, []int{second, holds, holds, holds}, 30},
		{"to and fro", true, []int{first, second, first, second, first, second}, 0},
		{"a copy of one who is not counted", false, []int{first}, 0},
		{"held by one who is not counted", false, []int{holds, holds}, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := 0
			p := copier{table: tableOf(t, 1), clock: steadyClock(), replicas: c.copies, state: func(context.Context, int) (handoff.State, bool, error) {
				s, ok := state[c.seen[seen]]
				seen++
				return s, ok, nil
			}}
			r := written(t, 31, func(w *snapshot.Writer) error { return p.partition(t.Context(), w, 0) })
			if seen != len(c.seen) {
				t.Errorf("looked %d times, want %d", seen, len(c.seen))
			}
			s, err := r.Next()
			if s.Mark.Seq != c.wrote || (err == io.EOF) != (c.wrote == 0) {
				t.Errorf("wrote %+v, error %v; want mark %d", s, err, c.wrote)
			}
		})
	}
}

// wantWhole wants all counters of each partition in a snapshot, and returns how many there are.
func wantWhole(t *testing.T, d *snapshot.Dir, each int) (partitions int) {
	r, err := d.Read(snapshot.Want{Name: "b", Partitions: 31, Now: time.Now()})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer r.Close()
	for {
		s, err := r.Next()
		if err == io.EOF {
			return partitions
		}
		counters := 0
		for err == nil {
			var im *bucket.Image
			if im, err = r.Image(); err == nil {
				counters += im.Counters
			}
		}
		if err != io.EOF {
			t.Error(err)
			return partitions
		}
		if partitions++; s.Complete && counters != each {
			t.Errorf("partition %d at %+v: %d counters", s.Partition, s.Mark, counters)
		}
	}
}
