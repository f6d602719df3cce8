package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestChargeLog walks through what may happen to a charge that can be given back.
func TestChargeLog(t *testing.T) {
	table := tableOf(t, 1)
	const second = int64(time.Second)
	l := newChargeLog(4)
	r := &bucket.Request{Limits: hourly(5), Cost: 1}
	steps := []struct {
		at     int64 // seconds
		act    string
		from   string
		id     uint64
		status check.Status // of "do"
		left   int64        // of 5
		known  int
	}{
		{0, "do", "x", 1, check.Decided, 4, 1},
		{0, "do", "x", 1, check.Decided, 4, 1}, // sent again: charged once
		{0, "do", "y", 1, check.Decided, 3, 2}, // another process's id
		{1, "back", "x", 1, 0, 4, 2},
		{1, "back", "x", 1, 0, 4, 2}, // twice is once
		{1, "do", "x", 1, check.Invalid, 4, 2},
		{2, "back", "x", 2, 0, 4, 3}, // before its charge
		{2, "do", "x", 2, check.Invalid, 4, 3},
		{9, "do", "x", 3, check.Decided, 3, 4},
		{9, "do", "x", 4, check.Decided, 2, 4}, // the oldest goes, which was given back
		{9, "do", "x", 5, check.Decided, 1, 4}, // the oldest goes, which was not
		{9, "back", "y", 1, 0, 1, 4},
		{18, "back", "x", 4, 0, 2, 4}, // not yet 10 s old; the give-back of before is remembered
		{19, "back", "x", 5, 0, 2, 1}, // 10 s old and forgotten
	}
	for i, s := range steps {
		now := s.at * second
		c := charge{s.from, s.id}
		if s.act == "do" {
			if d, _, status := l.try(now, c, table, r); status != s.status || d.Allowed != (status == check.Decided) {
				t.Errorf("step %d: %+v with status %d, want %d", i, d, status, s.status)
			}
		} else {
			l.giveBack(now, c, table)
		}
		if d := table.Do(now, &bucket.Request{Limits: r.Limits, Cost: 1, Verb: bucket.Read}); d.Remaining != s.left {
			t.Errorf("step %d: %d left, want %d", i, d.Remaining, s.left)
		}
		if n, _ := l.count(); n != s.known {
			t.Errorf("step %d: %d charges known, want %d", i, n, s.known)
		}
	}
	if _, dropped := l.count(); dropped != 1 {
		t.Errorf("%d dropped before their time, want 1", dropped)
	}
	r.Cost = 99
	known, _ := l.count()
	if d, _, _ := l.try(19*second, charge{"x", 9}, table, r); d.Allowed {
		t.Errorf("%+v", d)
	}
	if n, _ := l.count(); n != known {
		t.Error("a denial is remembered")
	}
	// The counter has left to another region, after the charge or before it.
	r.Cost = 1
	if d, _, _ := l.try(20*second, charge{"x", 10}, table, r); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	if _, _, status := l.once(20*second, charge{"x", 10}, true, func(*receipt) bucket.Verdict { return bucket.Decided }); status != check.NotReady {
		t.Errorf("a charge of the table answers one of a lease: status %d", status)
	}
}
