// Package faultnet is a network for tests whose links can be made bad: hosts are network namespaces with one
// tun device each, and a switch in this process carries every packet between them, or loses, delays, doubles
// and slows it by rules. It needs neither netem nor iptables. Rules and the schedule know nothing of devices.
package faultnet

import (
	"container/heap"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Switch carries packets between devices. It must be created with New and closed with Close.
type Switch struct {
	running sync.WaitGroup
	closing chan struct{}
	wake    chan struct{} // an earlier delivery is due
	mu      struct {
		sync.Mutex
		devices map[netip.Addr]io.ReadWriteCloser
		rules   rules
		waiting schedule
	}
}

// New returns a switch without devices. Equal seeds draw equal chances.
func New(seed uint64) *Switch {
	s := &Switch{closing: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.mu.devices = map[netip.Addr]io.ReadWriteCloser{}
	s.mu.rules.rng = rand.New(rand.NewPCG(seed, 0))
	s.running.Go(s.deliver)
	return s
}

// Attach makes the device that of an address: each of its reads is a packet sent, each write one that arrives.
// The switch closes it.
func (s *Switch) Attach(addr netip.Addr, device io.ReadWriteCloser) {
	s.mu.Lock()
	s.mu.devices[addr] = device
	s.mu.Unlock()
	s.running.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := device.Read(buf)
			if err != nil {
				return
			}
			s.send(buf[:n])
		}
	})
}

// Close ends the switch and closes the devices.
func (s *Switch) Close() {
	close(s.closing)
	s.mu.Lock()
	for _, d := range s.mu.devices {
		d.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Fault is rules in force.
type Fault struct {
	s     *Switch
	rules []*active
}

// Add puts rules in force, all at once, until the fault is lifted.
func (s *Switch) Add(rules ...Rule) *Fault {
	f := &Fault{s: s}
	for _, r := range rules {
		f.rules = append(f.rules, &active{Rule: r})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rules.active = append(s.mu.rules.active, f.rules...)
	return f
}

// Lift takes the rules out of force and returns how many packets each of them met, in the order of Add.
// Packets under way still arrive.
func (f *Fault) Lift() (met []int) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.s.mu.rules.active = slices.DeleteFunc(f.s.mu.rules.active, func(a *active) bool { return slices.Contains(f.rules, a) })
	for _, a := range f.rules {
		met = append(met, a.packets)
	}
	return met
}

// send decides on a packet, whose bytes are the caller's again afterwards.
func (s *Switch) send(b []byte) {
	p, ok := parse(b)
	if !ok {
		return
	}
	now := time.Now()
	s.mu.Lock()
	device := s.mu.devices[p.to]
	copies := s.mu.rules.deliveries(p, now)
	atOnce := 0
	for _, at := range copies {
		if !at.After(now) {
			atOnce++
			continue
		}
		heap.Push(&s.mu.waiting, delivery{at, slices.Clone(b), p.to})
	}
	s.mu.Unlock()
	if atOnce < len(copies) {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	for range atOnce {
		if device != nil {
			device.Write(b) // a full or closed device loses it, as a network would
		}
	}
}

// deliver hands out what was delayed.
func (s *Switch) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-s.wake:
		case <-timer.C:
		}
		for {
			now := time.Now()
			s.mu.Lock()
			if len(s.mu.waiting) == 0 {
				s.mu.Unlock()
				break
			}
			if wait := s.mu.waiting[0].at.Sub(now); wait > 0 {
				s.mu.Unlock()
				timer.Reset(wait)
				break
			}
			d := heap.Pop(&s.mu.waiting).(delivery)
			device := s.mu.devices[d.to]
			s.mu.Unlock()
			if device != nil {
				device.Write(d.bytes)
			}
		}
	}
}

// delivery is one copy of a packet that arrives later.
type delivery struct {
	at    time.Time
	bytes []byte
	to    netip.Addr
}

// schedule is a heap, the earliest first.
type schedule []delivery

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)        { *s = append(*s, x.(delivery)) }
func (s *schedule) Pop() any {
	last := len(*s) - 1
	d := (*s)[last]
	(*s)[last] = delivery{}
	*s = (*s)[:last]
	return d
}

// Protocols of IPv4 that have ports.
const (
	TCP = 6
	UDP = 17
)

// packet is what rules look at of an IPv4 packet.
type packet struct {
	from, to         netip.Addr
	protocol         uint8
	fromPort, toPort uint16 // 0 where the protocol has none, and in later fragments
	bytes            int
}

// parse reads the headers of an IPv4 packet. It reports false for anything else.
func parse(b []byte) (packet, bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return packet{}, false
	}
	header := int(b[0]&15) * 4
	if header < 20 || len(b) < header {
		return packet{}, false
	}
	p := packet{
		from: netip.AddrFrom4([4]byte(b[12:16])), to: netip.AddrFrom4([4]byte(b[16:20])),
		protocol: b[9], bytes: len(b),
	}
	first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0
	if (p.protocol == TCP || p.protocol == UDP) && first && len(b) >= header+4 {
		p.fromPort, p.toPort = binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
	}
	return p, true
}

// maxQueue is how long a packet may wait for a Rule's bandwidth before it is dropped.
const maxQueue = 200 * time.Millisecond

// Rule says which packets a fault meets, and what happens to these. Matchers that are zero match everything.
// Effects of several rules add up.
type Rule struct {
	From, To netip.Addr
	// Both makes the rule one for packets from To to From too.
	Both     bool
	Protocol uint8  // TCP or UDP
	Port     uint16 // at either end

	// Loss and Duplicate are shares of the packets, 0 to 1. A Loss of 1 is a cut.
	Loss, Duplicate float64
	// Delay is one way. Up to Jitter is added at random to each packet, so packets overtake each other.
	Delay, Jitter time.Duration
	// Bandwidth is in bits a second; 0 does not bound it.
	Bandwidth int64
}

func (r *Rule) matches(p packet) bool {
	if r.Protocol != 0 && r.Protocol != p.protocol || r.Port != 0 && r.Port != p.fromPort && r.Port != p.toPort {
		return false
	}
	is := func(from, to netip.Addr) bool {
		return (!r.From.IsValid() || r.From == from) && (!r.To.IsValid() || r.To == to)
	}
	return is(p.from, p.to) || r.Both && is(p.to, p.from)
}

// active is a rule in force.
type active struct {
	Rule
	busy    time.Time // until when the bandwidth is taken
	packets int       // that matched
}

// rules are those in force, with the randomness that they draw from.
type rules struct {
	active []*active
	rng    *rand.Rand
}

// deliveries returns when copies of the packet arrive, in no order; none if it is lost.
func (r *rules) deliveries(p packet, now time.Time) []time.Time {
	copies := []time.Time{now}
	for _, a := range r.active {
		if !a.matches(p) {
			continue
		}
		a.packets++
		if a.Duplicate > 0 && r.rng.Float64() < a.Duplicate {
			copies = append(copies, copies[0])
		}
		copies = slices.DeleteFunc(copies, func(time.Time) bool { return a.Loss > 0 && r.rng.Float64() < a.Loss })
		for i := range copies {
			copies[i] = copies[i].Add(a.Delay)
			if a.Jitter > 0 {
				copies[i] = copies[i].Add(time.Duration(r.rng.Int64N(int64(a.Jitter))))
			}
		}
		if a.Bandwidth > 0 {
			copies = slices.DeleteFunc(copies, func(time.Time) bool { return a.busy.Sub(now) > maxQueue })
			for i := range copies {
				if a.busy.Before(now) {
					a.busy = now
				}
				a.busy = a.busy.Add(time.Duration(int64(p.bytes) * 8 * int64(time.Second) / a.Bandwidth))
				copies[i] = copies[i].Add(a.busy.Sub(now))
			}
		}
		if len(copies) == 0 {
			return nil
		}
	}
	return copies
}
