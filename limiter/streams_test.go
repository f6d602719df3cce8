package limiter

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	"github.com/sluicecluster/sluice/rules"
)

// Streams of tokens whose cost is known when they have ended: 1,000 callers make one after the other under one budget, at twice what it
// admits. Their time is synctest's.
const (
	streamCallers = 1000
	streamBudget  = 3_000_000 // tokens a minute
	streamMinutes = 2
	streamRate    = 100 // tokens a second of a stream
	streamPart    = 50  // tokens that are passed on at a time
	streamMost    = 8192
)

// tokensOf returns the cost of a stream: half have at most 178 tokens, one in a hundred 4,600 or more (Pareto, α = 1.2).
func tokensOf(r *rand.Rand) int64 {
	return int64(min(streamMost, 100/math.Pow(1-r.Float64(), 1/1.2)))
}

// streams books what all streams have used, in each minute.
type streams struct {
	*Limiter
	t     *testing.T
	began time.Time
	mu    struct {
		sync.Mutex
		used                     [streamMinutes]int64
		ended, denied, postponed int
	}
}

// note adds to the book.
func (s *streams) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *streams) over() bool { return time.Since(s.began) >= streamMinutes*time.Minute }

// pass passes so many tokens on, and reports whether the test goes on.
func (s *streams) pass(n int64) bool {
	if s.over() {
		return false
	}
	s.note(func() { s.mu.used[time.Since(s.began)/time.Minute] += n })
	time.Sleep(time.Duration(n) * time.Second / streamRate)
	return true
}

// wait waits until it may be worth asking again.
func (s *streams) wait(r *rand.Rand) { time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second)))) }

func (s *streams) batch() *Batch {
	b := NewBatch()
	c := b.Add()
	c.Domain, c.Descriptor = "llm", append(c.Descriptor, rules.Entry{Key: "model", Value: "large"})
	return b
}

// check makes a check of the budget.
func (s *streams) check(v bucket.Verb, cost int64) bool {
	b := s.batch()
	defer b.Release()
	b.Checks[0].Verb, b.Checks[0].Cost = v, cost
	if err := s.Check(s.t.Context(), b); err != nil || b.Results[0].Err != nil {
		s.t.Error(err, b.Results[0].Err)
	}
	return b.Results[0].Allowed
}

// reserve reserves units, 0 for the estimate.
func (s *streams) reserve(units, least int64) (Reservation, bool) {
	b := s.batch()
	defer b.Release()
	x, err := s.Reserve(s.t.Context(), b, ReserveRequest{Units: units, Least: least})
	if err != nil || b.Results[0].Err != nil {
		s.t.Error(err, b.Results[0].Err)
	}
	return x, x.Units > 0
}

func (s *streams) settle(x Reservation, actual int64) {
	if _, err := s.Settle(s.t.Context(), x.ID, actual); err != nil {
		s.t.Error(err)
	}
}

// afterwards begins streams while tokens are left, and charges each when it has ended.
func (s *streams) afterwards(need int64, _ *rand.Rand) bool {
	if !s.check(bucket.Read, 1) {
		return false
	}
	used := int64(0)
	for used < need && s.pass(min(streamPart, need-used)) {
		used += min(streamPart, need-used)
	}
	s.check(bucket.Charge, used)
	return true
}

// maximum reserves the most that a stream may need.
func (s *streams) maximum(need int64, _ *rand.Rand) bool {
	x, ok := s.reserve(streamMost, 0)
	if !ok {
		return false
	}
	used := int64(0)
	for used < need && s.pass(min(streamPart, need-used)) {
		used += min(streamPart, need-used)
	}
	s.settle(x, used)
	return true
}

// spending reserves the rule's estimate, spends before tokens are passed on, and extends where that is too little.
func (s *streams) spending(need int64, r *rand.Rand) bool {
	x, ok := s.reserve(0, streamPart)
	if !ok {
		return false
	}
	ctx, left, postponed := s.t.Context(), x.Units, false
	for used := int64(0); used < need && !s.over(); {
		n := min(streamPart, need-used)
		if left < n {
			e, err := s.Extend(ctx, x.ID, 4*streamPart, time.Minute)
			if err != nil {
				s.t.Error(err)
				break
			}
			if left = e.Units; !e.Allowed {
				postponed = true
				s.wait(r)
				continue
			}
		}
		got, err := s.Spend(ctx, x.ID, n)
		if err != nil || !got.Allowed {
			s.t.Errorf("%+v, %v", got, err)
			break
		}
		s.pass(n)
		left, used = got.Left, used+n
	}
	s.settle(x, 0)
	if postponed {
		s.note(func() { s.mu.postponed++ })
	}
	return true
}

// TestStreams: with spending and extending nothing is used beyond the budget, and nearly all of it is used.
func TestStreams(t *testing.T) {
	t.Parallel()
	callers := streamCallers
	if race.Enabled { // it is as slow as ten times as many
		callers /= 10
	}
	budget := int64(callers * streamBudget / streamCallers)
	var table strings.Builder
	fmt.Fprintf(&table, "\n| %-32s | beyond the budget | used of the budget | streams ended | denied | postponed |\n", "")
	for _, c := range []struct {
		name string
		run  func(*streams, int64, *rand.Rand) bool
		ok   func(over, used float64) bool
	}{
		{"count afterwards", (*streams).afterwards, func(over, _ float64) bool { return over > 0 }},
		{"reserve the maximum", (*streams).maximum, func(over, used float64) bool { return over == 0 && used < 0.97 }},
		{"reserve, spend, extend, settle", (*streams).spending, func(over, used float64) bool { return over == 0 && used >= 0.97 }},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, err := bucket.NewTable(bucket.Config{Shards: 3})
			if err != nil {
				t.Fatal(err)
			}
			s := &streams{t: t, began: time.Now(), Limiter: newService(t, decideFunc(func(_ context.Context, q *check.Batch) {
				for i := range q.Requests {
					q.Answers[i] = check.Answer{Decision: b.Do(time.Now().UnixNano(), &q.Requests[i].Request), Source: check.Owned}
				}
			}))}
			s.SetRules(parse(t, fmt.Sprintf(`
domain: llm
descriptors:
  - key: model
    rate_limit: {name: tokens, algorithm: fixed_window, count: %d, period: 1m}
    reservation: {max_units: %d, max_open: %d, ttl: 3m}
`, budget, streamMost, callers)))
			var all sync.WaitGroup
			for i := range uint64(callers) {
				all.Go(func() {
					r := rand.New(rand.NewPCG(19, i))
					s.wait(r)
					for !s.over() {
						if need := tokensOf(r); c.run(s, need, r) {
							s.note(func() { s.mu.ended++ })
							continue
						}
						s.note(func() { s.mu.denied++ })
						s.wait(r)
					}
				})
			}
			all.Wait()
			var over, used float64
			for _, u := range s.mu.used {
				over += float64(max(0, u-budget)) / float64(budget) / streamMinutes
				used += float64(min(u, budget)) / float64(budget) / streamMinutes
			}
			fmt.Fprintf(&table, "| %-32s | %16.1f%% | %17.1f%% | %13d | %6d | %9d |\n", c.name, 100*over, 100*used, s.mu.ended, s.mu.denied, s.mu.postponed)
			if !c.ok(over, used) {
				t.Errorf("%s: %.1f %% beyond the budget, %.1f %% used", c.name, 100*over, 100*used)
			}
		})
	}
	t.Log(table.String())
}
