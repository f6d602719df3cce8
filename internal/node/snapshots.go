package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster"
	"github.com/sluice-project/sluice/internal/leaf/pause"
	"github.com/sluice-project/sluice/internal/message"
	disk "github.com/sluice-project/sluice/internal/snapshot"
	"github.com/sluice-project/sluice/ring"
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
	recorded, err := k.load(table, time.Now())
	if err == nil {
		recorded.Record, err = k.loadVoters()
	}
	if err != nil {
		k.close()
		return nil, nil, err
	}
	k.loadDeferred(recorded, time.Now())
	return k, recorded, nil
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

// load reads the snapshot. It sets an unusable one aside, and the node starts without.
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
	return &cluster.Recorded{}, nil
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
		return &cluster.Recorded{}, nil
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

// writeLast writes the node's state at its end.
func (k *snapshotter) writeLast() {
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
	k.write(context.Background(), slog.LevelInfo, "last snapshot written")
}

// write writes one snapshot and logs text. It counts and logs an error; the snapshot from before stays.
func (k *snapshotter) write(ctx context.Context, level slog.Level, text string) {
	began := time.Now()
	totals, err := k.node.Snapshot(ctx, func(set message.Set) (*disk.Writer, error) {
		h := k.header
		h.Begun, h.Set = began, set
		return k.dir.Create(h)
	})
	if err != nil && ctx.Err() != nil {
		return // the last snapshot follows
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.mu.stats
	if err != nil {
		s.failed++
		k.log.Error("no snapshot was written, the one before stays", "error", err)
		return
	}
	s.written++
	s.at, s.took, s.totals = began, time.Since(began), totals
	k.log.Log(ctx, level, text, "partitions", totals.Sections, "counters", totals.Counters, "bytes", totals.Bytes,
		"took", s.took.Round(time.Millisecond))
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
