package shed

import "time"

// Tick is how often a wait is to be observed.
const Tick = 50 * time.Millisecond

const (
	// patience is for how many ticks in a row waits must be too long before anything is refused:
	// bursts pass by themselves.
	patience = 3
	// most is the largest part that is refused. What gets through says when it is over.
	most = 0.95
	// least is the part below which nothing is refused any more.
	least = 0.01
	// decay is what is left of the part after a tick whose waits were short enough.
	decay = 0.9
)

// pressure turns waits into the part of calls to refuse: it goes up quickly, and the faster the longer the waits
// are, and down slowly. The zero value refuses nothing.
type pressure struct {
	part float64
	late int // ticks in a row with waits above the target
}

// observe takes what was waited in a tick and returns the part of calls to refuse in the next,
// 0 to most.
func (p *pressure) observe(wait, target time.Duration) float64 {
	if wait <= target {
		p.late = 0
		if p.part *= decay; p.part < least {
			p.part = 0
		}
		return p.part
	}
	if p.late++; p.late < patience && p.part == 0 {
		return 0
	}
	// Of what is let in, refuse more by a tenth where the wait is just too long and by half where it is five times that.
	p.part = min(most, p.part+(1-p.part)*min(0.5, 0.1*float64(wait)/float64(target)))
	return p.part
}
