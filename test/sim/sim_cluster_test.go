package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

func TestEventsComeInOrder(t *testing.T) {
	w := newSimCluster(1)
	r := rand.New(rand.NewPCG(1, 2))
	var last time.Duration
	count := 0
	for range 1000 {
		w.after(time.Duration(r.IntN(50)), func() {
			count++
			if now := time.Duration(w.now); now < last {
				t.Fatalf("an event of %v came after one of %v", now, last)
			} else {
				last = now
			}
		})
	}
	var order []int
	for i := range 5 {
		w.after(60, func() { order = append(order, i) })
	}
	w.pass(49)
	if count != 1000 || w.now != 49 {
		t.Fatalf("%d events by %d, want 1000 by 49", count, w.now)
	}
	w.pass(20)
	for i, x := range order {
		if i != x {
			t.Fatalf("events of one time came in the order %v", order)
		}
	}
	if len(order) != 5 {
		t.Fatalf("%d events of one time came, want 5", len(order))
	}
}

func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(w *simCluster)
		// arrive is how many of a thousand control messages arrive, at least and at most.
		low, high int
	}{
		{"good", func(w *simCluster) {}, 1000, 1000},
		{"cut", func(w *simCluster) { w.part(0, 1, outward, true) }, 0, 0},
		{"cut the other way", func(w *simCluster) { w.part(0, 1, inward, true) }, 1000, 1000},
		{"cut from all", func(w *simCluster) { w.split([]int{1, 2}, both, true) }, 0, 0},
		{"cut from others", func(w *simCluster) { w.split([]int{0, 1}, both, true) }, 1000, 1000},
		{"healed", func(w *simCluster) { w.split([]int{1}, both, true); w.heal() }, 1000, 1000},
		{"lossy", func(w *simCluster) { w.net.lose = 100 }, 800, 990},
		{"doubling", func(w *simCluster) { w.net.double = 100 }, 1010, 1200},
		{"unwanted", func(w *simCluster) {
			w.net.unwanted = func(b message.Body) bool { _, ok := b.(*message.PendingGrants); return ok }
			w.net.unwantedShare = 100
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newSimCluster(3)
			w.net.lose, w.net.double, w.net.late = 0, 0, 0
			c.setup(w)
			for range 1000 {
				w.send(&controlMessage{from: 0, to: 1, envelope: message.Envelope{Body: &message.PendingGrants{}}})
			}
			if n := len(w.queue.events); n < c.low || n > c.high {
				t.Errorf("%d control messages are on their way, want %d to %d", n, c.low, c.high)
			}
		})
	}
}

func TestControlMessagesInOrder(t *testing.T) {
	w := newSimCluster(3)
	w.net.fifo, w.net.lose, w.net.double, w.net.late, w.net.lateness = true, 0, 0, 100, time.Second
	for range 1000 {
		w.send(&controlMessage{from: 0, to: 1})
	}
	for last := uint64(0); ; {
		e, ok := w.queue.pop()
		if !ok {
			break
		}
		if e.seq < last {
			t.Fatal("a control message overtook another")
		}
		last = e.seq
	}
}

func TestClocksNeverStepBack(t *testing.T) {
	w := newSimCluster(4)
	for _, rate := range []int64{-maxRate, -1, 0, 1, maxRate} {
		p := &process{origin: epoch, rate: rate}
		last := int64(0)
		for w.now = 0; w.now < int64(3*time.Millisecond); w.now += 7 {
			if now := w.clock(p); now < last {
				t.Fatalf("at a rate of %d, the clock steps from %d back to %d", rate, last, now)
			} else {
				last = now
			}
		}
		w.now = int64(time.Minute)
		want := int64(time.Minute) + int64(time.Minute)/1_000_000*rate
		if got := w.clock(p) - epoch; got != want {
			t.Errorf("at a rate of %d, a minute takes %v, want %v", rate, time.Duration(got), time.Duration(want))
		}
	}
}

func TestMostWithin(t *testing.T) {
	a, b := new(process), new(process)
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	charges := []charge{{ms(10), a}, {ms(5000), a}, {ms(5010), a}, {ms(5020), b}, {ms(5049), a}, {ms(5080), a}, {ms(5090), a}}
	for _, c := range []struct {
		name string
		l    loss
		want int64
	}{
		{"the fullest 50 ms", loss{process: a, at: ms(5100)}, 3},
		{"none before", loss{process: a, at: ms(6085)}, 1},
		{"another owner", loss{process: b, at: ms(5100)}, 1},
	} {
		if got := mostWithin(charges, c.l, ms(50)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
