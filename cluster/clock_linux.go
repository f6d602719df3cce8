package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// steadyClock returns a clock that starts as the wall clock and goes on with
// CLOCK_BOOTTIME: setting the wall clock neither ends windows nor holds them up, and
// a process whose machine slept wakes without quorum to decide.
func steadyClock() func() int64 {
	start := time.Now()
	base := shifted(start.UnixNano())
	s := newSteady(start.UnixNano(), asleep)
	return func() int64 {
		now := time.Now()
		return base + s.elapsed(now.UnixNano(), int64(now.Sub(start)))
	}
}

// steady adds the time that the machine sleeps to the monotonic clock, which stands still then. Reading CLOCK_BOOTTIME takes a
// system call of 300 to 400 ns, as Go does not read it through the vDSO, which is more than a check costs. But a sleep moves
// the wall clock against the monotonic one, as does setting the wall clock, and reading these two takes 60 ns. So CLOCK_BOOTTIME
// is read only after they have moved against each other. Slewing the time moves both alike.
type steady struct {
	asleep func() int64 // since the machine started
	before int64        // what asleep returned at first
	// offset is the wall clock minus the monotonic one when slept was last updated.
	offset, slept atomic.Int64
	mu            sync.Mutex // for updates
}

// maxDrift is the difference between the clocks' movements that is ignored, and the most by which elapsed may be behind: it is
// small against the quorum's 600 ms.
const maxDrift = int64(time.Millisecond)

// newSteady returns a steady for monotonic time that is 0 when the wall clock shows wall.
func newSteady(wall int64, asleep func() int64) *steady {
	s := &steady{asleep: asleep, before: asleep()}
	s.offset.Store(wall)
	return s
}

// elapsed returns the monotonic time mono with what the machine has slept since newSteady. wall
// was read together with it.
func (s *steady) elapsed(wall, mono int64) int64 {
	if d := wall - mono - s.offset.Load(); d > maxDrift || d < -maxDrift {
		s.update(wall - mono)
	}
	return mono + s.slept.Load()
}

// update asks how long the machine has slept. It never takes time back.
func (s *steady) update(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// First the sleep: a reader of the new offset must see it.
	s.slept.Store(max(s.slept.Load(), s.asleep()-s.before))
	s.offset.Store(offset)
}

// asleep returns how long the machine has slept since it was started.
func asleep() int64 {
	for range 10 {
		first, boot, last := readClock(unix.CLOCK_MONOTONIC), readClock(unix.CLOCK_BOOTTIME), readClock(unix.CLOCK_MONOTONIC)
		if last-first < maxDrift/10 {
			return max(0, boot-last)
		}
	}
	// This thread is held up again and again: an estimate that is not too low.
	first := readClock(unix.CLOCK_MONOTONIC)
	return max(0, readClock(unix.CLOCK_BOOTTIME)-first)
}

func readClock(clock int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		panic("cluster: the system has no such clock: " + err.Error()) // CLOCK_BOOTTIME is of Linux 2.6.39
	}
	return t.Nano()
}
