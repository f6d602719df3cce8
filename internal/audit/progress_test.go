package audit

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestProgress: an admission above the limit shows while the audit runs, and one that the passing time may have admitted does not.
func TestProgress(t *testing.T) {
	c, models, err := Config{
		Targets: func() []string { return nil }, Duration: time.Minute, Exhaust: Exhaust{Denials: 1, Within: time.Minute},
		Specs: []Spec{
			{Keys: 2, Limit: bucket.Limit{Count: 2, Period: time.Hour, Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit}},
			{Keys: 1, Limit: bucket.Limit{Count: 2, Period: time.Second, Algorithm: bucket.TokenBucket}},
		},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{cfg: c, models: models, start: time.Now().Add(-10 * time.Second), counts: newKeyCounts(3)}
	r.began = r.start.UnixNano()
	r.keys = newKeys(&r.cfg, "run")
	owned := uint8(sluicev1.Source_SOURCE_OWNED)
	for key, admissions := range []int{2, 5, 20} {
		for range admissions {
			r.counts.count(&record{key: int32(key), outcome: admitted, source: owned})
		}
	}
	r.counts.count(&record{key: 0, outcome: denied, source: owned})
	r.counts.count(&record{key: 1, outcome: denied, source: uint8(sluicev1.Source_SOURCE_CLOSED)}) // not by an owner
	r.counts.count(&record{key: 2})
	p := r.progress()
	if p.Over != (Keys{1, 3}) || p.Checks != 30 || p.Errors != 1 || p.Exhausted != 1 || p.Keys != 3 || p.All != 2*time.Minute || p.Elapsed < 10*time.Second {
		t.Errorf("%+v", p)
	}
}
