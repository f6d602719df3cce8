package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestChangedLimits: a limit is changed in a rule file, or by the limits in the check, after it was spent. Clients that are silent,
// that read and that check are admitted equally late, as the first read tells, and changing back refills nothing.
func TestChangedLimits(t *testing.T) {
	for _, c := range []struct {
		name, from, to   string
		spend, cost      int64
		changed          time.Duration // after the spending
		retry            time.Duration
		remainingOfLower int64
	}{
		{"lowered", "count: 1000, period: 1h", "count: 10, period: 1h", 1000, 1, 0, 360 * time.Second, 0},
		{"lowered, later", "count: 1000, period: 1h", "count: 10, period: 1h", 1000, 1, 100 * time.Second, 260 * time.Second, 0},
		{"lowered, another period", "count: 10, period: 6s", "count: 1, period: 5s", 10, 1, 0, 5 * time.Second, 0},
		{"raised", "count: 5, period: 10s", "count: 8, period: 10s", 5, 8, 0, 6250 * time.Millisecond, 3},
		{"smaller burst", "count: 10, period: 1h, burst: 1000", "count: 10, period: 1h", 1000, 1, 0, 360 * time.Second, 0},
	} {
		for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
			for _, inline := range []bool{false, true} {
				for _, client := range []string{"silent", "reading", "checking"} {
					t.Run(fmt.Sprintf("%s, %s, inline %v, %s", c.name, algorithm, inline, client), func(t *testing.T) {
						n := newNode(t)
						s := newService(t, n)
						var now ask = func(*Check) {}
						limit := func(text string) {
							set := parse(t, fmt.Sprintf("domain: shop\ndescriptors:\n  - key: user\n    limits: [{algorithm: %s, %s}]\n", algorithm, text))
							if inline {
								now = limits(set.Rules()[0].Limits.List()...)
							} else {
								s.SetRules(set)
							}
						}
						do := func(v bucket.Verb, units int64) Result {
							return mustCheck(t, s, batch(t, all(entry("user", "x"), now, verb(v), cost(units))))[0]
						}
						limit(c.from)
						if r := do(bucket.Check, c.spend); !r.Allowed || r.Remaining != 0 {
							t.Fatalf("not spent: %+v", r.Decision)
						}
						n.Now.Add(int64(c.changed))
						limit(c.to)
						said := do(bucket.Read, c.cost)
						if said.Allowed || said.RetryAfter != c.retry || said.Remaining != c.remainingOfLower {
							t.Fatalf("%+v, want to wait %v with %d left", said.Decision, c.retry, c.remainingOfLower)
						}
						until := n.Now.Load() + int64(said.RetryAfter)
						for n.Now.Add(int64(c.retry / 7)); n.Now.Load() < until; n.Now.Add(int64(c.retry / 7)) {
							v := bucket.Read
							if client == "silent" {
								continue
							} else if client == "checking" {
								v = bucket.Check
							}
							if r := do(v, c.cost); r.Allowed || n.Now.Load()+int64(r.RetryAfter) != until {
								t.Fatalf("%v before: %+v", time.Duration(until-n.Now.Load()), r.Decision)
							}
						}
						n.Now.Store(until - 1)
						if client != "silent" && do(bucket.Check, c.cost).Allowed {
							t.Error("admitted earlier than told")
						}
						n.Now.Store(until)
						if r := do(bucket.Check, c.cost); !r.Allowed {
							t.Errorf("denied after the wait: %+v", r.Decision)
						}
					})
				}
			}
		}
	}
}
