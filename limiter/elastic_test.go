package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// elasticRules: everybody has 3 a minute, and what is beyond comes out of 10 a minute.
const elasticRules = `
domain: shop
pools:
  spare:
    limit: {unit: minute, count: 10}
    reserves: {high: 0, low: 60%}
descriptors:
  - key: high
    rate_limit: {unit: minute, count: 3}
    elastic: {pool: spare, priority: high}
  - key: low
    rate_limit: {unit: minute, count: 3}
    elastic: {pool: spare, priority: low}
  - key: tier
    descriptors:
      - key: user
        rate_limit: {unit: minute, count: 0}
        elastic: {pool: spare, priority: low, priority_key: tier}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: spare, priority: high}
  - key: plain
    rate_limit: {unit: minute, count: 1}
  - key: closed
    rate_limit: {unit: minute, count: 3}
    on_failure: closed
    elastic: {pool: spare, priority: high}
`

// TestElastic: the key's own limit first, then the pool down to the reserve, and the answers say which. What is reserved is there for
// those whom it is for.
func TestElastic(t *testing.T) {
	play(t, elasticRules, `
		low=x | low=x | low=x => allowed 2/3 | allowed 1/3 | allowed 0/3
		pool => 10
		low=x *4 => allowed_elastic 0/3
		low=x => denied 0/3, in 1m
		high=x *6 => allowed_elastic 3/3
		pool => 0
	`)
	s := newScript(t, elasticRules)
	for i, want := range []time.Duration{0, check.MaxDenied} { // only what the pool denies too is to be remembered
		if r := mustCheck(t, s.Limiter, batch(t, all(entry("low", "x"), cost(4))))[0]; r.Elastic != (i == 0) || r.Source != check.Owned || r.DeniedFor != want {
			t.Errorf("%+v, want to remember it for %v", r, want)
		}
	}
}

// TestElasticPriorities: lower priorities never take what a higher one may need, and a pool does not deny what the own limit has.
func TestElasticPriorities(t *testing.T) {
	play(t, elasticRules, `
		tier=low user=a *4 => allowed_elastic 0/0
		tier=low user=a => denied 0/0, in 1m
		tier=strange user=b => denied 0/0, in 1m
		low=x *3 => allowed 0/3
		low=x => denied 0/3, in 1m
		tier=high user=c *6 => allowed_elastic 0/0
		tier=high user=c => denied 0/0, in 1m
		high=x *3 => allowed 0/3
		pool => 0
	`)
}

// TestElasticVerbs: what each verb does to a pool, and that a shadow only looks.
func TestElasticVerbs(t *testing.T) {
	s := play(t, elasticRules, `
		high=x *5 read => allowed_elastic 3/3
		high=x *11 => denied_never 3/3
		pool => 10
		high=x *5 => allowed_elastic 3/3
		pool => 5
		high=x *5 charge => allowed 0/3
		pool => 5
		high=x *5 refund => allowed 3/3
		high=x *5 refund => allowed 3/3
		pool => 5
		watched=x | watched=x => allowed 0/1 | allowed_elastic 0/1
		watched=x *6 => allowed_shadow 0/1
		pool => 5
		high=x reset => allowed 3/3
		pool => 5
	`)
	if p := s.Stats().Pools; len(p) != 1 || p[0].Name != "spare" || p[0].Admitted != 3 || p[0].Denied != 2 {
		t.Errorf("pools %+v", p)
	}
}

// TestElasticWhole: in an all-or-nothing call the pool is part of it.
func TestElasticWhole(t *testing.T) {
	for _, c := range []struct {
		name, call, want string
		// spent of the pool and of plain=p, afterwards
		pool, plain int64
	}{
		{"one beyond its own", "plain=p | high=x *4", "allowed 0/1 | allowed_elastic 3/3", 4, 1},
		{"two", "high=x *4 | high=y *6", "allowed_elastic 3/3 | allowed_elastic 3/3", 10, 0},
		{
			"the pool has too little for both", "high=x *4 | high=y *7 | plain=p",
			"denied_by_others 3/3, in 1m | denied 3/3, in 1m | denied_by_others 1/1, in 1m", 0, 0,
		},
		{
			"the reserve denies one", "high=x *4 | low=x *5 | plain=p",
			"denied_by_others 3/3 | denied_never 3/3 | denied_by_others 1/1", 0, 0,
		},
		{"one without a pool is denied", "high=x *4 | plain=p *2", "denied_never 3/3 | denied_never 1/1", 0, 0},
		{"the own limit is spent within the call", "high=x *3 | high=x | plain=p", "allowed 0/3 | allowed_elastic 0/3 | allowed 0/1", 1, 1},
		{"a shadow only looks", "plain=p | watched=w *2", "allowed 0/1 | allowed_elastic 1/1", 0, 1},
		{"a shadow beside a failure", "plain=p *2 | watched=w *2", "denied_never 1/1 | denied_by_others 1/1", 0, 0},
		{"a read only looks", "plain=p | high=x *4 read", "allowed 0/1 | allowed_elastic 3/3", 0, 1},
		{"an invalid one", "plain=p *-1 | high=x *4", "invalid cost | denied_by_others 3/3", 0, 0},
		{"alone", "high=x *4", "allowed_elastic 3/3", 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, elasticRules, fmt.Sprintf("whole: %s => %s\npool => %d\nplain=p read => %s", c.call, c.want, 10-c.pool,
				[]string{"allowed 1/1", "denied 0/1, in 1m"}[c.plain]))
		})
	}
}

// TestElasticRetry: a denial by both ends when the first of them would admit.
func TestElasticRetry(t *testing.T) {
	play(t, `
domain: shop
pools:
  quick: {limit: {period: 1s, count: 1}}
descriptors:
  - key: user
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: quick}
  - key: plain
    rate_limit: {unit: minute, count: 9}
`, `
		user=x | user=x | user=x | user=x *2 => allowed 0/1 | allowed_elastic 0/1 | denied 0/1, in 1s | denied_never 0/1
		whole: plain=x | user=x => denied_by_others 9/9, in 1s | denied 0/1, in 1s
		after 1s =>
		user=x => allowed_elastic 0/1
	`)
}

// TestElasticWithoutOwner: a pool that nobody can decide for gives nothing, what a rule answers without a look at the counter is not
// overruled, and a denial that is not the owner's is not to be remembered.
func TestElasticWithoutOwner(t *testing.T) {
	for _, c := range []struct {
		key             string
		own, pool, want check.Source
		asked           int
	}{
		{"high", check.Owned, check.Closed, check.Owned, 2},
		{"high", check.Owned, check.Share, check.Owned, 2}, // of another version
		{"closed", check.Closed, check.Owned, check.Closed, 1},
	} {
		asked := 0
		s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Requests {
				asked++
				b.Answers[i] = check.Answer{Source: c.own, Decision: bucket.Decision{RetryAfter: time.Second}}
				if b.Requests[i].Limits.At(0).Count == 10 {
					b.Answers[i].Source = c.pool
				}
			}
		}))
		s.SetRules(parse(t, elasticRules))
		if r := mustCheck(t, s, batch(t, entry(c.key, "x")))[0]; r.Allowed || r.Source != c.want || r.RetryAfter != time.Second || r.DeniedFor != 0 || asked != c.asked {
			t.Errorf("%+v: asked %d times, %+v", c, asked, r)
		}
	}
}

// TestElasticReload: a pool that changes its size keeps what was taken, and its counts.
func TestElasticReload(t *testing.T) {
	s := play(t, elasticRules, "tier=high user=a *10 => allowed_elastic 0/0")
	for _, c := range []struct {
		size string
		more int
	}{{"5", 0}, {"12", 2}, {"5", 0}, {"10", 0}, {"12", 0}, {"13", 1}} {
		s.SetRules(parse(t, `
domain: shop
pools: {spare: {limit: {unit: minute, count: `+c.size+`}, reserves: {high: 0, low: 1}}}
descriptors: [{key: tier, descriptors: [{key: user, rate_limit: {unit: minute, count: 0}, elastic: {pool: spare, priority: low, priority_key: tier}}]}]
`))
		for range c.more {
			s.play("tier=high user=a => allowed_elastic 0/0")
		}
		if got := s.do("tier=high user=a"); !strings.HasPrefix(got, "denied") {
			t.Errorf("a pool of %s, after %d more: %s", c.size, c.more, got)
		}
	}
	if p := s.Stats().Pools; len(p) != 1 || p[0].Admitted != 4 {
		t.Errorf("counts are lost with the old rules: %+v", p)
	}
}

// TestElasticSums plays calls of all kinds and holds what they are answered to an account.
func TestElasticSums(t *testing.T) {
	for seed := range uint64(20) {
		s := newScript(t, elasticRules)
		rng := rand.New(rand.NewPCG(seed, 1))
		own := make(map[string]int64)
		var pool, byLow int64
		for range 60 {
			var asks []ask
			for range 1 + rng.IntN(4) {
				key := []string{"high", "low"}[rng.IntN(2)]
				asks = append(asks, all(entry(key, fmt.Sprint(rng.IntN(3))), cost(1+rng.Int64N(3))))
			}
			b := batch(t, asks...)
			b.AllOrNothing = rng.IntN(2) == 0
			for i, r := range mustCheck(t, s.Limiter, b) {
				c := &b.Checks[i]
				name := c.Descriptor[0].Key + c.Descriptor[0].Value
				switch {
				case !r.Allowed && r.RetryAfter == 0:
					t.Fatalf("seed %d: %+v", seed, r)
				case !r.Allowed:
				case r.Elastic && c.Descriptor[0].Key == "low":
					byLow += c.Cost
					pool += c.Cost
				case r.Elastic:
					pool += c.Cost
				default:
					own[name] += c.Cost
				}
				if !r.Allowed && !b.AllOrNothing && own[name]+c.Cost <= 3 {
					t.Fatalf("seed %d: %s has spent %d of 3 and is denied %d", seed, name, own[name], c.Cost)
				}
			}
			if spent := 10 - s.number(s.do("pool")); spent != pool {
				t.Fatalf("seed %d: %d taken from the pool, %d admitted", seed, spent, pool)
			}
		}
		if byLow > 4 || pool > 10 {
			t.Errorf("seed %d: low took %d of its 4, all %d of 10", seed, byLow, pool)
		}
		for name, n := range own {
			if n > 3 {
				t.Errorf("seed %d: %s has spent %d of 3", seed, name, n)
			}
		}
	}
}
