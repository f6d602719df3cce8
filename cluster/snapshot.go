package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

const (
	// maxReads bounds the reads of a partition whose state changes during each.
	maxReads = 3
)

// imageBounds end an image of a snapshot, which takes 16 MiB. A sliding log may have close to a MiB,
// and 200,000 grants nine.
var imageBounds = bucket.ImageBounds{Bytes: 256 << 10, Sets: 512, Whole: 12 << 20}

// Snapshot writes the voter set and every partition of which this node has all counters, owned or as a replica, to the writer
// that create returns, and commits it. Of the others it writes the last known epoch, so that after
// a restart of all nodes a takeover notices that it lacks counters. Checks go on meanwhile: of each
// partition the mark is read first, and its counters may be newer. Between partitions the runner
// takes a turn, so heartbeats and checks are not held up. A node that is no voter writes no
// replicas: the others have dropped them.
func (n *Node) Snapshot(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (snapshot.Totals, error) {
	w, set, err := n.createSnapshot(ctx, create)
	if err != nil {
		return snapshot.Totals{}, err
	}
	defer w.Abort()
	c := copier{table: n.table, clock: n.cfg.Clock, state: n.state, replicas: set.Has(n.cfg.Name)}
	for p := range n.cfg.Ring.Partitions {
		if err := c.partition(ctx, w, p); err != nil {
			return snapshot.Totals{}, err
		}
	}
	err = w.Commit()
	return w.Totals(), err
}

// createSnapshot returns a writer for a snapshot with the current voter set, and that set.
func (n *Node) createSnapshot(
	ctx context.Context, create func(message.Set) (*snapshot.Writer, error),
) (w *snapshot.Writer, set message.Set, err error) {
	if err = n.runner.do(ctx, func(int64) { set = n.runner.quorum.Set() }); err == nil {
		w, err = create(set)
	}
	return w, set, err
}

// DeferredChanged returns a channel that holds one value when the deferred charges have changed since the last receive.
func (n *Node) DeferredChanged() <-chan struct{} { return n.deferredChanged }

// SaveDeferred writes what this node has admitted without owners, and no owner has been charged yet, to the writer that create
// returns, and commits it: a counter for each key, that has spent just that. It returns how many keys there are.
func (n *Node) SaveDeferred(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (keys int, err error) {
	now, at := n.cfg.Clock(), time.Now()
	table, keys, err := n.shares.Table(now, n.parts(n.routing.Load().voters), n.cfg.Ring.Partitions)
	if err != nil {
		return 0, err
	}
	w, _, err := n.createSnapshot(ctx, create)
	if err != nil {
		return 0, err
	}
	defer w.Abort()
	c := copier{table: table, clock: n.cfg.Clock}
	for p := range n.cfg.Ring.Partitions {
		if c.read(now, p); len(c.keys) == 0 {
			continue
		}
		if err := c.write(w, snapshot.Section{Partition: p, Complete: true, At: at}); err != nil {
			return 0, err
		}
	}
	return keys, w.Commit()
}

// state returns what this node has of partition p, if anything.
func (n *Node) state(ctx context.Context, p int) (s handoff.State, ok bool, err error) {
	r := n.runner
	err = r.do(ctx, func(int64) { s, ok = r.handoff.State(p) })
	return s, ok, err
}

// copier reads the table for a snapshot, one partition at a time.
type copier struct {
	table    *bucket.Table
	clock    func() int64
	state    func(ctx context.Context, p int) (handoff.State, bool, error)
	replicas bool // are wanted
	keys     []bucket.KeyAt
	images   []bucket.Image // of the partition; room for later ones behind them
}

// partition writes what this node has of p. An initial sync that begins meanwhile would leave out counters, so nothing is
// written before the state is seen to be the same.
func (c *copier) partition(ctx context.Context, w *snapshot.Writer, p int) error {
	var lastOwned message.Epoch
	for range maxReads {
		before, ok, err := c.state(ctx, p)
		if err != nil {
			return err
		}
		if lastOwned = before.LastOwned; !ok || !before.Complete || !before.Owned && !c.replicas {
			break
		}
		now, at := c.clock(), time.Now()
		c.read(now, p)
		after, ok, err := c.state(ctx, p)
		if err != nil {
			return err
		}
		if ok && after.Follows(before) {
			s := snapshot.Section{
				Partition: p, Mark: before.Mark, Start: before.Start, Owned: before.Owned, Complete: true, At: at,
			}
			if after.LostOf != (message.Epoch{}) {
				s.LostOf, s.LostAt = after.LostOf, at.Add(-time.Duration(now-after.LostSince))
			}
			return c.write(w, s)
		}
	}
	// Other nodes have it: this one does not, or it is in handoff.
	if lastOwned == (message.Epoch{}) {
		return nil
	}
	return w.Section(snapshot.Section{Partition: p, Mark: message.Mark{Epoch: lastOwned}, At: time.Now()})
}

// read exports all counters of p as of now.
func (c *copier) read(now int64, p int) {
	c.keys = c.table.Keys(p, c.keys[:0])
	c.images = c.images[:0]
	for rest := c.keys; len(rest) > 0; {
		k := len(c.images)
		c.images = slices.Grow(c.images, 1)[:k+1]
		im := &c.images[k]
		*im = bucket.Image{Limits: im.Limits[:0], Data: im.Data[:0]}
		n, _ := c.table.ExportSome(now, p, rest, im, imageBounds)
		rest = rest[n:]
	}
}

func (c *copier) write(w *snapshot.Writer, s snapshot.Section) error {
	if err := w.Section(s); err != nil {
		return err
	}
	for i := range c.images {
		if err := w.Image(&c.images[i]); err != nil {
			return err
		}
	}
	return nil
}

// Recorded is what an earlier run of a node has left in its data directory. The zero value is that of a first start.
type Recorded struct {
	// Record is the node's part in the voter set. Load does not set it.
	Record message.Record
	// ClusterID is the ID of the voter set that the partitions are of, empty if none.
	ClusterID string
	// Partitions and Counters say how many were imported.
	Partitions, Counters int
	// SnapshotLost says why the snapshot of an earlier run cannot be used, empty if it can or there
	// was none. The partitions may have been owned then. Load does not set it.
	SnapshotLost string
	states       []handoff.State
	owned        []handoff.State // of partitions that are not imported: the last known epoch
	deferred     []share.Charge  // of an earlier run with that many voters
	voters       int
}

// Load imports the partitions of which r has all counters into table, as of now, the time of day: the time since they were
// written has passed for them. If the file does not fit the table, the error wraps a *bucket.ImportError, and table is empty
// again. Load must be called before New: from then on the table's shards are the node's.
func Load(table *bucket.Table, r *snapshot.Reader, now time.Time) (*Recorded, error) {
	rec := &Recorded{ClusterID: r.Header().Set.ID}
	err := eachSection(r, func(s *snapshot.Section) error {
		if !s.Complete {
			rec.owned = append(rec.owned, handoff.State{Partition: s.Partition, LastOwned: s.Mark.Epoch})
			return nil
		}
		counters, err := importSection(table, r, s, now)
		if err != nil {
			return err
		}
		rec.Counters += counters
		rec.Partitions++
		state := handoff.State{Partition: s.Partition, Mark: s.Mark, Start: s.Start, Owned: s.Owned, Complete: true}
		if s.LostOf != (message.Epoch{}) {
			state.LostOf, state.LostSince = s.LostOf, min(s.LostAt.UnixNano(), now.UnixNano())
		}
		rec.states = append(rec.states, state)
		return nil
	})
	if err != nil {
		for p := range r.Header().Partitions {
			table.DropShard(p)
		}
		return nil, err
	}
	return rec, nil
}

// LoadDeferred reads what SaveDeferred has written in an earlier run into rec, as Load reads counters.
func (rec *Recorded) LoadDeferred(r *snapshot.Reader, now time.Time) error {
	table, err := bucket.NewTable(bucket.Config{Shards: r.Header().Partitions})
	if err != nil {
		return err
	}
	var list []share.Charge
	err = eachSection(r, func(s *snapshot.Section) error {
		if _, err := importSection(table, r, s, now); err != nil {
			return fmt.Errorf("deferred charges: %w", err)
		}
		list = append(list, share.FromTable(now.Add(-s.Age(now)).UnixNano(), table, s.Partition)...)
		return nil
	})
	if err == nil {
		rec.deferred, rec.voters = list, max(1, len(r.Header().Set.Members))
	}
	return err
}

// Deferred returns how many keys have deferred charges.
func (rec *Recorded) Deferred() int { return len(rec.deferred) }

// eachSection calls f for each section of r.
func eachSection(r *snapshot.Reader, f func(*snapshot.Section) error) error {
	for {
		s, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = f(&s)
		}
		if err != nil {
			return err
		}
	}
}

// importSection imports the section s of r into table, and returns how many counters it has.
func importSection(table *bucket.Table, r *snapshot.Reader, s *snapshot.Section, now time.Time) (counters int, err error) {
	then := now.Add(-s.Age(now)).UnixNano()
	for {
		im, err := r.Image()
		if err == io.EOF {
			return counters, nil
		}
		if err != nil {
			return 0, err
		}
		if err := table.Import(then, s.Partition, im, im.Data, im.Counters, false); err != nil {
			return 0, fmt.Errorf("partition %d: %w", s.Partition, err)
		}
		counters += im.Counters
	}
}

// restore restores in m the imported partitions, and what is known of the others.
func (rec *Recorded) restore(m *handoff.Machine) {
	m.ClusterID(rec.ClusterID)
	if rec.SnapshotLost != "" {
		m.ClusterID(rec.Record.Set.ID)
		m.RestoreUnknown()
	}
	for _, s := range rec.owned {
		m.RestoreOwned(s.Partition, s.LastOwned)
	}
	for _, s := range rec.states {
		m.Restore(s.Partition, s.Mark, s.Start, s.Owned)
		m.RestoreLost(s.Partition, s.LostOf, s.LostSince)
	}
}

// storeRetry is the wait after a failed write of the voter set.
const storeRetry = time.Second

const cannotStore = "the voter set cannot be written: this node takes no part in majorities and " +
	"in founding until it can; free space in --data-dir or repair its disk"

// stored is a write of the voter set that has ended.
type stored struct {
	record message.Record
	err    error
}

// store begins to write what the machine wants on disk, one write at a time. The runner goes on meanwhile, so that heartbeats
// go out in time on a slow disk.
func (r *runner) store(now int64) {
	record, ok := r.quorum.Unstored()
	if !ok || r.storing || now < r.storeAt {
		return
	}
	r.storing = true
	go func() { r.stored <- stored{record, r.node.cfg.Store(record)} }()
}

func (r *runner) takeStored(s stored) {
	now := r.node.cfg.Clock()
	r.storing = false
	failed := r.storeErr != nil
	r.storeErr = s.err
	if s.err == nil {
		if r.storeAt = 0; failed {
			r.node.cfg.Log.Info("the voter set is on disk again")
		}
		r.quorum.Stored(now, s.record)
		return
	}
	if !failed {
		r.node.cfg.Log.Error(cannotStore, "error", s.err)
	}
	r.node.stats.storesFailed.Add(1)
	r.storeAt = now + int64(storeRetry)
	r.quorum.StoreFailed(now)
}
