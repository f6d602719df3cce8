package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/message"
	disk "github.com/sluicecluster/sluice/internal/snapshot"
	"github.com/sluicecluster/sluice/ring"
)

// deferredPause is the least time between two writes of deferred charges.
const deferredPause = time.Second

// snapshotter reads a node's counters from its data directory at the start, and writes them at intervals and at the end. Make it
// with openSnapshotter, end it with close.
type snapshotter struct {
	dir      *disk.Dir
	header   disk.Header // without the time and the voter set
	interval time.Duration
	log      *slog.Logger
	lost     string        // why this node has started without an earlier snapshot; see cluster.Recorded
	node     *cluster.Node // set before begin

	running context.Context // of writing snapshots and deferred charges before the last ones
	halt    context.CancelFunc
	writers sync.WaitGroup
	unsaved bool // the last write of deferred charges has failed

	mu struct {
		sync.Mutex
		stats snapshotStats
	}
}

// snapshotStats counts since the start.
type snapshotStats struct {
	written, failed, rejected uint64
	restored                  int // counters read at the start
	// at is the time of the last snapshot.
	at     time.Time
	took   time.Duration
	totals disk.Totals
}

// openSnapshotter opens the data directory and reads the snapshot in it into table.
func openSnapshotter(s Config, boot string, fingerprint [16]byte, table *bucket.Table, log *slog.Logger) (*snapshotter, *cluster.Recorded, error) {
	dir, err := disk.Open(s.DataDir)
	if err != nil {
		return nil, nil, err
	}
	k := &snapshotter{dir: dir, interval: s.SnapshotInterval, log: log, header: disk.Header{
		Placement: ring.Placement, Fingerprint: fingerprint, Name: s.Name, Boot: boot, Partitions: ring.DefaultPartitions,
	}}
	k.running, k.halt = context.WithCancel(context.Background())
	recorded, err := k.open(table, time.Now())
	if err != nil {
		k.close()
		return nil, nil, err
	}
	k.loadDeferred(recorded, time.Now())
	return k, recorded, nil
}

// open reads the snapshot and this node's record of the voter set. A new directory gets an empty
// snapshot before anything else, so that one with a voter set and no snapshot has lost it.
func (k *snapshotter) open(table *bucket.Table, now time.Time) (*cluster.Recorded, error) {
	recorded, err := k.load(table, now)
	if err != nil {
		return nil, err
	}
	record, err := k.loadVoters()
	if err != nil {
		return nil, err
	}
	switch {
	case record.Set.Zero() && (recorded == nil || recorded.SnapshotLost == string(disk.Foreign)):
		recorded = new(cluster.Recorded)
		k.writeFirst(now)
	case recorded == nil:
		recorded = &cluster.Recorded{SnapshotLost: "missing"}
		k.log.Warn("the snapshot is missing, this node starts without")
	}
	recorded.Record, k.lost = record, recorded.SnapshotLost
	return recorded, nil
}

// writeFirst writes a snapshot of nothing.
func (k *snapshotter) writeFirst(now time.Time) {
	h := k.header
	h.Begun = now
	w, err := k.dir.Create(h)
	if err == nil {
		err = w.Commit()
	}
	if err != nil {
		k.mu.stats.failed++
		k.log.Error("no first snapshot was written", "error", err)
	}
}

// loadVoters reads this node's record of the voter set.
func (k *snapshotter) loadVoters() (message.Record, error) {
	record, aside, err := k.dir.Voters(k.header.Name, k.header.Fingerprint)
	if aside != "" {
		k.log.Warn("the voter set on disk is of another node or cluster, this node starts without", "file", aside)
	}
	if !record.Set.Zero() {
		k.log.Info("voter set read", "version", record.Set.Version, "members", record.Set.Members)
	}
	return record, err
}

// load reads the snapshot, and returns nil if there is none. It sets an unusable one aside, and the
// node starts without.
func (k *snapshotter) load(table *bucket.Table, now time.Time) (*cluster.Recorded, error) {
	recorded, err := k.read(table, now)
	reason := disk.Damaged
	if rejection, ok := errors.AsType[*disk.Rejection](err); ok {
		reason = rejection.Reason
	} else if _, ok := errors.AsType[*bucket.ImportError](err); !ok {
		return recorded, err
	}
	aside, err2 := k.dir.SetAside(now)
	if err2 != nil {
		return nil, errors.Join(err, err2)
	}
	k.mu.stats.rejected++
	k.log.Warn("snapshot rejected and set aside, this node starts without", "reason", reason, "error", err, "file", aside)
	return &cluster.Recorded{SnapshotLost: string(reason)}, nil
}

// want describes the files of this node.
func (k *snapshotter) want(now time.Time) disk.Want {
	h := &k.header
	return disk.Want{Placement: h.Placement, Fingerprint: h.Fingerprint, Name: h.Name, Partitions: h.Partitions, Now: now}
}

func (k *snapshotter) read(table *bucket.Table, now time.Time) (*cluster.Recorded, error) {
	began := time.Now()
	r, err := k.dir.Read(k.want(now))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, nil
	}
	defer r.Close()
	recorded, err := cluster.Load(table, r, now)
	if err != nil {
		return nil, err
	}
	k.mu.stats.restored = recorded.Counters
	k.log.Info("snapshot read", "written", r.Header().Begun, "partitions", recorded.Partitions, "counters", recorded.Counters,
		"took", time.Since(began).Round(time.Millisecond))
	if n := r.Unknown(); n > 0 {
		k.log.Warn("the snapshot has limits that this version does not know; their counters are left out", "sets", n)
	}
	return recorded, nil
}

// start writes snapshots and deferred charges until ctx ends, or last or close is called.
func (k *snapshotter) start(ctx context.Context) {
	context.AfterFunc(ctx, k.halt)
	k.writers.Go(k.saveDeferred)
	if k.interval > 0 {
		k.writers.Go(k.saveSnapshots)
	}
}

func (k *snapshotter) saveSnapshots() {
	tick := time.NewTicker(k.interval)
	defer tick.Stop()
	for {
		select {
		case <-k.running.Done():
			return
		case <-tick.C:
		}
		k.write(k.running, slog.LevelDebug, "snapshot written")
	}
}

// saveDeferred writes deferred charges when they have changed, at most once in deferredPause and a tenth of the time.
func (k *snapshotter) saveDeferred() {
	for {
		select {
		case <-k.running.Done():
			return
		case <-k.node.DeferredChanged():
		}
		began := time.Now()
		k.writeDeferred(k.running)
		if !pause.For(k.running, max(deferredPause, 10*time.Since(began))) {
			return
		}
	}
}

// writeDeferred writes deferred charges. It counts and logs an error; the file from before stays.
func (k *snapshotter) writeDeferred(ctx context.Context) {
	keys, err := k.node.SaveDeferred(ctx, func(set message.Set) (*disk.Writer, error) {
		h := k.header
		h.Begun, h.Set = time.Now(), set
		return k.dir.Deferred().Create(h)
	})
	k.unsaved = err != nil
	switch {
	case err == nil:
		k.log.Debug("deferred charges written", "keys", keys)
	case ctx.Err() == nil:
		k.mu.Lock()
		k.mu.stats.failed++
		k.mu.Unlock()
		k.log.Error("deferred charges were not written, the file from before stays", "error", err)
	}
}

// loadDeferred reads deferred charges into recorded. If they are unreadable the node starts without, and can admit their units
// once more.
func (k *snapshotter) loadDeferred(recorded *cluster.Recorded, now time.Time) {
	r, err := k.dir.Deferred().Read(k.want(now))
	if r == nil && err == nil {
		return
	}
	if err == nil {
		err = errors.Join(recorded.LoadDeferred(r, now), r.Close())
	}
	if err != nil {
		k.mu.stats.rejected++
		k.log.Warn("deferred charges rejected, their units can be admitted once more", "error", err)
		return
	}
	if n := recorded.Deferred(); n > 0 {
		k.log.Info("deferred charges read", "keys", n)
	}
}

// writeLast writes the node's state at its end, and reports whether it has.
func (k *snapshotter) writeLast() bool {
	k.halt()
	k.writers.Wait()
	select {
	case <-k.node.DeferredChanged():
		k.unsaved = true
	default:
	}
	if k.unsaved {
		k.writeDeferred(context.Background())
	}
	return k.write(context.Background(), slog.LevelInfo, "last snapshot written")
}

// write writes one snapshot, logs text, and reports whether it was written. It counts and logs an
// error; the snapshot from before stays.
func (k *snapshotter) write(ctx context.Context, level slog.Level, text string) bool {
	began := time.Now()
	totals, err := k.node.Snapshot(ctx, func(set message.Set) (*disk.Writer, error) {
		h := k.header
		h.Begun, h.Set = began, set
		return k.dir.Create(h)
	})
	if err != nil && ctx.Err() != nil {
		return false // the last snapshot follows
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.mu.stats
	if err != nil {
		s.failed++
		k.log.Error("no snapshot was written, the one before stays", "error", err)
		return false
	}
	s.written++
	s.at, s.took, s.totals = began, time.Since(began), totals
	k.log.Log(ctx, level, text, "partitions", totals.Complete, "counters", totals.Counters, "bytes", totals.Bytes,
		"took", s.took.Round(time.Millisecond))
	return true
}

func (k *snapshotter) stats() snapshotStats {
	if k == nil {
		return snapshotStats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.stats
}

func (k *snapshotter) close() {
	k.halt()
	k.writers.Wait()
	if err := k.dir.Close(); err != nil {
		k.log.Warn("closing the data directory", "error", err)
	}
}
