package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	disk "github.com/sluicecluster/sluice/internal/snapshot"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/ring"
)

// leftOnDisk reads what a node has left in its directory: its set, and how much else.
func leftOnDisk(t *testing.T, dir, name string) (disk.Header, disk.Totals) {
	t.Helper()
	d, err := disk.Open(filepath.Join(dir, name))
	do(t, err)
	defer d.Close()
	fingerprint, err := limiter.Fingerprint(bytes.Repeat([]byte("x"), 32))
	do(t, err)
	r, err := d.Read(disk.Want{
		Placement: ring.Placement, Fingerprint: [16]byte(fingerprint), Name: name, Partitions: ring.DefaultPartitions, Now: time.Now(),
	})
	if err != nil || r == nil {
		t.Fatalf("%s: %v %v", name, r, err)
	}
	defer r.Close()
	for {
		if _, err := r.Next(); err != nil {
			return r.Header(), r.Totals()
		}
	}
}

// TestKeptNode: a node alone comes back with what was spent, and leaves no goroutine behind.
func TestKeptNode(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	dir := t.TempDir()
	s := testConfig(t)
	s.DataDir, s.SnapshotInterval = filepath.Join(dir, "n1"), 10*time.Millisecond
	n := startNode(t, s)
	if got := n.left(t, "a"); got != 2 {
		t.Errorf("at first: %d are left", got)
	}
	n.check(t, "a")
	n.get(t, "/metrics")
	await(t, "writing now and then", func() bool { return n.snapshotter.stats().written > 2 })
	if _, err := Open(t.Context(), s, n.log); err == nil || !strings.Contains(err.Error(), "--data-dir: ") {
		t.Errorf("a second node on its directory: %v", err)
	}
	n.stop()
	s.SnapshotInterval = 0 // only at the end
	for range 2 {
		n = startNode(t, s)
		if got := n.left(t, "a"); got != 1 {
			t.Errorf("after a restart: %d are left", got)
		}
		if s := n.snapshotter.stats(); s.written != 0 || s.restored != 1 {
			t.Errorf("%+v", s)
		}
		n.stop()
		if s := n.snapshotter.stats(); s.written != 1 || s.failed != 0 || s.totals.Counters != 1 || s.took <= 0 {
			t.Errorf("%+v", s)
		}
	}
	await(t, "without goroutines", func() bool { return goleak.Find(ignore) == nil })
}

// TestSnapshotLost: a node knows from its data directory whether it had counters that it does not
// have any more.
func TestSnapshotLost(t *testing.T) {
	file := func(dir string) string { return filepath.Join(dir, "counters.snapshot") }
	write := func(data string) func(string) error {
		return func(dir string) error { return os.WriteFile(file(dir), []byte(data), 0o600) }
	}
	foreign := func(dir string) error {
		d, err := disk.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		w, err := d.Create(disk.Header{Name: "n2", Begun: time.Now(), Partitions: 1})
		if err != nil {
			return err
		}
		return w.Commit()
	}
	for _, c := range []struct {
		name    string
		set     bool // a voter set is on disk
		changes func(dir string) error
		want    string
	}{
		{"left as it was", true, func(string) error { return nil }, ""},
		{"damaged", true, write("garbage"), "damaged"},
		{"damaged, no voter set", false, write("garbage"), "damaged"},
		{"empty", true, write(""), "damaged"},
		{"removed", true, func(dir string) error { return os.Remove(file(dir)) }, "missing"},
		{"removed, no voter set", false, func(dir string) error { return os.Remove(file(dir)) }, ""},
		{"another node's", true, foreign, "foreign"},
		{"another node's, no voter set", false, foreign, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testConfig(t)
			s.Name, s.DataDir = "n1", t.TempDir()
			opened := func() string {
				table, err := bucket.NewTable(bucket.Config{Shards: ring.DefaultPartitions})
				do(t, err)
				k, recorded, err := openSnapshotter(s, "boot", [16]byte{}, table, slog.New(slog.DiscardHandler))
				do(t, err)
				defer k.close()
				if k.lost != recorded.SnapshotLost {
					t.Errorf("the node reports %q, the cluster gets %q", k.lost, recorded.SnapshotLost)
				}
				if c.set {
					set := message.Set{ID: "c", Version: 1, Members: []string{"n1"}}
					do(t, k.dir.PutVoters("n1", [16]byte{}, message.Record{Set: set}))
				}
				return recorded.SnapshotLost
			}
			if got := opened(); got != "" {
				t.Errorf("a new directory: %q", got)
			}
			do(t, c.changes(s.DataDir))
			if got := opened(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
