package cluster

import (
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// What owners have answered last is remembered for so many limits of keys: 65,536, in sets of four. When a set is full, the
// key that is in it for longest goes. That takes 3.1 MB.
const (
	answerSets = 1 << 14
	answerWays = 4
)

// lastAnswers remembers what owners last said to be left of keys, so that a share of that can be given when they cannot be
// reached. It is written for each forwarded check, so it is made for that: one lock for all answers of a round, and two lines
// of memory for each, without a branch that the processor cannot foresee (BenchmarkNoteRound). A list in the order of use has more lines of memory to
// write. Safe for concurrent use; the zero value is ready, and takes its memory with the first answer.
type lastAnswers struct {
	mu struct {
		sync.Mutex
		sets []answerSet
	}
}

// answerSet fills three lines of memory: one to find a key in, two for what is remembered.
type answerSet struct {
	tags    [answerWays]uint64 // of the keys, 0 for none
	next    uint64             // counts the keys that were put in
	_       [3]uint64
	answers [answerWays]lastAnswer
}

// lastAnswer is what an owner has said of one limit of a key.
type lastAnswer struct {
	limits *bucket.Limits // of the key
	// asked is when the owner was asked, negative once a share was worked out of the answer.
	asked int64
	// left and reset are what it said; left is complemented, and so negative, if it denied the check.
	left  int64
	reset time.Duration
}

// answerPlace returns the set and the tag of limit i of key.
func answerPlace(k bucket.Key, i int) (set int, tag uint64) {
	lo := k.Lo + uint64(i)*0x9e3779b97f4a7c15
	return int(lo % answerSets), max(1, k.Hi+lo*0xd1342543de82ef95)
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

// noteRound notes what owners have decided in a round of f.
func (a *lastAnswers) noteRound(f *forwarding) {
	locked := false
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || !p.done {
			continue
		}
		answer := &f.batch.Answers[p.index]
		if answer.Source != check.Forwarded || answer.Age != 0 && f.age(p) > 0 {
			continue // or it is such an answer
		}
		if !locked {
			locked = true
			a.mu.Lock()
		}
		a.noteLocked(f.sent, &f.batch.Requests[p.index].Request, &answer.Decision)
	}
	if locked {
		a.mu.Unlock()
	}
}

// note notes that the owner of r's key, asked at a time, has decided d.
func (a *lastAnswers) note(asked int64, r *bucket.Request, d *bucket.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteLocked(asked, r, d)
}

func (a *lastAnswers) noteLocked(asked int64, r *bucket.Request, d *bucket.Decision) {
	if a.mu.sets == nil {
		a.mu.sets = make([]answerSet, answerSets)
	}
	set, tag := answerPlace(r.Key, int(d.Index))
	s := &a.mu.sets[set]
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
	s.answers[at] = lastAnswer{r.Limits, asked, left, d.ResetAfter}
}

// keptCounters is of how many counters of a partition that is dropped it is remembered what was left.
const keptCounters = 64

// keepLeft remembers what is left by the counters of a partition that this node owned, or had a replica of, and is about to drop.
func (n *Node) keepLeft(partition int) {
	now := n.cfg.Clock()
	n.table.Recent(now, partition, keptCounters, func(key bucket.Key, limits *bucket.Limits, list []bucket.Standing) {
		r := bucket.Request{Key: key, Limits: limits}
		n.answers.mu.Lock()
		defer n.answers.mu.Unlock()
		for i, s := range list {
			x := n.answers.findLocked(key, limits, i)
			if x != nil && max(x.left, ^x.left) <= s.Remaining && now < limits.Says(i, max(x.asked, -x.asked), x.reset) {
				continue // the replica was behind
			}
			n.answers.noteLocked(now, &r, &bucket.Decision{Index: uint8(i), Remaining: s.Remaining, ResetAfter: s.ResetAfter})
		}
	})
}

// findLocked returns what is remembered of limit i of key under limits, nil if nothing is.
func (a *lastAnswers) findLocked(key bucket.Key, limits *bucket.Limits, i int) *lastAnswer {
	if a.mu.sets == nil {
		return nil
	}
	set, tag := answerPlace(key, i)
	s := &a.mu.sets[set]
	if at := s.find(tag); at >= 0 && s.answers[at].limits.Equal(limits) {
		return &s.answers[at]
	}
	return nil
}

// fresh reports whether an owner has answered for key since left was last called for it.
func (a *lastAnswers) fresh(key bucket.Key, limits *bucket.Limits) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range limits.Len() {
		if x := a.findLocked(key, limits, i); x != nil && x.asked > 0 {
			return true
		}
	}
	return false
}

// left fills in how many units of each limit of key were left when its owner last said so, as of a time, or unknown where that
// says nothing any more, because another window has begun since. least is the same of all limits together: none of them had less
// when an owner last admitted a check.
func (a *lastAnswers) left(at int64, key bucket.Key, limits *bucket.Limits, left []int64) (least int64) {
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
		x.asked = -asked
		if at >= limits.Says(i, asked, x.reset) {
			continue
		}
		left[i] = max(x.left, ^x.left)
		if x.left >= 0 && (least == unknown || asked > newest) {
			least, newest = x.left, asked
		}
	}
	return least
}
