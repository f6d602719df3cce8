package cluster

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/message"
)

// TestChronicle: what happens to a node over its life, and the lines that are told of it.
func TestChronicle(t *testing.T) {
	set := func(version uint64, names ...string) message.Set {
		return message.Set{ID: "x", Version: version, Members: names}
	}
	one, two := set(1, "a"), set(2, "a", "b")
	held := handoff.Stats{Claims: 31, Fresh: 31, Holding: 31}
	claiming := held
	claiming.Claims, claiming.Claiming = 40, 3
	claimed := held
	claimed.Claims = 43
	bare := claimed
	bare.Unprotected = 12
	deposed := claimed
	deposed.SteppedDown, deposed.Holding = 7, 24
	var log strings.Builder
	plain := slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	var c chronicle
	for i, x := range []struct {
		m    moment
		want string // several lines, each shortened
	}{
		{moment{}, ""},
		{moment{set: one, right: true}, "INFO voter set version=1 members=[a];INFO right to decide counted=1"},
		{moment{set: one, right: true, stats: held}, ""}, // not at rest yet
		{moment{set: one, right: true, stats: held}, "INFO partitions claimed count=31 without_state=31 holding=31"},
		{moment{set: two, right: true, stats: held, others: 1}, "INFO voter set version=2 members=[a b]"},
		{moment{set: two, reason: "alone", stats: held}, "WARN right to decide lost, on_partition answers reason=alone"},
		{moment{set: two, reason: "alone", stats: held}, ""},
		{moment{set: two, right: true, stats: claiming}, "INFO right to decide regained after=2s"},
		{moment{set: two, right: true, stats: claiming}, ""},
		{moment{set: two, right: true, stats: claimed}, ""},
		{moment{set: two, right: true, stats: claimed}, "INFO partitions claimed count=12 without_state=0 holding=31"},
		{moment{set: two, right: true, stats: bare}, ""}, // nobody is there who could have copies
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: bare, others: 1}, "WARN partitions without a copy: a crash of this node would lose their counters count=12"},
		{moment{set: two, right: true, stats: bare, others: 1}, ""},
		{moment{set: two, right: true, stats: claimed, others: 1}, "INFO all partitions have copies again"},
		{moment{set: two, right: true, stats: deposed}, ""},
		{moment{set: two, right: true, stats: deposed}, "WARN partitions lost to a later owner count=7 holding=24"},
		{moment{set: two, right: true, stats: deposed, dissolved: 1}, "WARN this node's set was dissolved into a larger one, its counters go there members=[a b]"},
		{moment{set: two, leaving: true, stats: deposed, dissolved: 1}, ""},
	} {
		log.Reset()
		x.m.now = int64(i) * int64(time.Second)
		c.tell(slog.New(slog.NewTextHandler(&log, &plain)), x.m)
		got := strings.NewReplacer("level=", "", "msg=", "", `"`, "", "\n", ";").Replace(log.String())
		if got = strings.TrimSuffix(got, ";"); got != x.want {
			t.Errorf("moment %d: %q, want %q", i, got, x.want)
		}
	}
}
