package share

import (
	"math"
	"testing"
	"time"
)

// TestTiming: when a process may answer without owners, by what the runner has noted.
func TestTiming(t *testing.T) {
	const grace, timeout = 700 * time.Millisecond, 300 * time.Millisecond
	ms := func(n int) int64 { return int64(n) * int64(time.Millisecond) }
	// A process takes turns each 100 ms from one time to another, with quorum or without, and while it has settled or not.
	play := func(f *Timing, from, to int, until int64, settled bool) {
		for at := from; at <= to; at += 100 {
			f.Turn(ms(at), until)
			if f.Settling() {
				f.NoteSettled(ms(at), settled && until > ms(at))
			}
		}
	}
	turns := func(f *Timing, from, to int, until int64) { play(f, from, to, until, true) }
	for _, c := range []struct {
		name           string
		play           func(f *Timing)
		at             int
		shares, atOnce bool
	}{
		{"before the first turn", func(*Timing) {}, 0, false, false},
		{"long without quorum since the start", func(f *Timing) { turns(f, 0, 60_000, 0) }, 60_000, false, false},
		{"with quorum", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64) }, 1000, true, false},
		{"just settled: checks wait that came before", func(f *Timing) { turns(f, 0, 200, math.MaxInt64) }, 299, false, false},
		{"settled for as long as a check waits", func(f *Timing) { turns(f, 0, 200, math.MaxInt64) }, 300, true, false},
		{"with quorum, and not settled", func(f *Timing) { play(f, 0, 29_900, math.MaxInt64, false) }, 30_100, false, false},
		{"with quorum, and not settled for long", func(f *Timing) { play(f, 0, 30_400, math.MaxInt64, false) }, 30_400, true, false},
		{"quorum just lost", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64); turns(f, 1100, 1700, 0) }, 1750, true, false},
		{"quorum lost for a while", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64); turns(f, 1100, 1800, 0) }, 1800, true, true},
		{"quorum lost and back", func(f *Timing) {
			turns(f, 0, 1000, math.MaxInt64)
			turns(f, 1100, 1800, 0)
			turns(f, 1900, 1900, math.MaxInt64)
			turns(f, 2000, 2000, 0)
		}, 2000, true, false},
		{"paused, and not a turn since", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64) }, 3000, false, false},
		{"just woken", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64); turns(f, 3000, 3600, 0) }, 3600, false, false},
		{"woken a while ago", func(f *Timing) { turns(f, 0, 1000, math.MaxInt64); turns(f, 3000, 3700, 0) }, 3700, true, true},
		{"paused in a minority", func(f *Timing) {
			turns(f, 0, 1000, math.MaxInt64)
			turns(f, 1100, 9000, 0)
			turns(f, 12_000, 12_500, 0)
		}, 12_500, false, false},
	} {
		var f Timing
		f.Start(0, grace, timeout)
		c.play(&f)
		if got := f.MayShare(ms(c.at)); got != c.shares {
			t.Errorf("%s: shares=%v", c.name, got)
		}
		if got := f.AtOnce(ms(c.at)); got != c.atOnce {
			t.Errorf("%s: at once=%v", c.name, got)
		}
	}
}
