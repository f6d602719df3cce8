package cluster

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/snapshot"
)

const (
	// imageBytes and imageLimits end an image of a snapshot.
	imageBytes  = 256 << 10
	imageLimits = 512
	// exported is how many counters are exported at a time. A sliding log may have close to a MiB,
	// and an image takes 16.
	exported = 8
	// tries is how often a partition is read that becomes another while it is read.
	tries = 3
)

// Snapshot writes the voter set and every partition that this node has all counters of, held or
// copied, to the writer that create makes, and commits it. Checks go on meanwhile: of each
// partition the mark is read first, and its counters may be newer. Between partitions the
// runner takes a turn, so whoever waits for the processor gets it.
//
// Who is not counted writes no copies: the others have let go of them.
func (n *Node) Snapshot(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (snapshot.Totals, error) {
	var set message.Set
	if err := n.runner.ask(ctx, func(int64) { set = n.runner.quorum.Set() }); err != nil {
		return snapshot.Totals{}, err
	}
	w, err := create(set)
	if err != nil {
		return snapshot.Totals{}, err
	}
	defer w.Abort()
	c := copier{table: n.table, clock: n.cfg.Clock, state: n.state, copies: set.Has(n.cfg.Name)}
	for p := range n.cfg.Ring.Partitions {
		if err := c.partition(ctx, w, p); err != nil {
			return snapshot.Totals{}, err
		}
	}
	err = w.Commit()
	return w.Totals(), err
}

// state returns what this node has of partition p, if anything.
func (n *Node) state(ctx context.Context, p int) (s handoff.State, ok bool, err error) {
	r := n.runner
	err = r.ask(ctx, func(int64) { s, ok = r.handoff.State(p) })
	return s, ok, err
}

// copier reads the table for a snapshot, one partition at a time.
type copier struct {
	table  *bucket.Table
	clock  func() int64
	state  func(ctx context.Context, p int) (handoff.State, bool, error)
	copies bool // are wanted
	keys   []bucket.Key
	images []bucket.Image // of the partition; room for later ones behind them
}

// partition writes what this node has of p. What is read while an initial sync begins anew
// would lack counters, so it is kept until the state is seen to be the same.
func (c *copier) partition(ctx context.Context, w *snapshot.Writer, p int) error {
	for range tries {
		before, ok, err := c.state(ctx, p)
		if err != nil || !ok || !before.Complete || !before.Held && !c.copies {
			return err
		}
		now, at := c.clock(), time.Now()
		c.read(now, p)
		after, ok, err := c.state(ctx, p)
		if err != nil {
			return err
		}
		if ok && after.Follows(before) {
			s := snapshot.Section{
				Partition: p, Mark: before.Mark, Start: before.Start, Holding: before.Held, Complete: true, At: at,
			}
			if after.LostOf != (message.Epoch{}) {
				s.LostOf, s.LostAt = after.LostOf, at.Add(-time.Duration(now-after.LostSince))
			}
			return c.write(w, s)
		}
	}
	return nil // others have it: it is on its way to and fro
}

// read exports all counters of p as of now.
func (c *copier) read(now int64, p int) {
	c.keys = c.table.Keys(p, c.keys[:0])
	c.images = c.images[:0]
	for rest := c.keys; len(rest) > 0; {
		im := c.image()
		for len(rest) > 0 && len(im.Data) < imageBytes && len(im.Limits) < imageLimits {
			k := min(exported, len(rest))
			c.table.Export(now, p, rest[:k], im)
			rest = rest[k:]
		}
	}
}

// image returns an empty image, the last of c.images.
func (c *copier) image() *bucket.Image {
	k := len(c.images)
	if k == cap(c.images) {
		c.images = append(c.images, bucket.Image{})
	}
	c.images = c.images[:k+1]
	im := &c.images[k]
	*im = bucket.Image{Limits: im.Limits[:0], Data: im.Data[:0]}
	return im
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

// Recorded is what an earlier run of a node has left in its data directory. The zero
// value is what is found there at the first start.
type Recorded struct {
	// Record is the node's part in the voter set. Load does not set it.
	Record message.Record
	// Cluster ID is the ID of the voter set that the partitions are of, empty if none.
	ClusterID string
	// Partitions and Counters say how many were imported.
	Partitions, Counters int
	states               []handoff.State
	deferred             []share.Charge // what is to be charged to owners, of voters
	voters               int
}

// Load imports the partitions that r has all counters of into table, as of now, the time of
// day: what has passed since they were written has passed for them. If the file turns out
// to be none of a table, the error wraps a *bucket.ImportError, and table is empty again.
//
// Load before New: from then on the table's shards are the node's.
func Load(table *bucket.Table, r *snapshot.Reader, now time.Time) (*Recorded, error) {
	h := r.Header()
	rec := &Recorded{ClusterID: h.Set.ID}
	for {
		s, err := r.Next()
		if err == io.EOF {
			return rec, nil
		}
		if err == nil && s.Complete {
			err = rec.load(table, r, &s, now)
		}
		if err != nil {
			for p := range h.Partitions {
				table.DropShard(p)
			}
			return nil, err
		}
	}
}

func (rec *Recorded) load(table *bucket.Table, r *snapshot.Reader, s *snapshot.Section, now time.Time) error {
	then := now.Add(-s.Age(now)).UnixNano()
	for {
		im, err := r.Image()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := table.Import(then, s.Partition, im, im.Data, im.Counters, false); err != nil {
			return fmt.Errorf("partition %d: %w", s.Partition, err)
		}
		rec.Counters += im.Counters
	}
	rec.Partitions++
	state := handoff.State{Partition: s.Partition, Mark: s.Mark, Start: s.Start, Held: s.Holding, Complete: true}
	if s.LostOf != (message.Epoch{}) {
		state.LostOf, state.LostSince = s.LostOf, min(s.LostAt.UnixNano(), now.UnixNano())
	}
	rec.states = append(rec.states, state)
	return nil
}

// restore tells m what was imported.
func (rec *Recorded) restore(m *handoff.Machine) {
	for _, s := range rec.states {
		m.Restore(s.Partition, s.Mark, s.Start, s.Held)
		m.RestoreLost(s.Partition, s.LostOf, s.LostSince)
	}
}

// storeAgain is how long after a write that failed the next one begins.
const storeAgain = time.Second

// stored is a write of the voter set that has ended.
type stored struct {
	record message.Record
	err    error
}

// store begins to write what the machine wants on disk, if one write is not under way. The runner goes on
// meanwhile: heartbeats go out in time on a slow disk.
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
	if s.err == nil {
		if r.storeAt != 0 {
			r.storeAt = 0
			r.node.cfg.Log.Info("the voter set is on disk again")
		}
		r.quorum.Stored(now, s.record)
		return
	}
	if r.storeAt == 0 {
		r.node.cfg.Log.Error("the voter set cannot be written: this node has no quorum until it can", "error", s.err)
	}
	r.node.stats.storesFailed.Add(1)
	r.storeAt = now + int64(storeAgain)
	r.quorum.StoreFailed(now)
}
