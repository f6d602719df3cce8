package cluster

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// unknown stands for a number of units left of which nothing is known.
const unknown int64 = -1

// shares decides what this node admits without owners: of each limit a part of what was left when the owner was last heard.
type shares struct {
	// table has a counter for each key of which a share was given: under the limits divided by the voters, and spent so far
	// that the share is left. What it admits since comes back as the algorithm says, at the rate divided by the voters.
	table *bucket.Table
	// locks keep two checks of one key from working out its share at once.
	locks [64]sync.Mutex
	// unknown counts shares that were worked out though no owner's answer was remembered.
	unheard atomic.Uint64
}

// shareOf turns left, the units of each limit that were left when the owner was last heard, into those of the share of
// one of so many voters: its part of what was left, rounded down, and at most its part of the limit, less what it has admitted
// itself and no owner has acknowledged. Of a limit that is unknown it is the part of the limit, or nothing.
func shareOf(left []int64, own []bucket.Standing, voters int, unheard rules.UnknownShare) {
	for i := range left {
		part := left[i] / int64(voters)
		if left[i] == unknown {
			part = math.MaxInt64
			if unheard == rules.UnknownNone {
				part = 0
			}
		}
		left[i] = max(0, min(part, own[i].Limit)-own[i].Spent)
	}
}

// share answers req by this node's share of its limits, and remembers what it admits as a deferred charge.
func (n *Node) share(r *routing, req *check.Request, w *whole) bucket.Decision {
	now := n.cfg.Clock()
	part := req.Request
	part.Limits = req.Limits.Share(r.voters)
	l := &n.shares.locks[req.Key.Lo%uint64(len(n.shares.locks))]
	l.Lock()
	defer l.Unlock()
	quorum := n.mayDecide(now)
	if !n.shares.table.Has(req.Key) || n.answers.fresh(req.Key, req.Limits) || quorum && r.holds(req.Key) {
		n.workOut(n.fallback.asOf(now, quorum), req, part.Limits, r.voters)
	}
	d, charged := w.share(n, now, &part)
	if charged {
		n.owed.add(&req.Request)
	}
	return d
}

// workOut sets the counter of req's key to its share as of a time, until which owners could be asked.
func (n *Node) workOut(asOf int64, req *check.Request, part *bucket.Limits, voters int) {
	var array [bucket.MaxLimits]int64
	left := array[:req.Limits.Len()]
	least := n.answers.left(asOf, req.Key, req.Limits, left)
	// An owner that has lost quorum, and a replica, have the counter itself.
	counted, has := n.table.Look(asOf, req.Key, req.Limits)
	unheard := true
	for i := range left {
		if has && (left[i] == unknown || counted[i].Remaining < left[i]) {
			left[i] = counted[i].Remaining
		}
		if left[i] != unknown {
			unheard = false
		} else if req.UnknownShare == rules.UnknownNone {
			left[i] = least // no limit had less
		}
	}
	if unheard {
		n.shares.unheard.Add(1)
	}
	own, _ := n.apart.Look(asOf, req.Key, part)
	shareOf(left, own, voters, req.UnknownShare)
	n.shares.table.Leave(asOf, req.Key, part, left)
}

// forget drops all shares: this node has quorum again, and the next time they are worked out anew.
func (s *shares) forget(shards int) {
	for i := range shards {
		s.table.DropShard(i)
	}
}
