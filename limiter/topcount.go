package limiter

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/rules"
)

const (
	// topSlot and topPlaces make the windows: three to four slots of so many keys.
	topSlot   = 20 * time.Second
	topPlaces = 2048
	// Of more than busy checks in a second, one in sparse is counted, with that weight.
	busy   = 1000
	sparse = 16
)

// topCount counts the heaviest keys that are asked of this node's doors. Where checks are many most of them
// cost it one random number; there is no lock or counter that all of them share.
type topCount struct {
	frequent, limited *heavy.Window
	// random is uniform over uint32.
	random func() uint32

	every   atomic.Uint32 // one in so many is counted: 1 or sparse
	second  atomic.Int64
	counted atomic.Int64 // in this second
}

func newTopCount() *topCount {
	t := &topCount{
		frequent: heavy.NewWindow(topSlot, topPlaces), limited: heavy.NewWindow(topSlot, topPlaces),
		random: rand.Uint32,
	}
	t.every.Store(1)
	return t
}

// observe counts what was asked in b, which is settled.
func (s *Limiter) observe(now time.Duration, set *rules.Set, b *Batch) {
	t := s.top
	if t == nil {
		return
	}
	every := t.every.Load()
	for i := range b.Results {
		if every > 1 && t.random()%every != 0 {
			continue
		}
		r, c := &b.Results[i], &b.Checks[i]
		if r.Err != nil || r.Limits == nil || c.Verb != bucket.Check || r.Source == check.Unruled {
			continue
		}
		s.countTop(now, set, b, i, every)
	}
}

// countTop counts check i with the weight of all those that it stands for.
func (s *Limiter) countTop(now time.Duration, set *rules.Set, b *Batch, i int, every uint32) {
	t, r, c := s.top, &b.Results[i], &b.Checks[i]
	t.pace(now, every)
	b.named = named{c, r.Rule, set, s.config.Hasher}
	key := s.counterKey(b, c, r.Rule)
	t.frequent.Add(now, key, uint64(every), &b.named)
	if r.Shadowed || !r.Allowed && !r.givenBack {
		t.limited.Add(now, key, uint64(every), &b.named)
	}
}

// pace sets how many are counted: all while they are few, which is known a second late, and soon enough when there
// are many.
func (t *topCount) pace(now time.Duration, every uint32) {
	second := int64(now / time.Second)
	if last := t.second.Load(); last != second && t.second.CompareAndSwap(last, second) {
		n := t.counted.Swap(0) * int64(every)
		if n > busy && second-last == 1 {
			t.every.Store(sparse)
		} else {
			t.every.Store(1)
		}
	}
	if t.counted.Add(1) > busy && every == 1 {
		t.every.Store(sparse)
	}
}
