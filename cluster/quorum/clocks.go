package quorum

import (
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// Heartbeats carry the sender's clock, acknowledgements the receiver's. For each direction that
// gives clock difference plus network delay; the minimum over the last seconds has the shortest
// delay. Half the difference of the two minima is the clock offset, with an error of half the
// difference of the shortest delays (as in NTP, RFC 5905; Lundelius and Lynch, An upper and lower
// bound for clock synchronization, 1984). Clocks here do not step, so no sample has to be
// discarded. The sum of the two minima is that of the delays, a process's own delays among them,
// and the error is at most half of it. Where that is long, the clocks are not compared: a process
// without a processor would take its own delay for a difference.

// clockMemory is half of the window (ns) of a minimum.
const clockMemory = int64(5e9)

// windowMin is a minimum over a sliding window of 5 to 10 s.
type windowMin struct {
	began        int64 // when the newer half began, or never
	newer, older int64
}

func newMin() windowMin { return windowMin{began: never, newer: math.MaxInt64, older: math.MaxInt64} }

func (l *windowMin) add(now, v int64) {
	if l.began == never || now-l.began >= 2*clockMemory {
		*l = windowMin{began: now, newer: v, older: math.MaxInt64}
		return
	}
	if now-l.began >= clockMemory {
		l.began, l.older, l.newer = now, l.newer, v
		return
	}
	l.newer = min(l.newer, v)
}

// value returns the minimum, math.MaxInt64 without a sample.
func (l *windowMin) value(now int64) int64 {
	if l.began == never || now-l.began >= 2*clockMemory {
		return math.MaxInt64
	}
	return min(l.newer, l.older)
}

// clockDifference returns a − b. ok is false if the difference is too large to be one between two clocks.
func clockDifference(a, b int64) (d int64, ok bool) {
	const most = int64(1) << 61 // 73 years
	d = a - b
	return d, -most < d && d < most && (a > b) == (d > 0)
}

// readHere adds a heartbeat that p sent when its clock showed sent.
func (p *peer) readHere(now, sent int64) {
	if d, ok := clockDifference(now, sent); ok {
		p.here.add(now, d)
	}
}

// readThere adds an acknowledgement: p received the heartbeat sent at sent when its own clock showed at (0 if it did not
// report one).
func (p *peer) readThere(now, sent, at int64) {
	if d, ok := clockDifference(at, sent); ok && at != 0 {
		p.there.add(now, d)
	}
}

// Ahead returns how far (ns) the clock of a member is ahead of this process's, with an error of at
// most half of tolerance, so that two such differences, of equal clocks, differ by at most
// tolerance. known is false if no samples give that.
func (m *Machine) Ahead(now int64, name string, tolerance int64) (ahead int64, known bool) {
	if name == m.c.Self.Name {
		return 0, true
	}
	p := m.latest(name)
	if p == nil {
		return 0, false
	}
	here, there := p.here.value(now), p.there.value(now)
	if here == math.MaxInt64 || there == math.MaxInt64 || here+there > tolerance {
		return 0, false
	}
	return (there - here) / 2, true
}

// Clocks compares this process's clock with those of the voters.
type Clocks struct {
	// Agree: the clocks of a majority of voters are within the tolerance of each other.
	Agree bool
	// Ahead is how far (ns) this process's clock is ahead of the median of those clocks.
	Ahead int64
	// Known: the offsets of a majority of voters have been measured.
	Known bool
}

// Clocks compares the clocks of the voters; they agree if they differ by at most tolerance (ns).
func (m *Machine) Clocks(now, tolerance int64) Clocks {
	var buf [16]int64
	readings := buf[:0]
	for _, name := range m.set.Members {
		if ahead, known := m.Ahead(now, name, tolerance); known {
			readings = append(readings, ahead)
		}
	}
	return compareClocks(readings, m.set.Majority(), tolerance)
}

// compareClocks sorts readings, which are offsets from this process's clock, and finds the largest group within tolerance.
func compareClocks(readings []int64, majority int, tolerance int64) (c Clocks) {
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

// Estimate estimates the round-trip time to one peer: smoothed time, mean deviation and timeout as in RFC 6298, and the
// recent minimum. The zero Estimate is ready.
type Estimate struct {
	samples             int   // of this period; see minSamples
	smoothed, deviation int64 // ns
	// shortest has the minima of this period and of the previous one.
	shortest [2]int64
	since    int64
	counted  int64 // when samples last increased
	// longest has the longest timeout of each of the last six timeoutPeriods, newest first. The newest began at begun.
	longest [6]int64
	begun   int64
}

const (
	// estimatePeriod is short so that the minimum follows a network that slows down within a second.
	estimatePeriod = int64(500 * time.Millisecond)
	// A period has at least minSamples, counted at most once per spacing: after a pause many late responses arrive
	// together and count as one.
	minSamples = 8
	spacing    = int64(10 * time.Millisecond)
	// timeoutPeriod: a network that lost packets is expected to lose more for six of these.
	timeoutPeriod = int64(10 * time.Second)
)

// Add adds a round-trip time (ns) that ended at now (ns).
func (e *Estimate) Add(now, rtt int64) {
	if e.since == 0 {
		*e = Estimate{samples: 1, smoothed: rtt, deviation: rtt / 2, shortest: [2]int64{rtt, 0}, since: max(now, 1), counted: now, begun: now}
		return
	}
	e.deviation += (max(rtt-e.smoothed, e.smoothed-rtt) - e.deviation) / 4
	e.smoothed += (rtt - e.smoothed) / 8
	if now-e.since >= estimatePeriod && e.samples >= minSamples {
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

// timeout is the retransmission timeout (ns) of RFC 6298.
func (e *Estimate) timeout() int64 { return e.smoothed + 4*e.deviation }

// Timeout is the time (ns) within which nearly every response arrives: the RFC 6298 retransmission timeout, or the
// second-longest of the last six periods of 10 s if that is longer. One delay is forgotten soon, repeated losses are not. 0
// before the first sample.
func (e *Estimate) Timeout() int64 {
	most, second := int64(0), int64(0)
	for _, t := range e.longest {
		most, second = max(most, t), max(second, min(most, t))
	}
	return max(e.timeout(), second)
}

// Least is the shortest round-trip time (ns) of the last 0.5 to 1 s, or of the last 8 samples if they took longer; samples
// that arrive together count as one. 0 in the first period.
func (e *Estimate) Least() int64 { return min(e.shortest[0], e.shortest[1]) }

// RTT returns the recent shortest round-trip time (ns) of heartbeats to p; see Estimate.Least. It may include up to 120 ms
// for which an acknowledgement waited for the next heartbeat.
func (m *Machine) RTT(p message.Peer) int64 {
	if i, ok := m.find(p); ok {
		return m.peers[i].rtt.Least()
	}
	return 0
}

// AckTTL returns how long (ns) an acknowledgement of p's heartbeats counts towards p's quorum, as p's last heartbeat said.
func (m *Machine) AckTTL(p message.Peer) int64 {
	if i, ok := m.find(p); ok {
		return m.peers[i].ackTTL
	}
	return int64(m.c.Timeout)
}

// ackTTLTimeouts is the number of timeouts that an acknowledgement's life covers.
const ackTTLTimeouts = 3

// ackTTL returns how long an acknowledgement of a heartbeat sent at now counts (F, the lease of a heartbeat, in
// docs/internals/protocol.md): Config.Timeout, or longer where voters respond slowly, so that a delay or a few lost packets do not cost
// this process its quorum.
func (m *Machine) ackTTL(now int64) int64 {
	slowest := int64(0)
	for _, p := range m.peers {
		if m.set.Has(p.Name) && m.heardRecently(now, p) {
			slowest = max(slowest, p.rtt.Timeout())
		}
	}
	return m.c.limitAckTTL(ackTTLTimeouts * slowest)
}

// limitAckTTL limits d to the range of ackTTL.
func (c Config) limitAckTTL(d int64) int64 { return min(max(d, int64(c.Timeout)), c.longestAckTTL()) }

// longestAckTTL is three times Timeout, or less so that a grace outlasts every earlier acknowledgement.
func (c Config) longestAckTTL() int64 {
	return max(int64(c.Timeout), min(3*int64(c.Timeout), int64(grace)*10/11-int64(time.Millisecond)))
}

// expiry is how long after an acknowledgement with this life it may still count, measured here. A tenth is added for clocks
// that run at different speeds.
func expiry(ttl int64) int64 { return ttl + ttl/10 }

// LongestExpiry is the longest time (ns) that an acknowledgement may count.
func (m *Machine) LongestExpiry() int64 { return expiry(m.c.longestAckTTL()) }

// longestRTT is the longest Least among the voters.
func (m *Machine) longestRTT() (rtt int64) {
	for _, p := range m.peers {
		if m.set.Has(p.Name) {
			rtt = max(rtt, p.rtt.Least())
		}
	}
	return rtt
}

// silence is the time without a message after which p counts as lost: until then its acknowledgements may give it quorum.
func (m *Machine) silence(p *peer) int64 { return p.ackTTL + int64(Heartbeat) }

// nthNewest sorts times and returns the n-th newest, or never if there are fewer.
func nthNewest(times []int64, n int) int64 {
	if len(times) < n {
		return never
	}
	slices.Sort(times)
	return times[len(times)-n]
}
