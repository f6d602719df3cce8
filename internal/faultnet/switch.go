package faultnet

import (
	"container/heap"
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
