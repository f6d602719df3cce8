package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// together starts nodes n1 to n<count> that join the first and have its rules; change alters the configuration of each.
func together(t *testing.T, count int, change ...func(*Config)) (nodes []*running) {
	t.Helper()
	first := testConfig(t)
	for i := range count {
		s := first
		s.Name = fmt.Sprintf("n%d", i+1)
		if i > 0 {
			s.Join = []string{nodes[0].gossip.Addr()}
		}
		for _, f := range change {
			f(&s)
		}
		nodes = append(nodes, startNode(t, s))
	}
	return nodes
}

func (r *running) holding() int { return r.cluster.Stats().Partitions.Owned }

// slotPause is a pause of the process after which its clients may not have renewed a slot in time.
const slotPause = 200 * time.Millisecond

// longestPause measures for how long this process, with all its nodes, gets no processor. The result is the longest time until now.
func longestPause(t *testing.T) func() time.Duration {
	var longest atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ctx.Err() == nil; <-tick.C {
			now := time.Now()
			longest.Store(max(longest.Load(), int64(now.Sub(last))))
			last = now
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return func() time.Duration { return time.Duration(longest.Load()) }
}

// TestStopHandsOver: a process under a name that is in use leaves the set as it is. A node that is told to stop gives all that it
// holds to the others, spent quotas included, and they no longer count it: it writes a set without itself and nothing else. Those who
// stop at the same time write the set as it was, and their counters.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	paused := longestPause(t)
	dir := t.TempDir()
	nodes := together(t, 3, func(c *Config) { c.DataDir = filepath.Join(dir, c.Name) })
	s := nodes[2].config
	s.Join, s.DataDir = []string{nodes[0].gossip.Addr()}, ""
	twin, err := Open(t.Context(), s, slog.New(slog.DiscardHandler))
	do(t, err)
	if err := twin.Run(t.Context()); err == nil {
		t.Error("the twin ran")
	}
	total := 0
	for _, n := range nodes {
		if s := n.cluster.Stats(); len(s.Set.Members) != 3 || !s.HasQuorum || s.Partitions.SteppedDown != 0 {
			t.Errorf("%s: %+v", n.config.Name, s)
		}
		total += n.holding()
	}
	if total != 1021 {
		t.Errorf("%d partitions are held", total)
	}

	for i := range 30 {
		nodes[i%3].check(t, fmt.Sprint(i))
	}
	do(t, nodes[0].stop())
	await(t, "held by the two others", func() bool { return nodes[1].holding()+nodes[2].holding() == 1021 })
	if h, totals := leftOnDisk(t, dir, "n1"); !slices.Equal(h.Set.Members, []string{"n2", "n3"}) || totals.Complete != 0 {
		t.Errorf("n1 wrote set %+v, %+v", h.Set, totals)
	}
	var left [30]int64
	for i := range left {
		left[i] = nodes[1+i%2].left(t, fmt.Sprint(i))
	}
	// The nodes' own clock stands still meanwhile, but not that of gossip.
	if s, p := nodes[1].cluster.Stats(), paused(); p > time.Second {
		t.Logf("this process got no processor for %v, so what it holds is not judged: left are %v, %d takeovers", p, left, s.Partitions.Takeovers)
	} else if left != [30]int64(slices.Repeat([]int64{1}, 30)) || len(s.Set.Members) != 2 || s.Partitions.Takeovers != 0 || !s.HasQuorum {
		t.Errorf("left are %v, want 1 for each; %+v", left, s)
	}

	for _, n := range nodes[1:] { // at once: who is told first is not to have gone before the other is told
		n.tell()
	}
	for _, n := range nodes[1:] {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
		name := n.config.Name
		if h, totals := leftOnDisk(t, dir, name); !slices.Equal(h.Set.Members, []string{"n2", "n3"}) || totals.Counters < 10 {
			t.Errorf("%s wrote set %+v, %+v", name, h.Set, totals)
		}
	}
}

// TestForgetByHand: the survivor of two is a minority, and serves again when the other is forgotten.
func TestForgetByHand(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2)
	if _, err := nodes[0].service.Forget(t.Context(), "n2"); err == nil || !strings.Contains(err.Error(), "it is alive") {
		t.Error(err)
	}
	// What it says is cut off from here on, as if it had crashed.
	nodes[1].peerServer.Close()
	nodes[1].peers.Close()
	await(t, "without quorum", func() bool { return !nodes[0].cluster.Stats().HasQuorum })
	if m := nodes[0].service.Members(t.Context()); !strings.Contains(m.Reason, "of 2 voters") {
		t.Errorf("it does not say why: %q", m.Reason)
	}
	await(t, "silent long enough", func() bool {
		_, err := nodes[0].service.Forget(t.Context(), "n2")
		return err == nil
	})
	await(t, "holding all", func() bool { return nodes[0].holding() == 1021 && nodes[0].cluster.Stats().HasQuorum })
	nodes[0].Hurry()
	nodes[1].Hurry()
}

// TestHurry: who is told twice does not wait for next owners that do not come.
func TestHurry(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2)
	// The other no longer takes anything, and gossip does not notice.
	nodes[0].peerServer.Close()
	nodes[1].config.HandoverTimeout = time.Hour
	stopped := make(chan struct{})
	go func() { defer close(stopped); nodes[1].stop() }()
	select {
	case <-stopped:
		t.Error("it did not wait for a next owner")
	case <-time.After(300 * time.Millisecond):
	}
	nodes[1].Hurry()
	<-stopped
	nodes[0].Hurry()
}
