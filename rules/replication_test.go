package rules_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// TestDefaultReplication: what lasts less than ten seconds is not replicated.
func TestDefaultReplication(t *testing.T) {
	const slots = "{algorithm: concurrency, count: 1}"
	for limits, want := range map[string]string{
		"1/1s": "none", "1/9.999999999s": "none", "1/10s": "async", "1/1s, 1/1h, 1/1m": "async", "1/1s, " + slots: "async",
		"{count: 1, unit: minute, align: calendar}": "async", "{unlimited: true}": "none",
	} {
		r := mustParse(t, "domain: d\ndescriptors:\n  - {key: a, limits: ["+limits+"]}\n").Rules()[0]
		if got := fmt.Sprint(r.Replication, r.Consistency, r.OnFailure, r.OnPartition); got != want+" strict share share" {
			t.Errorf("%s: %s, want %s", limits, got, want)
		}
		if r.Shadow || r.Quota || r.NoDenialCache || r.Response != nil || r.Metadata != nil || r.Replaces != nil || r.Unlimited != (r.Limits == nil) {
			t.Errorf("%s: something is set: %+v", limits, r)
		}
	}
	free, second := bucket.Limit{Unlimited: true, Period: time.Hour}, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Second}
	l, err := bucket.NewLimits(free, second)
	if got := rules.DefaultReplication(l); err != nil || got != rules.ReplicateNone {
		t.Errorf("unlimited beside a second: %v, %v", got, err)
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
