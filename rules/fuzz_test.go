package rules_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/faulttest"
)

// FuzzParse: whatever the bytes, Parse comes back soon, with either a set that
// can be used or faults that have a place.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "domain: d", tree, keyTree, one("unit: day, requests_per_unit: 1"), beside("metadata: {a: [1, {b: c}]}"),
		beside("reservation: {max_units: 9, max_open: 5, ttl: 1h, max_ttl: 1d, on_expiry: release, estimate: 1}"),
		"domain: d\ndescriptors: &x\n  - key: a\n    descriptors: *x\n", "domain: d\ndescriptors:\n  - &x\n    key: a\n    <<: [*x, *x]\n",
		withPool(reserved+", load: {shrink_to: 20%, expires: 5s}, replication: sync", "pool: p, priority: low, priority_key: a"),
		withPool("limit: {algorithm: token_bucket, count: 9223372036854775807, period: 1s, burst: 1}, reserves: {a: 0%}, load: {shrink_to: 0%}", "pool: p, priority: a"),
		"a: &a [*a, *a]\n", entry("key: a, from: path, patterns: [/a*]"), "---\n---\n", "? [a]\n: b\n", "domain: !!binary x\n", "domain: !!int x\n", "!!str domain: d\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		begin := time.Now()
		set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: data}}, rules.Options{})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
		if err != nil {
			faulttest.Placed(t, err, "f.yaml")
			return
		}
		for _, r := range set.Rules() {
			d := r.Entries()
			got, known := set.Match(r.Domain, d)
			if !known {
				t.Errorf("the domain of %s is not known", r.Path)
			}
			r.AppendKey(nil, r.Domain, d)
			r.AppendMetric(nil, d, nil)
			// An empty value may be taken by a pattern before it comes to the key alone.
			if got != r && !slices.ContainsFunc(d, func(e rules.Entry) bool { return e.Value == "" }) {
				t.Errorf("%s is not found by its own entries: %v", r.Path, got)
			}
			if e := r.Elastic; e != nil {
				for step := range rules.LoadSteps + 1 {
					l, n := e.Pool.Limits(step).At(0), e.Pool.Reserve(e.Priority(d), step)
					if l.Count < 0 || l.Burst < 0 || n < 0 {
						t.Errorf("%s: at step %d the pool is %+v, with %d reserved", r.Path, step, l, n)
					}
				}
			}
			if v := r.Reservation; v.MaxOpen < 1 || v.TTL <= 0 || v.TTL > v.MaxTTL || v.Estimate > 0 && v.Estimate > v.Most(r.Limits) {
				t.Errorf("%s: %+v", r.Path, v)
			}
			if r.Unlimited != (r.Limits == nil) {
				t.Errorf("%s: unlimited %v with limits %v", r.Path, r.Unlimited, r.Limits)
			}
			for i := 0; i == 0 || r.Limits != nil && i < r.Limits.Len(); i++ {
				if r.LimitName(i) == "" {
					t.Errorf("%s: limit %d has no name", r.Path, i)
				}
			}
		}
	})
}
