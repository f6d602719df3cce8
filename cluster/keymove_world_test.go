package cluster

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// crashed makes the other node of the region the owner of k, with the state of the present one, as a replica has it.
func (p *playing) crashed(region string, k bucket.Key) {
	from, to := p.nodes[region+"1"], p.nodes[region+"2"]
	if to.routing.Load().owns(k) {
		from, to = to, from
	}
	from.quorumUntil.Store(0)
	for shard := range to.cfg.Ring.Partitions {
		if !from.table.Sealed(shard) {
			var im bucket.Image
			from.table.Seal(shard)
			from.table.Export(from.cfg.Clock(), shard, from.table.Keys(shard, nil), &im)
			if err := to.table.Import(to.cfg.Clock(), shard, &im, im.Data, im.Counters, false); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	pose(to, viewOf(2, to.cfg.Name))
}

// TestKeyMoveCrash: the owner in the home, or in the directory, crashes at each step of a move. The next owner ends the move, and nothing is
// admitted twice.
func TestKeyMoveCrash(t *testing.T) {
	limits := roaming(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1300, Period: 12 * time.Hour})
	for name, lost := range map[string]func(m *message.RegionMessages) bool{
		"counter": func(m *message.RegionMessages) bool { return m.Counters != nil },
		"taken":   func(m *message.RegionMessages) bool { return m.Taken != nil },
		"name":    func(m *message.RegionMessages) bool { return m.Homes != nil && !m.Homes[0].Told },
		"told":    func(m *message.RegionMessages) bool { return m.Homes != nil && m.Homes[0].Told },
	} {
		for _, crashes := range []string{"us", "eu", "ap"} { // the directory, the home, and the next home
			for _, after := range []time.Duration{2200 * time.Millisecond, 2500 * time.Millisecond, 2800 * time.Millisecond} {
				t.Run(fmt.Sprint(name, " ", crashes, " ", after), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						p := newPlaying(t, 0, nil)
						k := p.keyOf("us")
						admitted := p.askKey(k, limits, 14*time.Second, map[string]time.Duration{"eu": 40 * time.Millisecond})
						if home := p.home(k); !slices.Equal(home, []string{"eu"}) {
							t.Fatalf("its home is %v", home)
						}
						var asking sync.WaitGroup
						asking.Go(func() {
							every := map[string]time.Duration{"us": 400 * time.Millisecond, "ap": 40 * time.Millisecond, "eu": 400 * time.Millisecond}
							admitted += p.askKey(k, limits, 20*time.Second, every)
						})
						p.carry.Lock()
						p.carry.drop = func(_, _ string, m *message.RegionMessages) bool { return lost(m) }
						p.carry.Unlock()
						time.Sleep(after)
						p.crashed(crashes, k)
						time.Sleep(time.Second)
						p.carry.Lock()
						p.carry.drop = nil
						p.carry.Unlock()
						asking.Wait()
						if home := p.home(k); len(home) != 1 {
							t.Errorf("its home is %v", home)
						}
						if admitted > 1300 || admitted < 750 { // what the owner had leased counts as spent
							t.Errorf("%d admitted, want 750 to 1300", admitted)
						}
					})
				})
			}
		}
	}
}
