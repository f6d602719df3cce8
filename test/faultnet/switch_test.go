package faultnet

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	a = netip.MustParseAddr("10.77.0.1")
	b = netip.MustParseAddr("10.77.0.2")
	c = netip.MustParseAddr("10.77.0.3")
)

// ipv4 returns a packet with ports and a number to know it by.
func ipv4(from, to netip.Addr, protocol uint8, fromPort, toPort, number uint16) []byte {
	p := make([]byte, 26)
	p[0], p[9] = 0x45, protocol
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[20:], fromPort)
	binary.BigEndian.PutUint16(p[22:], toPort)
	binary.BigEndian.PutUint16(p[24:], number)
	return p
}

func TestParse(t *testing.T) {
	got, ok := parse(ipv4(a, b, TCP, 50000, 7460, 1))
	if want := (packet{a, b, TCP, 50000, 7460, 26}); !ok || got != want {
		t.Errorf("got %v, %v, want %v", got, ok, want)
	}
	fragment := ipv4(a, b, UDP, 1, 2, 3)
	fragment[7] = 9 // an offset: what follows are no ports
	if got, ok := parse(fragment); !ok || got.fromPort != 0 || got.toPort != 0 {
		t.Errorf("ports of a later fragment: %v, %v", got, ok)
	}
	for _, bad := range [][]byte{nil, make([]byte, 19), {0x60, 39: 0}, {0x4f, 20: 0}, {0x41, 20: 0}} {
		if p, ok := parse(bad); ok {
			t.Errorf("%v is a packet: %v", bad, p)
		}
	}
}

func TestRuleMatches(t *testing.T) {
	p, _ := parse(ipv4(a, b, TCP, 50000, 7460, 1))
	for _, test := range []struct {
		rule Rule
		want bool
	}{
		{Rule{}, true},
		{Rule{From: a}, true},
		{Rule{To: a}, false},
		{Rule{To: a, Both: true}, true},
		{Rule{From: a, To: b}, true},
		{Rule{From: b, To: a}, false},
		{Rule{From: b, To: a, Both: true}, true},
		{Rule{From: a, To: c, Both: true}, false},
		{Rule{Protocol: TCP}, true},
		{Rule{Protocol: UDP}, false},
		{Rule{Port: 7460}, true},
		{Rule{Port: 50000}, true},
		{Rule{Port: 7463}, false},
	} {
		if got := test.rule.matches(p); got != test.want {
			t.Errorf("%+v: %v", test.rule, got)
		}
	}
}

func TestDeliveries(t *testing.T) {
	now := time.Unix(1000, 0)
	send := func(packets int, active_ ...Rule) (arrivals []time.Duration) {
		r := rules{rng: rand.New(rand.NewPCG(1, 0))}
		for _, rule := range active_ {
			r.active = append(r.active, &active{Rule: rule})
		}
		for range packets {
			for _, at := range r.deliveries(packet{from: a, to: b, bytes: 1250}, now) {
				arrivals = append(arrivals, at.Sub(now))
			}
		}
		return arrivals
	}
	ms := time.Millisecond
	if got := send(2); !slices.Equal(got, []time.Duration{0, 0}) {
		t.Errorf("without rules: %v", got)
	}
	if got := send(1, Rule{Delay: 20 * ms}, Rule{Delay: 5 * ms}, Rule{From: c, Delay: time.Hour}); !slices.Equal(got, []time.Duration{25 * ms}) {
		t.Errorf("two delays: %v", got)
	}
	if got := send(10, Rule{Loss: 1}); len(got) > 0 {
		t.Errorf("a cut lets %v through", got)
	}
	if got := len(send(10000, Rule{Loss: 0.05})); got < 9400 || got > 9600 {
		t.Errorf("a loss of 5 %% lets %d of 10000 through", got)
	}
	if got := len(send(1000, Rule{Duplicate: 0.5})); got < 1450 || got > 1550 {
		t.Errorf("half of 1000 doubled are %d", got)
	}
	got := send(1000, Rule{Delay: 50 * ms, Jitter: 50 * ms})
	if slices.Min(got) < 50*ms || slices.Max(got) >= 100*ms || slices.IsSorted(got) {
		t.Errorf("from %v to %v, in order: %v", slices.Min(got), slices.Max(got), slices.IsSorted(got))
	}
	// 1,250 bytes are 10 ms at 1 Mbit/s; a packet that would wait for more than 200 ms is dropped.
	got = send(100, Rule{Bandwidth: 1e6})
	if len(got) != 21 || got[0] != 10*ms || got[20] != 210*ms {
		t.Errorf("%d arrive at %v", len(got), got)
	}
}

// device keeps what arrives, and sends what the test gives it.
type device struct {
	out     chan []byte
	arrived []uint16
	at      []time.Duration
	began   time.Time
}

func newDevice() *device { return &device{out: make(chan []byte), began: time.Now()} }

func (d *device) Read(p []byte) (int, error) {
	b, ok := <-d.out
	if !ok {
		return 0, io.EOF
	}
	return copy(p, b), nil
}

func (d *device) Write(p []byte) (int, error) {
	d.arrived = append(d.arrived, binary.BigEndian.Uint16(p[24:]))
	d.at = append(d.at, time.Since(d.began))
	return len(p), nil
}

func (d *device) Close() error {
	close(d.out)
	return nil
}

func TestSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1)
		da, db := newDevice(), newDevice()
		s.Attach(a, da)
		s.Attach(b, db)
		send := func(from *device, to netip.Addr, number uint16) {
			from.out <- ipv4(a, to, UDP, 1, 2, number)
			synctest.Wait()
		}
		send(da, b, 1)
		slow := s.Add(Rule{To: b, Delay: 50 * time.Millisecond})
		send(da, b, 2)
		if met := slow.Lift(); !slices.Equal(met, []int{1}) {
			t.Errorf("the delay met %v packets", met)
		}
		quick := s.Add(Rule{To: b, Delay: 10 * time.Millisecond})
		send(da, b, 3) // overtakes the second
		quick.Lift()
		cut := s.Add(Rule{From: a, To: b, Loss: 1}, Rule{From: b, To: a, Loss: 1})
		send(da, b, 4)
		if met := cut.Lift(); !slices.Equal(met, []int{1, 0}) {
			t.Errorf("the cut met %v packets", met)
		}
		send(da, b, 5)
		send(da, c, 6) // nobody has the address
		<-time.After(time.Second)
		synctest.Wait()
		if want := []uint16{1, 5, 3, 2}; !slices.Equal(db.arrived, want) {
			t.Errorf("%v arrived, want %v", db.arrived, want)
		}
		if want := []time.Duration{0, 0, 10 * time.Millisecond, 50 * time.Millisecond}; !slices.Equal(db.at, want) {
			t.Errorf("they arrived after %v, want %v", db.at, want)
		}
		s.Close()
	})
}

// arrivals counts the packets that arrive.
type arrivals struct {
	atomic.Int64
	all  int64
	done chan struct{}
}

func (d *arrivals) Read([]byte) (int, error) { <-d.done; return 0, io.EOF }
func (d *arrivals) Close() error             { return nil }
func (d *arrivals) Write(p []byte) (int, error) {
	if d.Add(1) == d.all {
		close(d.done)
	}
	return len(p), nil
}

// BenchmarkSwitch is the ceiling of the switch without devices: packets a second of one sender over a link with a delay.
func BenchmarkSwitch(all *testing.B) {
	for _, delay := range []time.Duration{0, 25 * time.Millisecond, 150 * time.Millisecond} {
		all.Run(delay.String(), func(bench *testing.B) {
			s, to := New(1), &arrivals{all: int64(bench.N), done: make(chan struct{})}
			s.Attach(b, to)
			s.Add(Rule{Delay: delay})
			packet := append(ipv4(a, b, UDP, 1, 2, 3), make([]byte, 1400)...)
			bench.ResetTimer()
			for range bench.N {
				s.send(packet)
			}
			<-to.done
			bench.ReportMetric(float64(bench.N)/bench.Elapsed().Seconds(), "packets/s")
			s.Close()
		})
	}
}
