package share

import (
	"cmp"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// answerWays is the size of a set of answers. A full set evicts its oldest key. 65,536 answers take 3.1 MB.
const answerWays = 4

// Answers remembers what owners last said to be left of keys, so that a share of that can be given when they are not reached. It
// is written for each forwarded check, so it is fast at that: one lock for all answers of a round, two cache lines for each, and no
// unpredictable branch (BenchmarkNoteRound of cluster). An LRU list would write more cache lines. Safe for concurrent use; the
// zero value is ready, and allocates with the first answer.
type Answers struct {
	limits int // that are remembered, 0 for 65,536
	mu     struct {
		sync.Mutex
		sets []answerSet
	}
}

// answerSet is three cache lines: one to find a key in, two for the answers.
type answerSet struct {
	tags    [answerWays]uint64 // of the keys, 0 for none
	next    uint64             // number of keys that were put in
	_       [3]uint64
	answers [answerWays]lastAnswer
}

// lastAnswer is an owner's last answer for one limit of a key.
type lastAnswer struct {
	limits uint64        // Limits.Sum, which keeps no limits in memory
	asked  int64         // when the owner was asked, negative once a share was computed from the answer
	left   int64         // complemented, and so negative, if the check was denied
	reset  time.Duration // as in the decision
}

// placeLocked returns the set and the tag of limit i of key.
func (a *Answers) placeLocked(k bucket.Key, i int) (s *answerSet, tag uint64) {
	lo := k.Lo + uint64(i)*0x9e3779b97f4a7c15
	return &a.mu.sets[lo%uint64(len(a.mu.sets))], max(1, k.Hi+lo*0xd1342543de82ef95)
}

// find returns the index of tag in s, or -1. It has no unpredictable branch.
func (s *answerSet) find(tag uint64) int {
	at := -1
	if s.tags[0] == tag {
		at = 0
	}
	if s.tags[1] == tag {
		at = 1
	}
	if s.tags[2] == tag {
		at = 2
	}
	if s.tags[3] == tag {
		at = 3
	}
	return at
}

// Lock must be held during NoteLocked.
func (a *Answers) Lock() { a.mu.Lock() }

// Unlock releases Lock.
func (a *Answers) Unlock() { a.mu.Unlock() }

// Note records that the owner of r's key, asked at a time, has decided d.
func (a *Answers) Note(asked int64, r *bucket.Request, d *bucket.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.NoteLocked(asked, r, d)
}

// NoteLocked is Note under the lock.
func (a *Answers) NoteLocked(asked int64, r *bucket.Request, d *bucket.Decision) {
	if a.mu.sets == nil {
		a.mu.sets = make([]answerSet, max(1, cmp.Or(a.limits, 1<<16)/answerWays))
	}
	left := d.Remaining
	if !d.Allowed {
		left = ^left
	}
	s, tag := a.placeLocked(r.Key, int(d.Index))
	at := s.find(tag)
	if at < 0 {
		at = int(s.next % answerWays)
		s.next++
		s.tags[at] = tag
	} else if x := &s.answers[at]; max(x.asked, -x.asked) > asked {
		// A check that was sent later was answered before. The owner may have decided this one later all
		// the same, if both were in one window.
		if _, to, _ := r.Limits.Says(int(d.Index), asked, d.ResetAfter); x.limits == r.Limits.Sum() && max(x.asked, -x.asked) < to &&
			d.Remaining < max(x.left, ^x.left) {
			x.left, x.asked = left, max(x.asked, -x.asked)
		}
		return
	}
	s.answers[at] = lastAnswer{r.Limits.Sum(), asked, left, d.ResetAfter}
}

// findLocked returns the answer for limit i of key under limits, nil if there is none.
func (a *Answers) findLocked(key bucket.Key, limits *bucket.Limits, i int) *lastAnswer {
	if a.mu.sets == nil {
		return nil
	}
	s, tag := a.placeLocked(key, i)
	if at := s.find(tag); at >= 0 && s.answers[at].limits == limits.Sum() {
		return &s.answers[at]
	}
	return nil
}

// fresh reports whether an owner has answered for key since left was last called for it, and the answer still holds at a time.
func (a *Answers) fresh(at int64, key bucket.Key, limits *bucket.Limits) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range limits.Len() {
		if x := a.findLocked(key, limits, i); x != nil && x.asked > 0 {
			if _, _, until := limits.Says(i, x.asked, x.reset); at < until {
				return true
			}
		}
	}
	return false
}

// newest returns when the owner of key was last asked, or when the window of its answer began if that is later; 0 without an
// answer.
func (a *Answers) newest(now int64, key bucket.Key, limits *bucket.Limits) (newest int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range limits.Len() {
		if x := a.findLocked(key, limits, i); x != nil {
			asked := max(x.asked, -x.asked)
			from, _, _ := limits.Says(i, asked, x.reset)
			newest = max(newest, asked, min(from, now))
		}
	}
	return newest
}

// left fills in how many units of each limit of key were left by its owner's last answer, as of a time; unknown where another
// window has begun since. Nothing is left while the owner's window is not the one by this node's clock, so that no share is given
// twice. least is a bound for all limits: none had less when an owner last admitted a check.
func (a *Answers) left(at int64, key bucket.Key, limits *bucket.Limits, left []int64) (least int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	least = unknown
	newest := int64(0)
	for i := range left {
		left[i] = unknown
		x := a.findLocked(key, limits, i)
		if x == nil {
			continue
		}
		asked := max(x.asked, -x.asked)
		from, to, until := limits.Says(i, asked, x.reset)
		if at >= from { // else it is fresh until then
			x.asked = -asked
		}
		switch {
		case at >= until:
			continue
		case at < from, at >= to:
			left[i] = 0
			continue
		}
		left[i] = max(x.left, ^x.left)
		if x.left >= 0 && (least == unknown || asked > newest) {
			least, newest = x.left, asked
		}
	}
	return least
}

// keep records list, the state of r's counter, which is about to be dropped.
func (a *Answers) keep(now int64, r *bucket.Request, list []bucket.Standing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, s := range list {
		x := a.findLocked(r.Key, r.Limits, i)
		if x != nil && max(x.left, ^x.left) <= s.Remaining {
			if _, to, _ := r.Limits.Says(i, max(x.asked, -x.asked), x.reset); now < to {
				continue // the replica was behind
			}
		}
		a.NoteLocked(now, r, &bucket.Decision{Index: uint8(i), Remaining: s.Remaining, ResetAfter: s.ResetAfter})
	}
}
