package plots

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// algorithms are those of the rule files, in the order of docs/use/algorithms.md.
var algorithms = []struct {
	name string
	kind bucket.Algorithm
}{
	{"token_bucket", bucket.TokenBucket},
	{"leaky_bucket", bucket.LeakyBucket},
	{"leaky_queue", bucket.LeakyQueue},
	{"fixed_window", bucket.FixedWindow},
	{"sliding_log", bucket.SlidingLog},
	{"sliding_counter", bucket.SlidingCounter},
	{"sliding_window", bucket.SlidingWindow},
}

// decision is that of one check.
type decision struct {
	at      time.Duration // since the beginning, which is a border of every window
	allowed bool
	runs    time.Duration // when an admitted check may begin: at, or later behind a queue
}

// decide makes one check of cost 1 at each of times under l.
func decide(l bucket.Limit, times []time.Duration) ([]decision, error) {
	limits, err := bucket.NewLimits(l)
	if err != nil {
		return nil, err
	}
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		return nil, err
	}
	request := bucket.Request{Key: bucket.Key{Hi: 1, Lo: 1}, Limits: limits, Cost: 1}
	// A day, so that nothing before it counts, and a border of every window that is aligned to the epoch.
	const beginning = 24 * time.Hour
	list := make([]decision, 0, len(times))
	for _, at := range times {
		d := table.Do(int64(beginning+at), &request)
		list = append(list, decision{at, d.Allowed, at + d.Delay})
	}
	return list, nil
}

// admitted returns when checks were admitted, running when they could begin.
func admitted(list []decision) []time.Duration {
	return times(list, func(a decision) time.Duration { return a.at })
}

func running(list []decision) []time.Duration {
	return times(list, func(a decision) time.Duration { return a.runs })
}

func times(list []decision, of func(decision) time.Duration) (times []time.Duration) {
	for _, a := range list {
		if a.allowed {
			times = append(times, of(a))
		}
	}
	return times
}

// most returns how many of times, which are sorted, lie within any time of length w at most.
func most(times []time.Duration, w time.Duration) (best int) {
	from := 0
	for i, t := range times {
		for times[from] <= t-w {
			from++
		}
		best = max(best, i-from+1)
	}
	return best
}

// phase is a time in which checks come evenly spaced.
type phase struct {
	until time.Duration
	every time.Duration
}

// demand returns the times of checks in phases that follow each other from 0 on.
func demand(phases ...phase) (times []time.Duration) {
	var at time.Duration
	for _, p := range phases {
		for ; at < p.until; at += p.every {
			times = append(times, at)
		}
		at = p.until
	}
	return times
}
