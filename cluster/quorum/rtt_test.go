package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
)

// TestTimeout: after one delay the timeout is soon short again; after repeated losses it stays long for a minute.
func TestTimeout(t *testing.T) {
	var e quorum.Estimate
	now := int64(0)
	answers := func(d time.Duration, rtt int64) {
		for end := now + int64(d); now < end; now += 100 * ms {
			e.Add(now, rtt)
		}
	}
	short := func(when string, want bool) {
		t.Helper()
		if got := e.Timeout() < 50*ms; got != want {
			t.Errorf("%s the time-out is %v", when, time.Duration(e.Timeout()))
		}
	}
	answers(30*time.Second, ms)
	short("at first", true)
	answers(300*time.Millisecond, 400*ms)
	short("after a delay", false)
	answers(5*time.Second, ms)
	short("5 s after it", true)
	answers(10*time.Second, ms)
	answers(300*time.Millisecond, 400*ms)
	answers(5*time.Second, ms)
	short("after another one", false)
	answers(35*time.Second, ms)
	short("35 s later", false)
	answers(15*time.Second, ms)
	short("when the first is a minute ago", true)
	answers(300*time.Millisecond, 400*ms)
	now += int64(time.Hour)
	answers(5*time.Second, ms)
	short("after an hour of silence", true)
}

// TestLeastAfterStalls: responses that arrive late and together, after a pause or a cut, do not raise the minimum, even if
// repeated. It rises soon when one response after the other is late.
func TestLeastAfterStalls(t *testing.T) {
	var e quorum.Estimate
	now := int64(0)
	for range 100 {
		now += 20 * ms
		e.Add(now, ms)
	}
	for range 3 {
		now += 700 * ms
		for range 6 {
			now += ms / 10
			e.Add(now, 600*ms)
		}
	}
	if got := e.Least(); got != ms {
		t.Errorf("after three stalls the shortest round trip is %v, want 1ms", time.Duration(got))
	}
	for end := now + 1200*ms; now < end; now += 20 * ms {
		e.Add(now, 600*ms)
	}
	if got := e.Least(); got != 600*ms {
		t.Errorf("on a network that is slow now the shortest round trip is %v, want 600ms", time.Duration(got))
	}
}
