//go:build linux

package network

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// farMove is what was asked of one key after it was asked in one region only.
type farMove struct {
	from, to, key string
	admitted      int64
	asked, far    int
	longest       time.Duration
	local         time.Duration // the start of the last check that took a round trip to another region
	closed        int           // decided by on_partition
}

// TestFarRegionsKeys: keys that are asked in one region only are decided there within 2 s after they were asked in another one, and nothing
// is admitted beyond their limits, nor left unused, over a network that delays by 50, 150 and 300 ms and loses 1 % of the packets.
func TestFarRegionsKeys(t *testing.T) {
	const keys, limit, stays = 10, 1000, 12 * time.Second
	l := newFarLab(t, 2, fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: user, scope: global, home: auto, limits: [{algorithm: fixed_window, count: %d, period: 12h}]}\n", limit))
	var mu sync.Mutex
	var all sync.WaitGroup
	var moves []*farMove
	for k := range keys {
		all.Go(func() {
			<-time.After(stays * time.Duration(k) / keys)
			key := fmt.Sprintf("u%d", k)
			check := &sluicev1.Check{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: key}}}
			before := ""
			for turn := range 5 {
				region := farNames[(k+turn*(1+k%2))%len(farNames)]
				m := &farMove{from: before, to: region, key: key}
				api := sluicev1.NewRateLimitServiceClient(l.nodes[region][k%2].conn)
				began := time.Now()
				tick := time.NewTicker(20 * time.Millisecond)
				for time.Since(began) < stays {
					sent := time.Since(began)
					resp, err := api.Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
					took := time.Since(began) - sent
					if err != nil || resp.Decisions[0].Error != nil {
						t.Errorf("%s in %s: %v, %v", key, region, err, resp)
						return
					}
					m.asked++
					if d := resp.Decisions[0]; d.Source == sluicev1.Source_SOURCE_CLOSED {
						m.closed++
					} else if d.Allowed {
						m.admitted++
					}
					if m.longest = max(m.longest, took); took >= 40*time.Millisecond {
						m.far++
						m.local = sent
					}
					<-tick.C
				}
				tick.Stop()
				mu.Lock()
				moves = append(moves, m)
				mu.Unlock()
				before = region
			}
		})
	}
	all.Wait()
	slices.SortFunc(moves, func(a, b *farMove) int { return strings.Compare(a.from+a.to+a.key, b.from+b.to+b.key) })
	admitted := map[string]int64{}
	for _, m := range moves {
		admitted[m.key] += m.admitted
		t.Logf("%s from %q to %s: %d checks, %d of them far, the last after %v, %d closed, at most %v", m.key, m.from, m.to, m.asked, m.far,
			m.local.Round(time.Millisecond), m.closed, m.longest.Round(time.Millisecond))
		if m.local > 2*time.Second {
			t.Errorf("%s was asked in %s only, and its checks took a round trip to another region until %v later", m.key, m.to, m.local)
		}
	}
	for key, n := range admitted {
		if n != limit {
			t.Errorf("%s: %d admitted, want %d", key, n, limit)
		}
	}
}
