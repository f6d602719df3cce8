package lease

import (
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Denials remembers, for a moment, what holders have denied. It is a fixed number of places: a key that
// finds its place taken takes it over, and the other is asked for again. Safe for concurrent use; the
// zero value is ready, and takes its memory, about 1.5 MB, with the first denial.
type Denials struct{ shards [denialShards]denialShard }

const (
	denialShards = 64
	shardDenials = 128
)

type denialShard struct {
	mu struct {
		sync.Mutex
		denials []denial // nil, or shardDenials of them
		// forgotten is when something was last forgotten here. What was asked before tells nothing.
		forgotten int64
	}
}

// denial is what a holder has said of a request.
type denial struct {
	request bucket.Request
	// sent is when it was asked, heard when the answer came, until when the answer is good.
	sent, heard, until int64
	decision           bucket.Decision
	holder             string
}

func (d *Denials) shard(k bucket.Key) *denialShard { return &d.shards[k.Lo%denialShards] }

// at returns k's place. The shard was chosen by the low bits.
func (s *denialShard) at(k bucket.Key) *denial {
	return &s.mu.denials[k.Lo/denialShards%shardDenials]
}

// Remember notes that holder has denied r by decision, which it was asked at sent, and which was heard of at
// now. It is good for so long after the asking, whatever was spent since; not if the
// key was forgotten meanwhile.
func (d *Denials) Remember(sent, now int64, r *bucket.Request, decision *bucket.Decision, holder string, good time.Duration) {
	until := sent + int64(good)
	if until <= now {
		return
	}
	s := d.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		s.mu.denials = make([]denial, shardDenials)
	} else if sent <= s.mu.forgotten {
		return
	}
	*s.at(r.Key) = denial{*r, sent, now, until, *decision, holder}
}

// Answer answers r at now if what its holder has denied means that it would deny r: under
// the same limits, a cost that is no less. age is how long ago the holder was asked, also where its denial of the key says nothing any
// more; 0 where none is remembered. Times in the decision are counted from now.
func (d *Denials) Answer(now int64, r *bucket.Request) (decision bucket.Decision, holder string, age time.Duration, ok bool) {
	s := d.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		return decision, "", 0, false
	}
	x := s.at(r.Key)
	q := &x.request
	if q.Key != r.Key {
		return decision, "", 0, false
	}
	age = time.Duration(now - x.sent)
	if q.Limits != r.Limits || now >= x.until || r.Cost < q.Cost || r.Reserve != q.Reserve {
		return decision, "", age, false
	}
	decision = x.decision
	passed := time.Duration(now - x.heard)
	if decision.RetryAfter != bucket.Never {
		decision.RetryAfter = max(0, decision.RetryAfter-passed)
	}
	decision.ResetAfter = max(0, decision.ResetAfter-passed)
	return decision, x.holder, age, true
}

// Forget drops what is known of key at now: there may be more room than its holder has said.
func (d *Denials) Forget(now int64, key bucket.Key) {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.forgotten = now
	if s.mu.denials != nil {
		if x := s.at(key); x.request.Key == key {
			*x = denial{}
		}
	}
}

// Left returns for how much longer after now key is denied from memory, 0 if it is not.
func (d *Denials) Left(now int64, key bucket.Key) time.Duration {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		return 0
	}
	if x := s.at(key); x.request.Key == key {
		return time.Duration(max(0, x.until-now))
	}
	return 0
}
