package loglimit

import (
	"fmt"
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	l := New(time.Minute)
	start := time.Unix(0, 0)
	for _, c := range []struct {
		after time.Duration
		line  string
		want  bool
	}{
		{0, "a", true},
		{0, "b", true},
		{59 * time.Second, "a", false},
		{time.Minute, "a", true},
		{61 * time.Second, "a", false},
	} {
		if got := l.Allow(start.Add(c.after), c.line); got != c.want {
			t.Errorf("%v, %s: %v, want %v", c.after, c.line, got, c.want)
		}
	}
	for i := range 10 * most {
		l.Allow(start.Add(2*time.Minute), fmt.Sprint(i))
	}
	if len(l.mu.last) > most {
		t.Errorf("%d lines are remembered, want at most %d", len(l.mu.last), most)
	}
	if !l.Allow(start.Add(4*time.Minute), "later") {
		t.Error("a full limiter does not recover")
	}
}
