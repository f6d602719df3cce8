package cluster

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// roaming is limits of keys that move.
func roaming(list ...bucket.Limit) *bucket.Limits {
	l, err := bucket.NewLimitsAt("d", bucket.HomeAuto, list...)
	if err != nil {
		panic(err)
	}
	return l
}

// keyOf returns a key with that directory.
func (p *playing) keyOf(directory string) bucket.Key {
	for i := 1; ; i++ {
		if k := moveKey(i); p.nodes["eu1"].directoryOf(k) == directory {
			return k
		}
	}
}

// askKey asks nodes of these regions for a key, each as often as it says, until d has passed, and returns what was admitted.
func (p *playing) askKey(k bucket.Key, limits *bucket.Limits, d time.Duration, every map[string]time.Duration) (admitted int64) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		n, pause := p.nodes[name], every[name[:2]]
		if pause == 0 {
			continue
		}
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(pause) {
				all.Go(func() {
					a := decide(p.t.Context(), n, check.Request{Request: bucket.Request{Key: k, Limits: limits, Cost: 1}})[0]
					mu.Lock()
					defer mu.Unlock()
					if a.Allowed {
						admitted++
						if a.Source > check.Forwarded && a.Source != check.Leased {
							p.t.Errorf("%s: admitted by %+v", n.cfg.Name, a)
						}
					}
				})
			}
		})
	}
	all.Wait()
	return admitted
}

// home returns the regions whose owners decide k now.
func (p *playing) home(k bucket.Key) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		n := p.nodes[name]
		if !n.routing.Load().owns(k) {
			continue
		}
		if role, sure := n.place(n.cfg.Clock(), k); sure && n.roles.plays(role) == name[:2] {
			list = append(list, name[:2])
		}
	}
	return list
}

// TestRecordRenewed: a record that is made anew late in its life begins a whole one.
func TestRecordRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPlaying(t, 0, nil)
		k, n := p.keyOf("us"), p.nodes["eu1"]
		if !n.routing.Load().owns(k) {
			n = p.nodes["eu2"]
		}
		for epoch, want := range []time.Duration{recordLife, recordLife - 23*time.Hour, recordLife} {
			now := n.cfg.Clock() + int64(epoch)*int64(23*time.Hour)
			_, ok := n.setRecord(now, k, record{home: "eu", epoch: uint64(epoch) + 1, settled: true})
			if r, _, _ := n.record(now, k); !ok || r != (record{"eu", uint64(epoch) + 1, true, want}) {
				t.Errorf("%v, %+v; want %v left", ok, r, want)
			}
		}
	})
}

// TestKeysFollowDemand: a key that is asked in one region has its home there after 1.5 s, whichever its directory is, and no message leaves
// the region then. When the demand is elsewhere, it follows.
func TestKeysFollowDemand(t *testing.T) {
	limits := roaming(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1_000_000, Period: time.Hour})
	for _, directory := range []string{"eu", "us", "ap"} {
		t.Run(directory, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPlaying(t, 0, nil)
				k := p.keyOf(directory)
				const within = 1500 * time.Millisecond
				for _, region := range []string{"us", "ap", "us"} {
					var asking sync.WaitGroup
					asking.Go(func() { p.askKey(k, limits, 12*time.Second, map[string]time.Duration{region: 10 * time.Millisecond}) })
					time.Sleep(within)
					before := len(p.callsSoFar())
					if home := p.home(k); !slices.Equal(home, []string{region}) {
						t.Errorf("after %v its home is %v, want %s", within, home, region)
					}
					asking.Wait()
					for _, c := range p.callsSoFar()[before:] {
						if c.from[:2] == region && c.to[:2] != region {
							t.Errorf("after %v a message left region %s: %+v", within, region, c)
						}
					}
				}
			})
		})
	}
}

// TestKeyStays: a key whose counter does not arrive in the region with the demand stays where it is, and that is counted.
func TestKeyStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPlaying(t, 0, nil)
		p.carry.Lock()
		p.carry.drop = func(_, _ string, m *message.RegionMessages) bool { return m.Counters != nil }
		p.carry.Unlock()
		k := p.keyOf("eu")
		p.askKey(k, roaming(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1_000_000, Period: time.Hour}), 8*time.Second, map[string]time.Duration{"us": 10 * time.Millisecond})
		if home := p.home(k); !slices.Equal(home, []string{"eu"}) {
			t.Errorf("its home is %v, want eu", home)
		}
		var moved, stayed uint64
		for _, n := range p.nodes {
			s := n.Stats()
			moved, stayed = moved+s.KeysMoved, stayed+s.KeysStayed
		}
		if moved != 0 || stayed == 0 {
			t.Errorf("%d moves and %d that failed are counted", moved, stayed)
		}
	})
}

// TestKeyMovesCount: nothing is admitted twice and nothing is lost when keys move while they are asked everywhere, also when messages are lost.
func TestKeyMovesCount(t *testing.T) {
	for name, limit := range map[string]bucket.Limit{
		"window":  {Algorithm: bucket.FixedWindow, Count: 8_000, Period: time.Hour},
		"counter": {Algorithm: bucket.SlidingCounter, Count: 8_000, Period: 12 * time.Hour},
		"bucket":  {Algorithm: bucket.TokenBucket, Count: 1, Period: 4 * time.Second, Burst: 7_975},
	} {
		for _, lose := range []float64{0, 0.2} {
			t.Run(fmt.Sprint(name, " ", lose), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPlaying(t, lose, nil)
					k, admitted := p.keyOf("eu"), int64(0)
					for i := range 6 {
						often := []string{"us", "ap", "eu"}[i%3]
						every := map[string]time.Duration{"us": 250 * time.Millisecond, "ap": 250 * time.Millisecond, "eu": 250 * time.Millisecond}
						every[often] = 15 * time.Millisecond
						n := p.askKey(k, roaming(limit), 14*time.Second, every)
						admitted += n
						t.Logf("mostly %s: home %v, %d admitted", often, p.home(k), n)
					}
					moves := uint64(0)
					for _, n := range p.nodes {
						moves += n.Stats().KeysMoved
					}
					t.Logf("%d admitted, %d moves", admitted, moves)
					if moves < 5 && lose == 0 || moves < 3 {
						t.Errorf("%d moves", moves)
					}
					if admitted > 8_000 {
						t.Errorf("%d admitted, want 8,000 at most", admitted)
					}
					// What another region has leased when the key moves stays spent if the message that returns
					// it is lost.
					least := int64(7_980)
					if lose > 0 {
						least = 8_000 - int64(moves)*80
					}
					if admitted < least {
						t.Errorf("%d admitted, want %d at least", admitted, least)
					}
				})
			})
		}
	}
}

// TestKeysFollowRole: when a region passes on what it decides, keys that have their home there go along, also those with another directory,
// with what was spent.
func TestKeysFollowRole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPlaying(t, 0, nil)
		limits := roaming(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 500, Period: time.Hour})
		var admitted [2]int64
		for i, directory := range []string{"eu", "us"} {
			admitted[i] = p.askKey(p.keyOf(directory), limits, 3*time.Second, map[string]time.Duration{"eu": 20 * time.Millisecond})
			if home := p.home(p.keyOf(directory)); !slices.Equal(home, []string{"eu"}) {
				t.Errorf("the home is %v", home)
			}
		}
		if err := p.pass("eu", "ap"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		p.plays("ap", "eu")
		for i, directory := range []string{"eu", "us"} {
			every := map[string]time.Duration{"eu": 20 * time.Millisecond, "us": 20 * time.Millisecond, "ap": 20 * time.Millisecond}
			admitted[i] += p.askKey(p.keyOf(directory), limits, 5*time.Second, every)
			if admitted[i] > 500 || admitted[i] < 400 {
				t.Errorf("directory %s: %d admitted, want nearly 500", directory, admitted[i])
			}
			if home := p.home(p.keyOf(directory)); !slices.Equal(home, []string{"ap"}) {
				t.Errorf("the home is %v", home)
			}
		}
	})
}
