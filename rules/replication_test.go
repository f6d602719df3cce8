package rules_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
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
		{"concurrency beside a second", []bucket.Limit{window(time.Second), {Algorithm: bucket.Concurrency, Count: 1}}, rules.ReplicateAsync},
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

// TestDefaultLostState: rules that would rather deny than admit too much do so when counters are lost.
func TestDefaultLostState(t *testing.T) {
	for _, c := range []struct{ beside, want string }{
		{"shadow_mode: false", "fresh"},
		{"on_failure: open", "fresh"},
		{"on_failure: closed", "deny"},
		{"on_partition: closed", "deny"},
		{"on_partition: closed\n    on_failure: open", "deny"},
		{"replication: sync", "deny"},
		{"replication: none", "fresh"},
		{"replication: sync\n    on_lost_state: fresh", "fresh"},
		{"on_lost_state: deny", "deny"},
		{"consistency: eventual\n    on_partition: closed", "fresh"},
	} {
		if got := mustParse(t, beside(c.beside)).Rules()[0].OnLostState.String(); got != c.want {
			t.Errorf("%s: on_lost_state is %s, want %s", c.beside, got, c.want)
		}
	}
}
