package cluster

import (
	"fmt"
	"io"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/snapshot"
)

// Recorded is what an earlier run of a node has left in its data directory. The zero
// value is what is found there at the first start.
type Recorded struct {
	// Record is the node's part in the voter set. Load does not set it.
	Record message.Record
	// Lineage is the ID of the voter set that the partitions are of, empty if none.
	Lineage string
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
	rec := &Recorded{Lineage: h.Set.ID}
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
