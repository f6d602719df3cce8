package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster"
	"github.com/sluice-project/sluice/internal/message"
	disk "github.com/sluice-project/sluice/internal/snapshot"
	"github.com/sluice-project/sluice/ring"
)

// deferredPause is the least time between two writes of deferred charges.
const deferredPause = time.Second

// keeper keeps a node's counters in its data directory: it reads them at the start, and
// writes them now and then and at the end. Make it with openKeeper, end it with close.
type keeper struct {
	dir      *disk.Dir
	header   disk.Header // but for the time and the set
	interval time.Duration
	log      *slog.Logger
	node     *cluster.Node // set before begin

	// halt ends running, the context of snapshots made now and then; idle is closed when
	// none is made any more, and nil before begin.
	running context.Context
	halt    context.CancelFunc
	idle    chan struct{}
	// saved is closed when deferred charges are no longer written as they change; unsaved then says that the last ones were not.
	saved   chan struct{}
	unsaved bool

	mu struct {
		sync.Mutex
		stats keeperStats
	}
}

// keeperStats counts since the start.
type keeperStats struct {
	written, failed, rejected uint64
	// restored counters were read at the start.
	restored int
	// The last one that was written: when, how long it took and what it has.
	at     time.Time
	took   time.Duration
	totals disk.Totals
}

// openKeeper opens the data directory and reads the snapshot in it into table.
func openKeeper(s Config, boot string, fingerprint [16]byte, table *bucket.Table, log *slog.Logger) (*keeper, *cluster.Recorded, error) {
	dir, err := disk.Open(s.DataDir)
	if err != nil {
		return nil, nil, err
	}
	k := &keeper{dir: dir, interval: s.SnapshotInterval, log: log, header: disk.Header{
		Placement: ring.Placement, Fingerprint: fingerprint, Name: s.Name, Boot: boot, Partitions: ring.DefaultPartitions,
	}}
	k.running, k.halt = context.WithCancel(context.Background())
	recorded, err := k.load(table, time.Now())
	if err == nil {
		err = k.loadVoters(recorded)
	}
	if err != nil {
		k.close()
		return nil, nil, err
	}
	k.loadDeferred(recorded, time.Now())
	return k, recorded, nil
}

// loadVoters reads this node's part in the voter set.
func (k *keeper) loadVoters(into *cluster.Recorded) error {
	record, aside, err := k.dir.Voters(k.header.Name, k.header.Fingerprint)
	if err != nil {
		return err
	}
	if aside != "" {
		k.log.Warn("the voter set on disk is of another node or cluster, this node starts without", "file", aside)
	}
	if !record.Set.Zero() {
		k.log.Info("voter set read", "version", record.Set.Version, "members", record.Set.Members)
	}
	into.Record = record
	return nil
}

// putVoters writes this node's part in the voter set.
func (k *keeper) putVoters(r message.Record) error {
	return k.dir.PutVoters(k.header.Name, k.header.Fingerprint, r)
}

// load reads the snapshot. One that must not be used is set aside, and the node goes
// on without.
func (k *keeper) load(table *bucket.Table, now time.Time) (*cluster.Recorded, error) {
	recorded, err := k.read(table, now)
	var rejection *disk.Rejection
	var unfit *bucket.ImportError
	reason := disk.Damaged
	switch {
	case errors.As(err, &rejection):
		reason = rejection.Reason
	case errors.As(err, &unfit):
	default:
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

func (k *keeper) read(table *bucket.Table, now time.Time) (*cluster.Recorded, error) {
	h := &k.header
	began := time.Now()
	r, err := k.dir.Read(disk.Want{
		Placement: h.Placement, Fingerprint: h.Fingerprint, Name: h.Name, Partitions: h.Partitions, Now: now,
	})
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

// begin makes snapshots now and then, until ctx ends or last or close is called.
func (k *keeper) begin(p *parts) {
	k.idle, k.saved = make(chan struct{}), make(chan struct{})
	p.run("deferred charges", func(context.Context) error {
		defer close(k.saved)
		k.saveDeferred()
		return nil
	})
	p.run("snapshots", func(ctx context.Context) error {
		defer close(k.idle)
		defer context.AfterFunc(ctx, k.halt)()
		k.run()
		return nil
	})
}

func (k *keeper) run() {
	if k.interval == 0 {
		return
	}
	// One that takes longer than the interval takes the place of the next.
	tick := time.NewTicker(k.interval)
	defer tick.Stop()
	for {
		select {
		case <-k.running.Done():
			return
		case <-tick.C:
		}
		if k.write(k.running) == nil {
			s := k.stats()
			k.log.Debug("snapshot written", "partitions", s.totals.Sections, "counters", s.totals.Counters, "bytes", s.totals.Bytes,
				"took", s.took.Round(time.Millisecond))
		}
	}
}

// saveDeferred writes deferred charges when they have changed, at most once in deferredPause, and not more than a tenth of the
// time.
func (k *keeper) saveDeferred() {
	for {
		select {
		case <-k.running.Done():
			return
		case <-k.node.DeferredChanged():
		}
		began := time.Now()
		k.writeDeferred(k.running)
		rest := time.NewTimer(max(deferredPause, 10*time.Since(began)))
		select {
		case <-k.running.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

// writeDeferred writes deferred charges. An error is counted and logged; what was written before stays.
func (k *keeper) writeDeferred(ctx context.Context) {
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
		k.log.Error("deferred charges were not written, what was written before stays", "error", err)
	}
}

// loadDeferred reads deferred charges into recorded. Without them the node can admit once more what they were for, so one that
// cannot be read is worth a line, but no reason not to start.
func (k *keeper) loadDeferred(recorded *cluster.Recorded, now time.Time) {
	h := &k.header
	r, err := k.dir.Deferred().Read(disk.Want{
		Placement: h.Placement, Fingerprint: h.Fingerprint, Name: h.Name, Partitions: h.Partitions, Now: now,
	})
	if r == nil && err == nil {
		return
	}
	if err == nil {
		err = errors.Join(recorded.LoadDeferred(r, now), r.Close())
	}
	if err != nil {
		k.mu.stats.rejected++
		k.log.Warn("deferred charges rejected, what they were for can be admitted once more", "error", err)
		return
	}
	if n := recorded.Deferred(); n > 0 {
		k.log.Info("deferred charges read", "keys", n)
	}
}

// last writes what the node has at its end.
func (k *keeper) last() {
	k.halt()
	<-k.idle
	<-k.saved
	select {
	case <-k.node.DeferredChanged():
		k.unsaved = true
	default:
	}
	if k.unsaved {
		k.writeDeferred(context.Background())
	}
	if k.write(context.Background()) == nil {
		s := k.stats()
		k.log.Info("last snapshot written", "partitions", s.totals.Sections, "counters", s.totals.Counters, "bytes", s.totals.Bytes,
			"took", s.took.Round(time.Millisecond))
	}
}

// write makes one snapshot. An error is counted and logged; the last one stays in place.
func (k *keeper) write(ctx context.Context) error {
	began := time.Now()
	totals, err := k.node.Snapshot(ctx, func(set message.Set) (*disk.Writer, error) {
		h := k.header
		h.Begun, h.Set = began, set
		return k.dir.Create(h)
	})
	if err != nil && ctx.Err() != nil {
		return err // the last one takes its place
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.mu.stats
	if err != nil {
		s.failed++
		k.log.Error("no snapshot was written, the one before stays", "error", err)
		return err
	}
	s.written++
	s.at, s.took, s.totals = began, time.Since(began), totals
	return nil
}

func (k *keeper) stats() keeperStats {
	if k == nil {
		return keeperStats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.stats
}

func (k *keeper) close() {
	k.halt()
	if k.idle != nil {
		<-k.idle
		<-k.saved
	}
	if err := k.dir.Close(); err != nil {
		k.log.Warn("closing the data directory", "error", err)
	}
}
