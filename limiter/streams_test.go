package limiter

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
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
	used  [streamMinutes]atomic.Int64
}

func (s *streams) over() bool { return time.Since(s.began) >= streamMinutes*time.Minute }

// wait waits until it may be worth asking again.
func (s *streams) wait(r *rand.Rand) { time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second)))) }

// run reserves the rule's estimate, spends before tokens are passed on, and extends where that is too little. It reports whether the
// stream was admitted.
func (s *streams) run(need int64, r *rand.Rand) bool {
	ctx, b := s.t.Context(), NewBatch()
	all(domain("llm"), entry("model", "large"))(b.Add())
	x, err := s.Reserve(ctx, b, ReserveRequest{Least: streamPart})
	if err != nil || b.Results[0].Err != nil {
		s.t.Error(err, b.Results[0].Err)
	}
	if b.Release(); x.Units == 0 {
		return false
	}
	left := x.Units
	for used := int64(0); used < need && !s.over(); {
		n := min(streamPart, need-used)
		if left < n {
			e, err := s.Extend(ctx, x.ID, 4*streamPart, time.Minute)
			if err != nil {
				s.t.Error(err)
				break
			}
			if left = e.Units; !e.Allowed {
				s.wait(r)
				continue
			}
		}
		got, err := s.Spend(ctx, x.ID, n)
		if err != nil || !got.Allowed {
			s.t.Errorf("%+v, %v", got, err)
			break
		}
		s.used[time.Since(s.began)/time.Minute].Add(n)
		time.Sleep(time.Duration(n) * time.Second / streamRate)
		left, used = got.Left, used+n
	}
	if _, err := s.Settle(ctx, x.ID, 0); err != nil {
		s.t.Error(err)
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
					if !s.run(tokensOf(r), r) {
						s.wait(r)
					}
				}
			})
		}
		all.Wait()
		for minute := range s.used {
			if used := s.used[minute].Load(); used > budget || used < budget*97/100 {
				t.Errorf("minute %d: %d used of %d", minute, used, budget)
			}
		}
	})
}
