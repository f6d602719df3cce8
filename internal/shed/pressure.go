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
	// whatever they wait for, to reject them cures nothing. 64 such callers must fit in.
	crowd = 96
	// most is the largest part that is rejected. What is admitted shows when the overload is over.
	most = 0.95
	// least is the part below which nothing is rejected any more.
	least = 0.01
	// decay is what is left of the part after a tick whose wait was short enough.
	decay = 0.9
	// probeEvery is after how many ticks of rejecting everything is admitted again, to see whether a crowd comes back: if
	// only few callers are left, the wait alone does not show it.
	probeEvery = int(time.Minute / Tick)
)

// Load is what a tick has shown.
type Load struct {
	// Wait is how long goroutines that could run have waited for a processor: 90 % not longer than this.
	Wait time.Duration
	// Waiting is how many wait now.
	Waiting int
}

// pressure turns loads into the part of calls to reject. As in CoDel (RFC 8289) the signal is the queueing time, a queue that
// is long for a moment is no overload, and neither is one that holds little, however slowly it moves. The part rises quickly, and
// the faster the longer the wait, and falls slowly. The zero value rejects nothing.
type pressure struct {
	part float64
	late int // ticks in a row that were late
	busy int // ticks since part was 0
	// probed is the part to return to at once if a crowd comes back after a probe; it is forgotten as part is.
	probed float64
}

// observe takes the load of a tick and returns the part of calls to reject in the next, 0 to most.
func (p *pressure) observe(l Load, target time.Duration) float64 {
	late := l.Wait > target && (p.part > 0 || l.Waiting > crowd)
	switch {
	case !late:
		p.late = 0
		p.part, p.probed = shrink(p.part), shrink(p.probed)
	case p.probed > 0:
		p.part, p.probed = p.probed, 0
	default:
		if p.late++; p.late < patience && p.part == 0 {
			break
		}
		// Of what is admitted, reject more by a tenth where the wait is just too long and by half where it is five times that.
		p.part = min(most, p.part+(1-p.part)*min(0.5, 0.1*float64(l.Wait)/float64(target)))
	}
	if p.busy++; p.part == 0 {
		p.busy = 0
	}
	if p.busy == probeEvery {
		p.part, p.probed, p.busy = 0, p.part, 0
	}
	return p.part
}

// shrink is a part after a tick that was not late.
func shrink(part float64) float64 {
	if part *= decay; part < least {
		return 0
	}
	return part
}
