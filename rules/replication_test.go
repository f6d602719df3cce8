package rules_test

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/rules"
)

func TestDefaultReplication(t *testing.T) {
	window := func(period time.Duration) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: period}
	}
	for _, c := range []struct {
		name   string
		limits []bucket.Limit
		want   rules.Replication
	}{
		{"a second", []bucket.Limit{window(time.Second)}, rules.ReplicateNone},
		{"just below ten seconds", []bucket.Limit{window(10*time.Second - 1)}, rules.ReplicateNone},
		{"ten seconds", []bucket.Limit{window(10 * time.Second)}, rules.ReplicateAsync},
		{"the longest counts", []bucket.Limit{window(time.Second), window(time.Hour), window(time.Minute)}, rules.ReplicateAsync},
		{"a calendar unit", []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: bucket.Minute}}, rules.ReplicateAsync},
		{"unlimited", []bucket.Limit{{Unlimited: true, Period: time.Hour}}, rules.ReplicateNone},
		{"unlimited beside a second", []bucket.Limit{{Unlimited: true, Period: time.Hour}, window(time.Second)}, rules.ReplicateNone},
	} {
		l, err := bucket.NewLimits(c.limits...)
		if err != nil {
			t.Fatal(err)
		}
		if got := rules.DefaultReplication(l); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
