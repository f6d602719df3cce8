package cluster

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

// keep gives the nodes of f data directories.
func (f *fleet) keep(names ...string) {
	f.t.Helper()
	f.disks, f.dirs = make(map[string]*snapshot.Dir), f.t.TempDir()
	for _, name := range names {
		dir, err := snapshot.Open(filepath.Join(f.dirs, name))
		must(f.t, err)
		f.t.Cleanup(func() { dir.Close() })
		f.disks[name] = dir
		w, err := dir.Create(snapshot.Header{Name: name, Begun: time.Now(), Partitions: 31}) // as cmd does first
		if err == nil {
			err = w.Commit()
		}
		must(f.t, err)
	}
}

// load reads what name has kept into table.
func (f *fleet) load(name string, table *bucket.Table) *Recorded {
	f.t.Helper()
	if f.disks == nil {
		return nil
	}
	recorded := new(Recorded)
	r, err := f.disks[name].Read(snapshot.Want{Name: name, Partitions: 31, Now: time.Now()})
	if rejection, ok := errors.AsType[*snapshot.Rejection](err); ok {
		recorded.SnapshotLost = string(rejection.Reason)
		_, err = f.disks[name].SetAside(time.Now())
	}
	must(f.t, err)
	if r != nil {
		defer r.Close()
		recorded, err = Load(table, r, time.Now())
		must(f.t, err)
	}
	if recorded.Record, _, err = f.disks[name].Voters(name, [16]byte{}); err != nil {
		f.t.Fatal(err)
	}
	if r == nil && recorded.SnapshotLost == "" && !recorded.Record.Set.Zero() {
		recorded.SnapshotLost = "missing"
	}
	d, err := f.disks[name].Deferred().Read(snapshot.Want{Name: name, Partitions: 31, Now: time.Now()})
	must(f.t, err)
	if d != nil {
		defer d.Close()
		must(f.t, recorded.LoadDeferred(d, time.Now()))
	}
	return recorded
}

// saveDeferred writes the deferred charges of name, and returns of how many keys they are.
func (f *fleet) saveDeferred(name string) int {
	f.t.Helper()
	n := f.nodes[name]
	keys, err := n.SaveDeferred(f.t.Context(), func(set message.Set) (*snapshot.Writer, error) {
		return f.disks[name].Deferred().Create(snapshot.Header{Name: name, Boot: n.cfg.Boot, Begun: time.Now(), Partitions: 31, Set: set})
	})
	must(f.t, err)
	return keys
}

// save writes a snapshot of name.
func (f *fleet) save(name string) snapshot.Totals {
	f.t.Helper()
	return save(f.t, f.nodes[name].Node, f.disks[name])
}

// save is fleet.save for goroutines: nodes may come and go meanwhile.
func save(t *testing.T, n *Node, d *snapshot.Dir) snapshot.Totals {
	totals, err := n.Snapshot(t.Context(), func(set message.Set) (*snapshot.Writer, error) {
		return d.Create(snapshot.Header{Name: n.cfg.Name, Boot: n.cfg.Boot, Begun: time.Now(), Partitions: 31, Set: set})
	})
	if err != nil {
		t.Errorf("%s: %v", n.cfg.Name, err)
	}
	return totals
}

// written has write fill a snapshot, and returns what is read of it.
func written(t *testing.T, partitions int, write func(*snapshot.Writer) error) *snapshot.Reader {
	t.Helper()
	dir, err := snapshot.Open(t.TempDir())
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	w, err := dir.Create(snapshot.Header{Name: "b", Begun: time.Now(), Partitions: partitions})
	must(t, err)
	must(t, errors.Join(write(w), w.Commit()))
	r, err := dir.Read(snapshot.Want{Name: "b", Partitions: partitions, Now: time.Now()})
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// stopAll ends all nodes as cmd does when nobody stays: in order, each with a last snapshot.
func (f *fleet) stopAll() {
	f.t.Helper()
	for name := range f.nodes {
		f.state(name, member.Leaving)
	}
	for name, n := range f.nodes {
		f.within(time.Second, "nobody takes what "+name+" has", func(ctx context.Context) error {
			_, left, err := n.HandOff(ctx)
			if left == 0 {
				return errors.New("somebody did")
			}
			return err
		})
	}
	for _, n := range f.nodes {
		f.within(2*time.Second, "the others are quiet", n.Quiet)
		f.within(time.Second, "it rests", n.Rest)
	}
	for name := range f.nodes {
		f.save(name)
	}
	for name := range f.nodes {
		f.crash(name)
	}
}

// newFleetWithDisks is newFleet of nodes with data directories.
func newFleetWithDisks(t *testing.T, names ...string) *fleet {
	f := newFleet(t)
	f.keep(names...)
	for _, name := range names {
		f.join(name)
	}
	return f
}

// kept starts nodes with data directories and has each of keys asked for 6 times.
func kept(t *testing.T, keys []check.Request, names ...string) *fleet {
	f := newFleetWithDisks(t, names...)
	for range 6 {
		decide(t.Context(), f.nodes[names[0]].Node, keys...)
	}
	return f
}

// allHeld waits until all partitions are held.
func (f *fleet) allHeld(within time.Duration) {
	f.t.Helper()
	f.eventually(within, "all is held", func() bool { return f.owned() == 31 })
	f.owners()
}

// wantLeft wants so many units of each key to remain.
func (f *fleet) wantLeft(keys []check.Request, want int64) {
	f.t.Helper()
	for name, n := range f.nodes {
		for i, r := range keys {
			r.Verb = bucket.Read
			if a := decide(f.t.Context(), n.Node, r)[0]; a.Err != nil || a.Remaining != want || a.Source > check.Forwarded {
				f.t.Errorf("asked at %s, key %d: %+v, want %d remaining", name, i, a, want)
			}
		}
		if s := n.Stats().Partitions; s.WithoutState != 0 || s.Divergent != 0 {
			f.t.Errorf("%s: %+v", name, s)
		}
	}
}
