package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestFallbackSpell: a line when checks begin to be answered without their owners, and one when that is over.
func TestFallbackSpell(t *testing.T) {
	var text strings.Builder
	log := timeless(&text)
	counts := fallbackCounts{cause: errors.New("n2 is away")}
	now := int64(time.Hour)
	var s fallbackPeriod
	step := func(d time.Duration, more uint64, want ...string) {
		t.Helper()
		now += int64(d)
		counts.share += more
		counts.closed += 2 * more
		counts.early += more
		text.Reset()
		s.logChanges(log, nodeState{now: now, fallback: counts})
		if (text.Len() > 0) != (want != nil) {
			t.Errorf("it said %q", text.String())
		}
		for _, w := range want {
			if !strings.Contains(text.String(), w) {
				t.Errorf("it said %q, want %q", text.String(), w)
			}
		}
	}
	step(time.Second, 0)
	for range 2 {
		step(time.Second, 3, "WARN", "without their owners", "share=3", "closed=6", "open=0", "n2 is away")
		for range 100 {
			step(time.Second, 1)
		}
		for range 4 {
			step(time.Second, 0)
		}
		if n := s.early(counts); n != 103 {
			t.Errorf("%d early answers in the period, want 103", n)
		}
		step(4*time.Second, 1) // no end yet: here is one more
		step(4*time.Second, 0)
		step(time.Second, 0, "INFO", "by their owners again", "after=1m48s", "share=104", "closed=208", "open=0", "before_deadline=104")
		if n := s.early(counts); n != 0 {
			t.Errorf("%d early answers after the period", n)
		}
		step(time.Hour, 0)
	}
}
