package cluster

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

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
