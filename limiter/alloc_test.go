package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	"github.com/sluicecluster/sluice/rules"
)

// allow admits everything and allocates nothing.
func allow(_ context.Context, b *check.Batch) {
	for i := range b.Answers {
		b.Answers[i] = check.Answer{Decision: bucket.Decision{Allowed: true, Limit: 3, Remaining: 2}, Source: check.Owned}
	}
}

func TestCheckAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector makes sync.Pool forget; only the answers are tested")
	}
	own := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second}
	pool := func(_ context.Context, b *check.Batch) {
		for i := range b.Answers {
			b.Answers[i] = check.Answer{Decision: bucket.Decision{Allowed: b.Requests[i].Limits.At(0).Count == 10}, Source: check.Owned}
		}
	}
	for _, c := range []struct {
		name, key string
		decide    decideFunc
		checks    int
		limits    []bucket.Limit
	}{
		{"one check", "user", allow, 1, nil},
		{"a hundred checks", "user", allow, 100, nil},
		{"limits of its own", "user", allow, 1, []bucket.Limit{own}},
		{"two limits of its own", "user", allow, 1, []bucket.Limit{own, {Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour}}},
		{"of a pool", "low", pool, 10, nil},
	} {
		s := newService(t, c.decide)
		s.SetRules(parse(t, elasticRules))
		call := func() {
			b := NewBatch()
			for range c.checks {
				q := b.Add()
				q.Domain = "shop"
				q.Descriptor = append(q.Descriptor, rules.Entry{Key: c.key, Value: "x"})
				q.Limits = append(q.Limits, c.limits...)
			}
			if err := s.Check(t.Context(), b); err != nil || !b.Results[0].Allowed || b.Results[0].Elastic != (c.key == "low") {
				t.Fatal(err, b.Results[0])
			}
			b.Release()
		}
		if n := testing.AllocsPerRun(100, call); n > 0 && !race.Enabled {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, c := range []struct {
		name        string
		checks, own int
		top         TopKeys
	}{{"checks=1", 1, 0, TopLocal}, {"checks=1/top=off", 1, 0, TopOff}, {"checks=100", 100, 0, TopLocal}, {"checks=100/limits", 100, 1, TopLocal}} {
		s := newService(b, decideFunc(allow), func(config *Config) { config.TopKeys = c.top })
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					q := NewBatch()
					for range c.checks {
						k := q.Add()
						k.Domain = "shop"
						k.Descriptor = append(k.Descriptor, rules.Entry{Key: "user", Value: "x"})
						if c.own > 0 {
							k.Limits = append(k.Limits, bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second})
						}
					}
					if err := s.Check(context.Background(), q); err != nil {
						b.Fatal(err)
					}
					q.Release()
				}
			})
		})
	}
}
