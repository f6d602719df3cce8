package quorum

import (
	"math"
	"slices"
)

// Each heartbeat tells its sender's clock, and each acknowledgement the clock of who got it. So a process knows, of each
// direction, the difference of the clocks and the time on the way together; the least of the differences of the last
// seconds had the shortest way. Half of what the two leasts differ by is how far the other clock is ahead, but for half
// of what the shortest ways differ by (as in NTP; RFC 5905, and Lundelius and Lynch, An upper and lower bound for clock
// synchronization, 1984). Clocks here do not step, so nothing has to be forgotten.

// clockMemory is half of the time (ns) for which a difference counts.
const clockMemory = int64(5e9)

// least is the smallest of the values that were added lately.
type least struct {
	began        int64 // when the newer half began, or never
	newer, older int64
}

func newLeast() least { return least{began: never, newer: math.MaxInt64, older: math.MaxInt64} }

func (l *least) add(now, v int64) {
	if l.began == never || now-l.began >= 2*clockMemory {
		*l = least{began: now, newer: v, older: math.MaxInt64}
		return
	}
	if now-l.began >= clockMemory {
		l.began, l.older, l.newer = now, l.newer, v
		return
	}
	l.newer = min(l.newer, v)
}

// value returns math.MaxInt64 if there is none.
func (l *least) value(now int64) int64 {
	if l.began == never || now-l.began >= 2*clockMemory {
		return math.MaxInt64
	}
	return min(l.newer, l.older)
}

// apart returns a − b. ok is false if they are so far apart that one of them is no reading of a clock.
func apart(a, b int64) (d int64, ok bool) {
	const most = int64(1) << 61 // 73 years
	d = a - b
	return d, -most < d && d < most && (a > b) == (d > 0)
}

// readHere notes that a heartbeat of p was sent when its clock showed sent.
func (p *peer) readHere(now, sent int64) {
	if d, ok := apart(now, sent); ok {
		p.here.add(now, d)
	}
}

// readThere notes that p got a heartbeat, sent from here at sent, when its clock showed at; 0 if it has not said.
func (p *peer) readThere(now, sent, at int64) {
	if d, ok := apart(at, sent); ok && at != 0 {
		p.there.add(now, d)
	}
}

// Ahead returns how far (ns) the clock of a member is ahead of this process's, as far as is known.
func (m *Machine) Ahead(now int64, name string) (ahead int64, known bool) {
	if name == m.c.Self.Name {
		return 0, true
	}
	p := m.latest(name)
	if p == nil {
		return 0, false
	}
	here, there := p.here.value(now), p.there.value(now)
	if here == math.MaxInt64 || there == math.MaxInt64 {
		return 0, false
	}
	return (there - here) / 2, true
}

// Clocks is how this process's clock stands to those of the voters.
type Clocks struct {
	// Agree: a majority of the voters has clocks that show the same but for the tolerance.
	Agree bool
	// Ahead is how far (ns) this process's clock is ahead of the median of those that do.
	Ahead int64
	// Known: the clocks of a majority are known.
	Known bool
}

// Clocks compares the clocks of the voters, which agree if they differ by no more than tolerance (ns).
func (m *Machine) Clocks(now, tolerance int64) Clocks {
	var buf [16]int64
	readings := buf[:0]
	for _, name := range m.set.Members {
		if ahead, known := m.Ahead(now, name); known {
			readings = append(readings, ahead)
		}
	}
	return compare(readings, m.set.Majority(), tolerance)
}

// compare compares readings, relative to this process's own. It sorts them.
func compare(readings []int64, majority int, tolerance int64) (c Clocks) {
	if c.Known = len(readings) > 0 && len(readings) >= majority; !c.Known {
		return c
	}
	slices.Sort(readings)
	most, first, from := 0, 0, 0
	for to, r := range readings {
		for r-readings[from] > tolerance {
			from++
		}
		if to-from+1 > most {
			most, first = to-from+1, from
		}
	}
	if c.Agree = most >= majority; !c.Agree {
		return c
	}
	low, high := readings[first+(most-1)/2], readings[first+most/2]
	c.Ahead = -(low + (high-low)/2)
	return c
}
