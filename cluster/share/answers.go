package share

import (
	"cmp"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// What owners have answered last is remembered for Config.LastAnswers limits of keys, in sets of four. When a set is full, the
// key that is in it for longest goes. 65,536 take 3.1 MB.
const answerWays = 4

// Answers remembers what owners last said to be left of keys, so that a share of that can be given when they cannot be
// reached. It is written for each forwarded check, so it is made for that: one lock for all answers of a round, and two lines
// of memory for each, without a branch that the processor cannot foresee (BenchmarkNoteRound of cluster). A list in the order of use has more lines of memory to
// write. Safe for concurrent use; the zero value is ready, and takes its memory with the first answer.
type Answers struct {
	limits int // that are remembered, 0 for 65,536
	mu     struct {
		sync.Mutex
		sets []answerSet
	}
}

// answerSet initial syncs three lines of memory: one to find a key in, two for what is remembered.
type answerSet struct {
	tags    [answerWays]uint64 // of the keys, 0 for none
	next    uint64             // counts the keys that were put in
	_       [3]uint64
	answers [answerWays]lastAnswer
}

// lastAnswer is what an owner has said of one limit of a key.
type lastAnswer struct {
	limits uint64 // the Sum of the key's: what is remembered keeps no limits in memory
	// asked is when the owner was asked, negative once a share was worked out of the answer.
	asked int64
	// left and reset are what it said; left is complemented, and so negative, if it denied the check.
	left  int64
	reset time.Duration
}

// placeLocked returns the set and the tag of limit i of key.
func (a *Answers) placeLocked(k bucket.Key, i int) (s *answerSet, tag uint64) {
	lo := k.Lo + uint64(i)*0x9e3779b97f4a7c15
	return &a.mu.sets[lo%uint64(len(a.mu.sets))], max(1, k.Hi+lo*0xd1342543de82ef95)
}

// find returns the place of tag in s, or -1.
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

// Lock is held from before a round's first NoteLocked until Unlock.
func (a *Answers) Lock() { a.mu.Lock() }

// Unlock ends what Lock has begun.
func (a *Answers) Unlock() { a.mu.Unlock() }

// Note notes that the owner of r's key, asked at a time, has decided d.
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
	s, tag := a.placeLocked(r.Key, int(d.Index))
	at := s.find(tag)
	if at < 0 {
		at = int(s.next % answerWays)
		s.next++
		s.tags[at] = tag
	}
	left := d.Remaining
	if !d.Allowed {
		left = ^left
	}
	s.answers[at] = lastAnswer{r.Limits.Sum(), asked, left, d.ResetAfter}
}

// findLocked returns what is remembered of limit i of key under limits, nil if nothing is.
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

// fresh reports whether an owner has answered for key since left was last called for it, and that says something at a time.
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

// newest returns when the owner of key was last asked for what is remembered at a time, or when the window began since that it spoke of. 0 if
// nothing is remembered.
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

// left fills in how many units of each limit of key were left when its owner last said so, as of a time, or unknown where that
// says nothing any more, because another window has begun since. Nothing is left while the window that lasts for the owner is not the
// one that lasts by this node's clock, so that no share is given twice. least is the same of all limits together: none of them had less when an owner last admitted a check.
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

// keep notes that a counter of r's key, which is about to be dropped, stands as list says.
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
