package shed

import "time"

// Tick is how often a load is to be observed.
const Tick = 50 * time.Millisecond

const (
	// patience is for how many ticks in a row work must be late before anything is rejected:
	// bursts pass by themselves.
	patience = 3
	// crowd is how many goroutines must wait for a processor before work counts as late while everything is admitted.
	// Callers that each wait for their response make a queue that never empties and never grows, of one goroutine for each:
	// however long that takes, to reject them cures nothing. 64 such callers must fit in.
	crowd = 96
	// first is the part that is rejected first, before it is known how many calls come.
	first = 0.5
	// most is the largest part that is rejected. What is admitted shows when the overload is over.
	most = 0.95
	// least is the part below which nothing is rejected any more.
	least = 0.01
	// decay is what is left of the part after a tick in which less was needed.
	decay = 0.9
	// memory is for how many ticks a long wait of a goroutine counts: the runtime measures one in eight.
	memory = 10
	// probeEvery is after how many ticks of rejecting everything is admitted again, to see whether a crowd comes back: if
	// only few callers are left, nothing else shows it.
	probeEvery = int(time.Minute / Tick)
	// probe is for how many ticks a crowd that comes back needs no patience.
	probe = 20
)

// Load is what the runtime shows of a tick.
type Load struct {
	// Wait is how long goroutines that could run have waited for a processor: 90 % not longer than this.
	Wait time.Duration
	// Waiting is how many wait now.
	Waiting int
}

// pressure turns loads into the part of calls to reject. As in CoDel (RFC 8289) the signal is the queueing time, a queue that
// is long for a moment is no overload, and neither is one that holds little, however slowly it moves. As in PIE (RFC 8033) the
// queueing time is that of a call that comes now: what waits divided by what is done in a tick. The part is chosen so that
// half of what waits too much is gone after the next tick; it falls slowly. The zero value rejects nothing.
type pressure struct {
	part       float64
	came, done float64 // calls a tick, on average of late; came is known while calls are rejected
	late       int     // ticks in a row that were late
	slow       int     // ticks until the last long wait is forgotten
	busy       int     // ticks since part was 0; below 0 during a probe
}

// observe takes the load of a tick, in which so many calls came and were done, and returns the part of calls to reject in the
// next, 0 to most.
func (p *pressure) observe(l Load, came, done uint64, target time.Duration) float64 {
	if p.came == 0 {
		p.came = float64(came)
	}
	p.came += (float64(came) - p.came) / 4
	p.done += (float64(done) - p.done) / 4
	if p.slow = max(0, p.slow-1); l.Wait > target || p.part > 0 && l.Wait > target/4 {
		p.slow = memory
	}
	// room is how many may wait so that none waits longer than the target.
	room := p.done * float64(target) / float64(Tick)
	late := p.slow > 0 && float64(l.Waiting) > room
	switch {
	case p.part > 0:
		need := 0.0
		if p.slow > 0 && l.Waiting > 0 {
			need = 1 - (p.done+(room-float64(l.Waiting))/2)/max(1, p.came)
		}
		p.part = min(most, max(need, shrink(p.part)))
	case !late || l.Waiting <= crowd:
		p.late = 0
	default:
		if p.late++; p.late >= patience || p.busy < 0 {
			p.part, p.came = first, 0
		}
	}
	if p.busy++; p.part == 0 {
		p.busy = min(p.busy, 0)
	}
	if p.busy == probeEvery {
		p.part, p.busy = 0, -probe
	}
	return p.part
}

// shrink is a part after a tick in which less was needed.
func shrink(part float64) float64 {
	if part *= decay; part < least {
		return 0
	}
	return part
}
