package envoy

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicecluster/sluice/test/apitest"
)

// TestTokenFlow: an AI gateway reads with 0 hits before a request, and Envoy sends its tokens when the stream is done
// (apply_on_stream_done), as hits of the descriptor or of the request.
func TestTokenFlow(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - key: model
    value: large
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: model
    rate_limit: {algorithm: token_bucket, count: 60, period: 1m, burst: 60}
`
	tell(t, rules, nil, `
		0s  model=large +hits=0 -> ok: ok 100/MINUTE left=100 reset=0s
		1s  model=large +hits=0 -> ok: ok 100/MINUTE left=100 reset=0s
		2s  model=large +hits=70 -> ok: ok 100/MINUTE left=30 reset=58s
		3s  model=large +hits=0 -> ok: ok 100/MINUTE left=30 reset=57s
		4s  model=large +all=70 -> over: over 100/MINUTE left=0 reset=56s
		5s  model=large +hits=0 -> over: over 100/MINUTE left=0 reset=55s
		6s  model=large +hits=5 -> over: over 100/MINUTE left=0 reset=54s
		60s model=large +hits=0 -> ok: ok 100/MINUTE left=100 reset=0s
		60s model=large +hits=0 | model=small +hits=0 -> ok: ok 100/MINUTE left=100 reset=0s; ok 60/MINUTE left=60 reset=0s
		60s model=large +hits=40 | model=small +hits=90 -> over: ok 100/MINUTE left=60 reset=1m0s; over 60/MINUTE left=0 reset=1m0s
		60s model=large +hits=0 | model=small +hits=0 -> over: ok 100/MINUTE left=60 reset=1m0s; over 60/MINUTE left=0 reset=1s
		61s model=large +hits=0 | model=small +hits=0 -> ok: ok 100/MINUTE left=60 reset=59s; ok 60/MINUTE left=1 reset=59s
	`)
}

// TestTokenFlowAsRatelimit: requests of several users, many at once, are admitted as envoyproxy/ratelimit admits them, which
// counts all hits of a window and admits 0 hits unless more than the limit was counted. The one difference is that it admits
// them too when exactly the limit was counted.
func TestTokenFlowAsRatelimit(t *testing.T) {
	const limit = 1000
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := apitest.NewNode(t)
		d := open(t, Config{Limiter: newLimiter(t, n, fmt.Sprintf(`
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: %d}
`, limit))})
		asks := func(user string, hits uint64) bool {
			res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, fmt.Sprintf("user=%s +hits=%d", user, hits)))
			if err != nil {
				t.Fatal(err)
			}
			return res.GetOverallCode() == ratelimitv3.RateLimitResponse_OK
		}
		counted := map[string]uint64{} // by user and window
		var streams []string           // users, one for each stream that is not done
		for step := range 400 {
			n.Now.Add(int64(r.IntN(1500)) * int64(time.Millisecond))
			window := n.Now.Load() / int64(time.Minute)
			user := string(rune('a' + r.IntN(3)))
			key := fmt.Sprint(user, window)
			if r.IntN(2) == 0 {
				want := counted[key] < limit
				if got := asks(user, 0); got != want {
					t.Fatalf("seed %d, step %d: %d tokens counted, admitted %v", seed, step, counted[key], got)
				}
				if want {
					streams = append(streams, user)
				}
				continue
			}
			if len(streams) == 0 {
				continue
			}
			i := r.IntN(len(streams))
			user, streams[i] = streams[i], streams[len(streams)-1]
			streams = streams[:len(streams)-1]
			key = fmt.Sprint(user, window)
			tokens := uint64(1+r.IntN(20)) * 10
			counted[key] += tokens
			if got := asks(user, tokens); got != (counted[key] <= limit) {
				t.Fatalf("seed %d, step %d: %d tokens counted with the last %d, within the limit %v", seed, step, counted[key], tokens, got)
			}
		}
	}
}
