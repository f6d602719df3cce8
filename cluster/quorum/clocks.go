package quorum

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/message"
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

// Estimate follows the round-trip time to one peer: the smoothed time and its mean deviation as in RFC 6298, the time-out that
// follows from these, and the shortest of late. The zero Estimate is ready.
type Estimate struct {
	samples             int   // of this period, as enough counts them
	smoothed, deviation int64 // ns
	// shortest has the minimum of this period and of the one before.
	shortest [2]int64
	since    int64
	counted  int64 // when samples last grew
	// longest has the longest time-outs of the last periods of timeoutPeriod, that of this one first, which began at begun.
	longest [6]int64
	begun   int64
}

const (
	// estimatePeriod is how long a minimum counts, once or twice: short, so that a network that becomes slow is followed within a second.
	estimatePeriod = int64(500 * time.Millisecond)
	// enough is how many samples a period has at least, each spacing after the one before. After a pause or a cut some answers come at once, all
	// late, and count as one sample.
	enough  = 8
	spacing = int64(10 * time.Millisecond)
	// timeoutPeriod times six is how long a network that has lost packets is taken to lose some.
	timeoutPeriod = int64(10 * time.Second)
)

// Add takes a round-trip time that ended at now, both in ns.
func (e *Estimate) Add(now, rtt int64) {
	if e.since == 0 {
		*e = Estimate{samples: 1, smoothed: rtt, deviation: rtt / 2, shortest: [2]int64{rtt, 0}, since: max(now, 1), counted: now, begun: now}
		return
	}
	e.deviation += (max(rtt-e.smoothed, e.smoothed-rtt) - e.deviation) / 4
	e.smoothed += (rtt - e.smoothed) / 8
	if now-e.since >= estimatePeriod && e.samples >= enough {
		e.samples, e.shortest, e.since = 0, [2]int64{rtt, e.shortest[0]}, now
	}
	if now-e.counted >= spacing {
		e.samples, e.counted = e.samples+1, now
	}
	e.shortest[0] = min(e.shortest[0], rtt)
	over := (now - e.begun) / timeoutPeriod
	for range min(over, int64(len(e.longest))) {
		copy(e.longest[1:], e.longest[:])
		e.longest[0] = 0
	}
	e.begun += over * timeoutPeriod
	e.longest[0] = max(e.longest[0], e.timeout())
}

// timeout is RFC 6298's retransmission time-out, in ns.
func (e *Estimate) timeout() int64 { return e.smoothed + 4*e.deviation }

// Timeout is the time within which nearly every answer comes, in ns: RFC 6298's retransmission time-out, or what that was in
// two of the last six periods of 10 s, if it was longer. So one delay is forgotten soon, and losses that come again and again
// are not. 0 before the first sample.
func (e *Estimate) Timeout() int64 {
	most, second := int64(0), int64(0)
	for _, t := range e.longest {
		most, second = max(most, t), max(second, min(most, t))
	}
	return max(e.timeout(), second)
}

// Least is the shortest round-trip time of the last 0.5 to 1 s, or of the last 8 samples where they took longer, in ns; samples that
// come at once are one. 0 in the first period.
func (e *Estimate) Least() int64 { return min(e.shortest[0], e.shortest[1]) }

// RTT returns the shortest round-trip time of heartbeats to p of late, in ns, as Estimate.Least. An acknowledgement may wait
// up to 120 ms for the next heartbeat, which is part of it.
func (m *Machine) RTT(p message.Peer) int64 {
	if i, ok := m.find(p); ok {
		return m.peers[i].rtt.Least()
	}
	return 0
}

// Lease returns how long an acknowledgement of p's heartbeats counts towards its quorum, in ns, as p has said last.
func (m *Machine) Lease(p message.Peer) int64 {
	if i, ok := m.find(p); ok {
		return m.peers[i].lease
	}
	return int64(m.c.Timeout)
}

// leaseTimeouts is how many time-outs a lease covers.
const leaseTimeouts = 3

// lease returns how long an acknowledgement of a heartbeat that is sent at now shall last: Right, or longer where
// voters answer slowly, so that a delay or some lost packets do not cost this process its quorum.
func (m *Machine) lease(now int64) int64 {
	slowest := int64(0)
	for _, p := range m.peers {
		if m.set.Has(p.Name) && m.speaks(now, p) {
			slowest = max(slowest, p.rtt.Timeout())
		}
	}
	return m.c.lease(leaseTimeouts * slowest)
}

// lease returns d, or the bound of leases that it exceeds.
func (c Config) lease(d int64) int64 { return min(max(d, int64(c.Timeout)), c.longestLease()) }

// longestLease is the bound of leases: three times Right, and so short that a grace covers what was
// acknowledged before it.
func (c Config) longestLease() int64 {
	return max(int64(c.Timeout), min(3*int64(c.Timeout), int64(c.Grace)*10/11-int64(time.Millisecond)))
}

// expiry is how long after an acknowledgement that came with a lease it may still count, on this process's clock:
// a tenth is allowed for clocks that run at different speeds.
func expiry(lease int64) int64 { return lease + lease/10 }

// LongestExpiry is how long an acknowledgement may count at most.
func (m *Machine) LongestExpiry() int64 { return expiry(m.c.longestLease()) }

// slowest is the longest of the shortest round-trip times to voters.
func (m *Machine) slowest() (rtt int64) {
	for _, p := range m.peers {
		if m.set.Has(p.Name) {
			rtt = max(rtt, p.rtt.Least())
		}
	}
	return rtt
}

// silence is the time in which p, if it lives, says something: Dead, or longer if its lease is.
func (m *Machine) silence(p *peer) int64 { return max(int64(m.c.Dead), p.lease+int64(m.c.Heartbeat)) }

// nthNewest returns the n-th newest of times, which it sorts, never if there are fewer.
func nthNewest(times []int64, n int) int64 {
	if len(times) < n {
		return never
	}
	slices.Sort(times)
	return times[len(times)-n]
}
