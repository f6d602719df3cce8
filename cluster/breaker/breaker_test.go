package breaker

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

const ms = int64(time.Millisecond)

var n1, n2 = Target{message.Peer{Name: "n1", Boot: "1"}, AllPartitions}, Target{message.Peer{Name: "n2", Boot: "2"}, AllPartitions}

// TestBreaker: which checks are sent, by what has happened before.
func TestBreaker(t *testing.T) {
	const short, long = 16 * time.Millisecond, 40 * time.Millisecond
	for _, c := range []struct {
		name    string
		play    func(b *Breaker)
		at      int64
		left    time.Duration
		targets []Target
		want    bool
	}{
		{"nothing has failed", func(*Breaker) {}, 0, short, []Target{n1}, true},
		{"just failed", func(b *Breaker) { b.Fail(0, short, n1) }, 1 * ms, short, []Target{n1}, false},
		{"another owner", func(b *Breaker) { b.Fail(0, short, n1) }, 1 * ms, short, []Target{n2}, true},
		{"one of two targets", func(b *Breaker) { b.Fail(0, short, n1) }, 1 * ms, short, []Target{n2, n1}, false},
		{"a check with more time", func(b *Breaker) { b.Fail(0, short, n1) }, 1 * ms, long, []Target{n1}, true},
		{"one with more time has failed too", func(b *Breaker) { b.Fail(0, short, n1); b.Fail(40*ms, long, n1) }, 41 * ms, long, []Target{n1}, false},
		{"a probe is due", func(b *Breaker) { b.Fail(0, short, n1) }, 100 * ms, short, []Target{n1}, true},
		{"the probe was sent", func(b *Breaker) { b.Fail(0, short, n1); b.Allow(100*ms, short, n1) }, 101 * ms, short, []Target{n1}, false},
		{"the rest of the probe's batch", func(b *Breaker) { b.Fail(0, short, n1); b.Allow(100*ms, short, n1) }, 100 * ms, short, []Target{n1}, true},
		{"the probe has failed", func(b *Breaker) {
			b.Fail(0, short, n1)
			b.Allow(100*ms, short, n1)
			b.Fail(116*ms, short, n1)
		}, 117 * ms, short, []Target{n1}, false},
		{"a probe with little time", func(b *Breaker) { b.Fail(0, short, n1); b.Allow(100*ms, time.Millisecond, n1) }, 101 * ms, short, []Target{n1}, true},
		{"and one with more", func(b *Breaker) {
			b.Fail(0, short, n1)
			b.Allow(100*ms, time.Millisecond, n1)
			b.Allow(101*ms, short, n1)
		}, 102 * ms, short, []Target{n1}, false},
		{"a probe of two targets, one of which is not due", func(b *Breaker) {
			b.Fail(0, short, n1)
			b.Fail(50*ms, short, n2)
			b.Allow(100*ms, short, n1, n2)
		}, 101 * ms, short, []Target{n1}, true},
		{"answered", func(b *Breaker) { b.Fail(0, short, n1); b.OK(1, n1) }, 1 * ms, short, []Target{n1}, true},
		{"another has answered", func(b *Breaker) { b.Fail(0, short, n1); b.OK(1, n2) }, 1 * ms, short, []Target{n1}, false},
		{"owns nothing any more", func(b *Breaker) {
			b.Fail(0, short, n1)
			b.Retain(func(t Target) bool { return t != n1 })
		}, 1 * ms, short, []Target{n1}, true},
	} {
		var b Breaker
		c.play(&b)
		if got := b.Allow(c.at, c.left, c.targets...); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if open := len(b.mu.circuits) > 0; b.Open() != open {
			t.Errorf("%s: open is %v, want %v", c.name, b.Open(), open)
		}
	}
}

// TestForgotten: a circuit of a target that nobody asks any more does not stay open, which would
// cost every check.
func TestForgotten(t *testing.T) {
	var b Breaker
	b.Fail(0, time.Millisecond, Target{n1.Owner, 7})
	b.Fail(0, time.Millisecond, n2)
	if b.OK(1*ms, n1); !b.Open() {
		t.Error("forgotten too early")
	}
	for range 2 {
		b.Allow(20_000*ms, time.Millisecond, n2)
		b.OK(20_001*ms, n1)
	}
	if len(b.mu.circuits) != 1 || b.mu.circuits[n2] == nil {
		t.Errorf("%v", b.mu.circuits)
	}
}
