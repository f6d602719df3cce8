package main

import "testing"

// A small heap has room for garbage, a large one little beside it, and in between
// the target falls steadily.
func TestCollectorTarget(t *testing.T) {
	const mib = 1 << 20
	if got := collectorTarget(0); got != 1600 {
		t.Errorf("with nothing collected: %d", got)
	}
	if got := collectorTarget(4 << 30); got < collectPercent-1 || got > collectPercent*10/9 {
		t.Errorf("4 GiB live: %d", got)
	}
	last := 1600
	for live := int64(mib); live < 8<<30; live += live / 7 {
		got := collectorTarget(live)
		if got > last && live < 200*mib {
			t.Fatalf("%d MiB live: %d after %d", live/mib, got, last)
		}
		last = got
		garbage := live * int64(got) / 100
		if live > collectRoom/16 && (garbage < collectRoom*3/4 || garbage > max(collectRoom, live*collectPercent/100)*10/9+2*mib) {
			t.Errorf("%d MiB live: %d %%, which is %d MiB", live/mib, got, garbage/mib)
		}
	}
}
