package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/onenode"
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

func elasticService(t testing.TB, d check.Decider) *Limiter {
	s := newService(t, d)
	s.SetRules(parse(t, elasticRules))
	return s
}

// left returns how much of the pool is left, as priority high finds it.
func left(t testing.TB, n *onenode.Node, s *Limiter) int64 {
	t.Helper()
	pool := s.Rules().Pool("shop", "spare")
	key := s.config.Hasher.Key(pool.AppendKey([]byte{spacePool}))
	return n.Table.Do(n.Now.Load(), &bucket.Request{Key: key, Limits: pool.Limits(0), Verb: bucket.Read, Cost: 1}).Remaining
}

// TestElastic: the key's own limit first, then the pool down to the reserve, and the answers say which.
func TestElastic(t *testing.T) {
	node := newNode(t)
	s := elasticService(t, node)
	ask := func(key string, n int64) Result {
		t.Helper()
		return mustCheck(t, s, batch(t, all(entry(key, "x"), cost(n))))[0]
	}
	for i := range 3 {
		if r := ask("low", 1); !r.Allowed || r.Elastic {
			t.Fatalf("check %d within the own limit: %+v", i, r)
		}
	}
	if got := left(t, node, s); got != 10 {
		t.Fatalf("checks within their own limits left %d of the pool", got)
	}
	for i := range 4 {
		r := ask("low", 1)
		if !r.Allowed || !r.Elastic || r.Limit != 3 || r.Remaining != 0 || r.RetryAfter != 0 || r.Source != check.Owned || r.DeniedFor != 0 {
			t.Fatalf("check %d beyond it: %+v", i, r)
		}
	}
	if r := ask("low", 1); r.Allowed || r.Elastic || r.Limit != 3 || r.RetryAfter != time.Minute || r.DeniedFor != check.MaxDenied {
		t.Fatalf("in the reserve: %+v", r)
	}
	// What is reserved is there for those whom it is for.
	if r := ask("high", 6); !r.Elastic || left(t, node, s) != 0 {
		t.Errorf("the reserve, for whom it is: %+v", r)
	}
}

// TestElasticPriorities: lower priorities never take what a higher one may need.
func TestElasticPriorities(t *testing.T) {
	node := newNode(t)
	s := elasticService(t, node)
	taken := func(parts ...ask) (n int) {
		for {
			r := mustCheck(t, s, batch(t, all(parts...)))[0]
			if !r.Allowed {
				return n
			}
			n++
		}
	}
	if n := taken(entry("tier", "low"), entry("user", "a")); n != 4 {
		t.Errorf("tier low took %d, want 4 of 10 with 60%% reserved", n)
	}
	if n := taken(entry("tier", "strange"), entry("user", "b")); n != 0 {
		t.Errorf("a tier without a priority took %d of the reserve", n)
	}
	if n := taken(entry("low", "x")); n != 3 {
		t.Errorf("the own limit let %d pass, want its 3: a pool must not deny them", n)
	}
	if n := taken(entry("tier", "high"), entry("user", "c")); n != 6 {
		t.Errorf("tier high took %d, want the 6 that were reserved", n)
	}
	if n := taken(entry("high", "x")); n != 3 || left(t, node, s) != 0 {
		t.Errorf("with the pool empty the own limit let %d pass, want its 3", n)
	}
}

// TestElasticVerbs: what each verb does to a pool, and that a shadow only looks.
func TestElasticVerbs(t *testing.T) {
	node := newNode(t)
	s := elasticService(t, node)
	spent := func(n int64) {
		t.Helper()
		if got := left(t, node, s); got != 10-n {
			t.Errorf("%d left of the pool, want %d", got, 10-n)
		}
	}
	ask := func(key string, n int64, v bucket.Verb) Result {
		return mustCheck(t, s, batch(t, all(entry(key, "x"), cost(n), verb(v))))[0]
	}
	if r := ask("high", 5, bucket.Read); !r.Allowed || !r.Elastic {
		t.Errorf("read: %+v", r)
	}
	if r := ask("high", 11, bucket.Check); r.Allowed || !r.Never() {
		t.Errorf("more than both have: %+v", r)
	}
	spent(0)
	if r := ask("high", 5, bucket.Check); !r.Allowed || !r.Elastic || r.Remaining != 3 {
		t.Errorf("a cost above the own limit: %+v", r)
	}
	spent(5)
	for _, v := range []bucket.Verb{bucket.Charge, bucket.Refund, bucket.Refund} {
		if r := ask("high", 5, v); !r.Allowed || r.Elastic {
			t.Errorf("%v: %+v", v, r)
		}
		spent(5)
	}
	for i, want := range []bool{false, true} {
		if r := ask("watched", 1, bucket.Check); !r.Allowed || r.Shadowed || r.Elastic != want {
			t.Errorf("watched, check %d: %+v", i, r)
		}
	}
	if r := ask("watched", 6, bucket.Check); !r.Allowed || !r.Shadowed || r.Elastic {
		t.Errorf("watched, more than the pool has: %+v", r)
	}
	spent(5)
	if err := s.Check(t.Context(), batch(t, all(entry("high", "x"), verb(bucket.Reset)))); err != nil {
		t.Fatal(err)
	}
	spent(5)
	st := s.Stats()
	if p := st.Pools; len(p) != 1 || p[0].Name != "spare" || p[0].Admitted != 3 || p[0].Denied != 2 {
		t.Errorf("pools %+v", p)
	}
}

// TestElasticWhole: in an all-or-nothing call the pool is part of it.
func TestElasticWhole(t *testing.T) {
	over, overLow := all(entry("high", "x"), cost(4)), all(entry("low", "x"), cost(5))
	for _, c := range []struct {
		name string
		asks []ask
		want string // e elastic, y allowed, n not
		// spent of the pool and of user plain p, afterwards
		pool, plain int64
	}{
		{"one beyond its own", []ask{entry("plain", "p"), over}, "ye", 4, 1},
		{"two", []ask{over, all(entry("high", "y"), cost(6))}, "ee", 10, 0},
		{"the pool has too little for both", []ask{over, all(entry("high", "y"), cost(7)), entry("plain", "p")}, "nnn", 0, 0},
		{"the reserve denies one", []ask{over, overLow, entry("plain", "p")}, "nnn", 0, 0},
		{"one without a pool is denied", []ask{over, all(entry("plain", "p"), cost(2))}, "nn", 0, 0},
		{"the own limit is spent within the call", []ask{all(entry("high", "x"), cost(3)), entry("high", "x"), entry("plain", "p")}, "yey", 1, 1},
		{"a shadow only looks", []ask{entry("plain", "p"), all(entry("watched", "w"), cost(2))}, "ye", 0, 1},
		{"a shadow beside a failure", []ask{all(entry("plain", "p"), cost(2)), all(entry("watched", "w"), cost(2))}, "nn", 0, 0},
		{"a read only looks", []ask{entry("plain", "p"), all(over, verb(bucket.Read))}, "ye", 0, 1},
		{"an invalid one", []ask{all(entry("plain", "p"), cost(-1)), over}, "nn", 0, 0},
		{"alone", []ask{over}, "e", 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := newNode(t)
			s := elasticService(t, node)
			b := batch(t, c.asks...)
			b.AllOrNothing = true
			got := ""
			for _, r := range mustCheck(t, s, b) {
				switch {
				case r.Allowed && r.Elastic:
					got += "e"
				case r.Allowed:
					got += "y"
				default:
					got += "n"
				}
				if r.Elastic && !r.Allowed {
					t.Errorf("denied and elastic: %+v", r)
				}
			}
			if got != c.want {
				t.Errorf("answers %q, want %q", got, c.want)
			}
			if spent := 10 - left(t, node, s); spent != c.pool {
				t.Errorf("%d taken from the pool, want %d", spent, c.pool)
			}
			if r := mustCheck(t, s, batch(t, all(entry("plain", "p"), verb(bucket.Read))))[0]; 1-r.Remaining != c.plain {
				t.Errorf("%d of plain spent, want %d", 1-r.Remaining, c.plain)
			}
		})
	}
}

// TestElasticRetry: a denial by both ends when the first of them would admit.
func TestElasticRetry(t *testing.T) {
	node := newNode(t)
	s := newService(t, node)
	s.SetRules(parse(t, `
domain: shop
pools:
  quick: {limit: {period: 1s, count: 1}}
descriptors:
  - key: user
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: quick}
  - key: plain
    rate_limit: {unit: minute, count: 9}
`))
	b := batch(t, all(entry("user", "x")), entry("user", "x"), entry("user", "x"), all(entry("user", "x"), cost(2)))
	rs := mustCheck(t, s, b)
	if !rs[0].Allowed || rs[0].Elastic || !rs[1].Elastic || rs[2].Allowed || rs[2].RetryAfter != time.Second || !rs[3].Never() {
		t.Errorf("%+v", rs)
	}
	b = batch(t, entry("plain", "x"), entry("user", "x"))
	b.AllOrNothing = true
	for i, r := range mustCheck(t, s, b) {
		if r.Allowed || r.RetryAfter != time.Second {
			t.Errorf("check %d of a call: %+v, want a retry after 1 s", i, r)
		}
	}
	node.Now.Add(int64(time.Second))
	if r := mustCheck(t, s, batch(t, entry("user", "x")))[0]; !r.Elastic {
		t.Errorf("after it: %+v", r)
	}
}

// TestElasticWithoutOwner: a pool that nobody can decide for gives nothing, and what a rule answers
// without a look at the counter is not overruled.
func TestElasticWithoutOwner(t *testing.T) {
	var closed, asked int
	s := elasticService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		for i := range b.Requests {
			q, a := &b.Requests[i], &b.Answers[i]
			*a = check.Answer{Source: check.Owned, Decision: bucket.Decision{RetryAfter: time.Second}}
			switch {
			case q.OnFailure == rules.FailClosed && q.Limits.At(0).Count == 10:
				asked++
				a.Source = check.Closed
			case q.OnFailure == rules.FailClosed:
				closed++
				a.Source = check.Closed
			}
		}
	}))
	if r := mustCheck(t, s, batch(t, entry("high", "x")))[0]; r.Allowed || r.Source != check.Owned || r.RetryAfter != time.Second || r.DeniedFor != 0 {
		t.Errorf("%+v, want the own denial, not to be remembered", r)
	}
	if r := mustCheck(t, s, batch(t, entry("closed", "x")))[0]; r.Allowed || r.Source != check.Closed {
		t.Errorf("closed: %+v", r)
	}
	s = elasticService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		for i := range b.Requests {
			b.Answers[i] = check.Answer{Source: check.Owned, Decision: bucket.Decision{RetryAfter: time.Second}}
			if b.Requests[i].OnFailure == rules.FailClosed {
				b.Answers[i].Source = check.Share // of another version: not by the owner
			}
		}
	}))
	if r := mustCheck(t, s, batch(t, entry("high", "x")))[0]; r.Allowed || r.DeniedFor != 0 {
		t.Errorf("denied by somebody else for the pool: %+v, not to be remembered", r)
	}
	if asked != 1 || closed != 1 {
		t.Errorf("the pool was asked %d times and the closed rule %d times, want once each", asked, closed)
	}
}

// TestElasticReload: a pool that changes its size keeps what was taken.
func TestElasticReload(t *testing.T) {
	node := newNode(t)
	s := elasticService(t, node)
	take := func() (n int) {
		for mustCheck(t, s, batch(t, all(entry("tier", "high"), entry("user", "a"))))[0].Allowed {
			n++
		}
		return n
	}
	if n := take(); n != 10 {
		t.Fatalf("%d taken", n)
	}
	sized := func(size string) {
		s.SetRules(parse(t, `
domain: shop
pools: {spare: {limit: {unit: minute, count: `+size+`}, reserves: {high: 0, low: 1}}}
descriptors: [{key: tier, descriptors: [{key: user, rate_limit: {unit: minute, count: 0}, elastic: {pool: spare, priority: low, priority_key: tier}}]}]
`))
	}
	for _, c := range []struct {
		size string
		want int
	}{{"5", 0}, {"12", 2}, {"5", 0}, {"10", 0}, {"12", 0}, {"13", 1}} {
		sized(c.size)
		if n := take(); n != c.want {
			t.Errorf("with a pool of %s: %d more, want %d", c.size, n, c.want)
		}
	}
	if p := s.Stats().Pools; len(p) != 1 || p[0].Admitted != 13 {
		t.Errorf("counts are lost with the old rules: %+v", p)
	}
}

// TestElasticSums plays calls of all kinds and holds what they are answered to an account.
func TestElasticSums(t *testing.T) {
	for seed := range uint64(20) {
		node := newNode(t)
		s := elasticService(t, node)
		rng := rand.New(rand.NewPCG(seed, 1))
		own := make(map[string]int64)
		var pool, byLow int64
		for range 60 {
			var b *Batch
			var asks []ask
			for range 1 + rng.IntN(4) {
				key := []string{"high", "low"}[rng.IntN(2)]
				asks = append(asks, all(entry(key, fmt.Sprint(rng.IntN(3))), cost(1+rng.Int64N(3))))
			}
			b = batch(t, asks...)
			b.AllOrNothing = rng.IntN(2) == 0
			for i, r := range mustCheck(t, s, b) {
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
			if spent := 10 - left(t, node, s); spent != pool {
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

func TestElasticAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector makes sync.Pool forget; only the answers are tested")
	}
	s := elasticService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		for i := range b.Answers {
			b.Answers[i] = check.Answer{Decision: bucket.Decision{Allowed: b.Requests[i].Limits.At(0).Count == 10}, Source: check.Owned}
		}
	}))
	call := func() {
		b := NewBatch()
		for range 10 {
			q := b.Add()
			q.Domain = "shop"
			q.Descriptor = append(q.Descriptor, rules.Entry{Key: "low", Value: "x"})
		}
		if err := s.Check(context.Background(), b); err != nil || !b.Results[9].Elastic {
			t.Fatal(err, b.Results[9])
		}
		b.Release()
	}
	if n := testing.AllocsPerRun(100, call); n > 0 && !race.Enabled {
		t.Errorf("%v allocations", n)
	}
}
