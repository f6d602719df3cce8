package transport

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

func TestInternerIsBounded(t *testing.T) {
	n, err := newInterner(2)
	if err != nil {
		t.Fatal(err)
	}
	get := func(count int64) *bucket.Limits {
		t.Helper()
		list := []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: count, Period: time.Second}}
		l, err := n.limits(list)
		if err != nil || l.At(0).Count != count {
			t.Fatal(l, err)
		}
		list[0].Count = -1 // the caller's slice is its own
		return l
	}
	one := get(1)
	if get(1) != one {
		t.Error("equal limits are not one pointer")
	}
	get(2)
	get(3)
	if n.mu.lru.Len() != 2 {
		t.Errorf("%d sets are kept, want 2", n.mu.lru.Len())
	}
	if again := get(1); again == one || !again.Equal(one) {
		t.Error("a set that was forgotten is not made anew")
	}
}

// The hash only finds an entry; which limits it is about is compared.
func TestInternerCollision(t *testing.T) {
	n, err := newInterner(8)
	if err != nil {
		t.Fatal(err)
	}
	list := func(count int64) []bucket.Limit {
		return []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: count, Period: time.Second}}
	}
	one, err := n.limits(list(1))
	if err != nil {
		t.Fatal(err)
	}
	// Put the entry of 1 where that of 2 belongs.
	if _, err := n.limits(list(2)); err != nil {
		t.Fatal(err)
	}
	two, _, _ := n.mu.lru.GetOldest()
	for _, k := range n.mu.lru.Keys() {
		if k != two {
			n.mu.lru.Add(k, interned{list: list(1), limits: one})
		}
	}
	if l, err := n.limits(list(2)); err != nil || l.At(0).Count != 2 {
		t.Errorf("limits %+v, error %v", l, err)
	}
}
