package cluster

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
)

// timeless returns a logger that writes no times.
func timeless(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestChronicle: what happens to a node over its life, and the lines that are told of it.
func TestChronicle(t *testing.T) {
	set := func(version uint64, names ...string) message.Set {
		return message.Set{ID: "x", Version: version, Members: names}
	}
	one, two := set(1, "a"), set(2, "a", "b")
	held := handoff.Stats{Takeovers: 31, WithoutState: 31, PartitionCounts: facts.PartitionCounts{Owned: 31}}
	claiming := held
	claiming.Takeovers, claiming.TakingOver = 40, 3
	claimed := held
	claimed.Takeovers = 43
	bare := claimed
	bare.Unprotected = 12
	deposed := claimed
	deposed.SteppedDown, deposed.Owned = 7, 24
	var log strings.Builder
	var c stateLog
	for i, x := range []struct {
		m    nodeState
		want string // several lines, each shortened
	}{
		{nodeState{}, ""},
		{nodeState{State: State{Set: one, HasQuorum: true}}, "INFO voter set version=1 members=[a];INFO quorum voters=1"},
		{nodeState{State: State{Set: one, HasQuorum: true, Partitions: held}}, ""}, // not at rest yet
		{nodeState{State: State{Set: one, HasQuorum: true, Partitions: held}}, "INFO partitions taken over count=31 without_state=31 owned=31"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: held}, others: 1}, "INFO voter set version=2 members=[a b]"},
		{nodeState{State: State{Set: two, Partitions: held}, reason: "alone"}, "WARN quorum lost, on_partition answers reason=alone"},
		{nodeState{State: State{Set: two, Partitions: held}, reason: "alone"}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: claiming}}, "INFO quorum regained after=2s"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: claiming}}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: claimed}}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: claimed}}, "INFO partitions taken over count=12 without_state=0 owned=31"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}}, ""}, // nobody is there who could have copies
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, "WARN partitions without a replica: a crash of this node would lose their counters count=12"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: bare}, others: 1}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: claimed}, others: 1}, "INFO all partitions have replicas again"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: deposed}}, ""},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: deposed}}, "WARN partitions lost to a later owner count=7 owned=24"},
		{nodeState{State: State{Set: two, HasQuorum: true, Partitions: deposed, Dissolved: 1}}, "WARN this node's set was dissolved into a larger one, its counters go there members=[a b]"},
		{nodeState{State: State{Set: two, Partitions: deposed, Dissolved: 1}, leaving: true}, ""},
	} {
		log.Reset()
		x.m.now = int64(i) * int64(time.Second)
		c.logChanges(timeless(&log), x.m)
		got := strings.NewReplacer("level=", "", "msg=", "", `"`, "", "\n", ";").Replace(log.String())
		if got = strings.TrimSuffix(got, ";"); got != x.want {
			t.Errorf("moment %d: %q, want %q", i, got, x.want)
		}
	}
}
