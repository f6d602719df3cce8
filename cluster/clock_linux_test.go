package cluster

import (
	"testing"
	"time"
)

// TestAsleepClock: the clock goes on while the machine sleeps, and does not mind what is
// done to the wall clock.
func TestAsleepClock(t *testing.T) {
	const second = int64(time.Second)
	wall, mono, slept, asked := 1000*second, int64(0), 7*second, 0
	s := newSteady(wall, func() int64 { asked++; return slept })
	for _, step := range []struct {
		name             string
		mono, sleep, set int64 // what passes, what the machine sleeps, how the wall clock is set
		want             int64
		asks             int
	}{
		{"nothing has passed", 0, 0, 0, 0, 0},
		{"a second", second, 0, 0, second, 0},
		{"a sleep", second, 10 * second, 0, 12 * second, 1},
		{"a second", second, 0, 0, 13 * second, 0},
		{"set forward", second, 0, 3600 * second, 14 * second, 1},
		{"set back", second, 0, -7200 * second, 15 * second, 1},
		{"set back while asleep", second, 5 * second, -9 * second, 21 * second, 1},
		{"a nap that nobody notices", 0, maxDrift, 0, 21 * second, 0},
		{"and the next", 0, maxDrift, 0, 21*second + 2*maxDrift, 1},
	} {
		asked = 0
		mono += step.mono
		slept += step.sleep
		wall += step.mono + step.sleep + step.set
		if got := s.elapsed(wall, mono); got != step.want || asked != step.asks {
			t.Errorf("%s: %v and %d questions, want %v and %d", step.name, time.Duration(got), asked, time.Duration(step.want), step.asks)
		}
	}
}

// TestSystemClock: what Linux says about sleep is sound.
func TestSystemClock(t *testing.T) {
	a, b := asleep(), asleep()
	if a < 0 || b < a-maxDrift || b > a+maxDrift {
		t.Errorf("asleep for %d, then %d", a, b)
	}
}

func BenchmarkClock(b *testing.B) {
	clock := steadyClock()
	for b.Loop() {
		clock()
	}
}
