package cluster

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/member"
)

// TestCorrection: a node goes by its own clock while that is near the voters', else by their median, and changes its mind no more often
// than it must.
func TestCorrection(t *testing.T) {
	const ms, most = int64(time.Millisecond), int64(500 * time.Millisecond)
	agree := func(ahead int64) quorum.Clocks { return quorum.Clocks{Known: true, Agree: true, Ahead: ahead} }
	for _, c := range []struct {
		name         string
		found        quorum.Clocks
		before, want int64
	}{
		{"nothing is known", quorum.Clocks{}, 0, 0},
		{"nothing is known any more", quorum.Clocks{}, -7 * ms, -7 * ms},
		{"near", agree(500 * ms), 0, 0},
		{"ahead", agree(501 * ms), 0, -501 * ms},
		{"behind", agree(-2000 * ms), 0, 2000 * ms},
		{"corrected", agree(-2000 * ms), 2000 * ms, 2000 * ms},
		{"corrected, and a little off since", agree(-2400 * ms), 2000 * ms, 2000 * ms},
		{"corrected, and off since", agree(-2600 * ms), 2000 * ms, 2600 * ms},
		{"corrected, and hardly off by itself", agree(-400 * ms), 600 * ms, 600 * ms},
		{"corrected, and right by itself", agree(0), 600 * ms, 0},
		{"no majority agrees", quorum.Clocks{Known: true}, 2000 * ms, 0},
	} {
		if got := correction(c.found, c.before, most); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, time.Duration(got), time.Duration(c.want))
		}
	}
}

// TestChronicleClock: an operator reads once that a clock is off or that clocks do not agree, and once that all is well again.
func TestChronicleClock(t *testing.T) {
	var out bytes.Buffer
	var c stateLog
	log := timeless(&out)
	agree := func(ahead, correction time.Duration) member.Clocks {
		return member.Clocks{Known: true, Agree: true, Ahead: ahead, Correction: correction}
	}
	for _, step := range []struct {
		clock member.Clocks
		want  string // empty: nothing
	}{
		{member.Clocks{}, ""},
		{agree(0, 0), ""},
		{agree(time.Millisecond, 0), ""},
		{agree(2*time.Second, -2*time.Second), "level=WARN msg=\"this node's clock is off"},
		{agree(2*time.Second, -2*time.Second), ""},
		{member.Clocks{}, ""},
		{agree(2*time.Second, -2*time.Second), ""},
		{agree(0, 0), "level=INFO msg=\"this node's clock agrees"},
		{member.Clocks{Known: true}, "level=ERROR msg=\"no majority of the voters' clocks agrees"},
		{member.Clocks{Known: true}, ""},
		{agree(0, 0), "level=INFO msg=\"this node's clock agrees"},
	} {
		out.Reset()
		c.logClock(log, step.clock)
		if got := out.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("%+v: %q, want %q", step.clock, got, step.want)
		}
	}
}
