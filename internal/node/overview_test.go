package node

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// TestLostRules: those that deny are listed while something that may have been spent still counts.
func TestLostRules(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(`
domain: d
pools: {spare: {limit: {count: 1, period: 2h}}}
descriptors:
  - {key: denies, rate_limit: {algorithm: sliding_log, period: 10m, count: 5}, on_lost_state: deny, elastic: {pool: spare}}
  - {key: short, rate_limit: {algorithm: sliding_log, period: 10s, count: 5}, replication: sync}
  - {key: fresh, rate_limit: {algorithm: sliding_log, period: 10h, count: 5}, on_failure: closed, on_lost_state: fresh}
  - {key: slots, limits: [{algorithm: concurrency, count: 5}], reservation: {max_ttl: 1h}, on_lost_state: deny}
`)}}, rules.Options{})
	do(t, err)
	if list := lostLimits(set); len(list) != 4 || lostLimits(nil) != nil {
		t.Errorf("%d limits mind a loss, want those of three rules and a pool", len(list))
	}
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	do(t, err)
	table.SetHeld(heldSlots(set))
	since := time.Now().UnixNano()
	for _, c := range []struct {
		after, ends time.Duration
		want        []limiter.LostRule
	}{
		{time.Second, math.MaxInt64, []limiter.LostRule{{Domain: "d", Rule: "d/denies", Left: 599 * time.Second}, {Domain: "d", Rule: "d/short", Left: 9 * time.Second}, {Domain: "d", Rule: "d/slots", Left: 3599 * time.Second}}},
		{time.Minute, math.MaxInt64, []limiter.LostRule{{Domain: "d", Rule: "d/denies", Left: 9 * time.Minute}, {Domain: "d", Rule: "d/slots", Left: 59 * time.Minute}}},
		{time.Minute, 5 * time.Minute, []limiter.LostRule{{Domain: "d", Rule: "d/denies", Left: 4 * time.Minute}, {Domain: "d", Rule: "d/slots", Left: 4 * time.Minute}}},
		{time.Hour, math.MaxInt64, nil},
	} {
		ends := int64(math.MaxInt64)
		if c.ends != math.MaxInt64 {
			ends = since + int64(c.ends)
		}
		got := lostRules(table, set, since, ends, since+int64(c.after))
		if len(got) != len(c.want) {
			t.Errorf("after %v: %+v", c.after, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("after %v: %+v, want %+v", c.after, got[i], c.want[i])
			}
		}
	}
}
