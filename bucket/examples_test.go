package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

const threeAMinute story = `
	03:00:00 allowed left=2
	03:00:10 allowed left=1
	03:01:05 allowed left=2
	03:01:20 allowed left=1
	03:01:45 allowed left=0
	03:01:50 denied left=0
`

const twoAMinute story = `
	1:00:01 allowed left=1
	1:00:30 allowed left=0
	1:00:50 denied left=0
	1:01:40 allowed
`

var (
	threeTokens     = per(bucket.TokenBucket, 3, time.Minute)
	inSteps         = with(threeTokens, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval })
	threeChecks     = per(bucket.FixedWindow, 3, time.Minute)
	twoSecondsApart = with(threeChecks, func(l *bucket.Limit) { l.MinInterval = 2 * time.Second })
	fiveChecks      = per(bucket.FixedWindow, 5, time.Minute)
	threeADay       = per(bucket.FixedWindow, 3, 24*time.Hour)
	twoInALog       = per(bucket.SlidingLog, 2, time.Minute)
	threeWait       = bucket.Limit{Algorithm: bucket.LeakyQueue, Count: 6, Period: time.Minute, Burst: 3}
)

func firstHit(l *bucket.Limit)    { l.Align = bucket.AlignFirstHit }
func countDenied(l *bucket.Limit) { l.CountDenied = true }

// examples are those of docs/internals/algorithms.md, and of each option.
var examples = []struct {
	name  string
	story story
	limit bucket.Limit
}{
	{"steps at whole minutes", `
		0:01 allowed left=2 reset=59s
		0:15 ×2 allowed
		0:58 denied left=0 retry=2s reset=2s
		0:59.999999999 denied retry=1ns
		1:00 allowed left=2
	`, inSteps},
	{"steps from the first check", `
		0:01 allowed left=2 reset=1m0s
		0:15 ×2 allowed
		0:58 denied retry=3s
		1:00 denied retry=1s
		1:01 allowed left=2
	`, with(inSteps, firstHit)},
	{"continuous refill", `
		0:01 allowed left=2 reset=20s
		0:15 ×2 allowed
		0:58 allowed
	`, threeTokens},
	{"windows let two bursts meet", `
		0:55 ×5 allowed
		0:59 denied left=0 retry=1s reset=1s
		1:00 ×5 allowed
		1:01 denied retry=59s
	`, fiveChecks},
	{"a log does not", `
		0:55 ×2 allowed
		0:59 denied left=0
		1:00 ×2 denied left=0
	`, twoInALog},
	{"windows of the epoch", threeAMinute + "03:02:01 allowed left=2 reset=59s", threeChecks},
	{"windows of the calendar", threeAMinute + "03:02:01 allowed left=2 reset=59s", with(threeChecks, func(l *bucket.Limit) {
		l.Align, l.Unit, l.Period = bucket.AlignCalendar, bucket.Minute, 0
	})},
	{"windows from the first check", threeAMinute + `
		03:02:01 denied retry=4s
		03:02:05 allowed left=2 reset=1m0s
	`, with(threeChecks, firstHit)},
	{"denied checks do not count", twoAMinute + "1:01:45 allowed left=0", twoInALog},
	{"denied checks count", twoAMinute + "1:01:45 denied", with(twoInALog, countDenied)},
	{"retry after of a log", `
		0:01 allowed
		0:15 allowed reset=1m0s
		0:55 denied retry=6s reset=20s
		0:55 2 denied retry=20s
		0:55 3 denied retry=never
	`, twoInALog},
	{"windows are weighed", `
		0:30 5 allowed left=2
		1:01 3 allowed
		1:18 read allowed left=1
		1:18 allowed left=0
		1:18 denied
	`, per(bucket.SlidingCounter, 7, time.Minute)},
	{"a queue says when to act", `
		0:00 allowed delay=0s left=2
		0:00 allowed delay=10s left=1
		0:00 allowed delay=20s left=0
		0:00 denied delay=0s retry=10s
		0:05 denied retry=5s
		0:10 allowed delay=20s
		0:35 allowed delay=5s
		1:10 now allowed delay=0s left=2
		1:10 now denied delay=0s retry=10s left=2
		2:00 3 allowed delay=0s
		2:00 denied retry=10s
	`, threeWait},
	{"a meter admits the same", `
		0:00 ×3 allowed delay=0s
		0:00 denied delay=0s retry=10s
		0:10 allowed delay=0s
	`, with(threeWait, func(l *bucket.Limit) { l.Algorithm = bucket.LeakyBucket })},
	{"a unit of a check's cost is several of the limit", `
		0:00 allowed left=7
		0:00 3 denied left=7 retry=1m0s
		0:00 2 allowed left=1
		0:00 denied left=1
		0:00 4 denied retry=never
		1:00 3 allowed left=1
	`, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Minute, Cost: 3}},
	{"two seconds between", `
		0:00 allowed left=2
		0:01 denied left=2 retry=1s
		0:01.999999999 denied retry=1ns
		0:02 allowed
		0:58 allowed left=0
		0:59 denied left=0 retry=1s
		1:00 allowed left=2
		1:01 denied retry=1s
	`, twoSecondsApart},
	{"two seconds after a denied check", `
		0:00 allowed
		0:01 denied retry=2s
		0:02 denied retry=2s
		0:04 allowed left=1
	`, with(twoSecondsApart, countDenied)},
	{"a denial blocks", `
		0:00 ×3 allowed
		0:00 read denied left=0 retry=1m0s
		0:01 denied left=0 retry=10m0s
		0:02 denied left=0 retry=9m59s
		5:00 denied left=3 retry=5m1s
		5:00 charge 1 charged
		5:00 refund 1 charged
		10:00 denied retry=1s reset=1s
		10:01 ×3 allowed
		10:01 denied left=0 retry=10m0s
		10:02 reset charged
		10:02 ×3 allowed
	`, with(threeChecks, func(l *bucket.Limit) { l.BlockFor = 10 * time.Minute })},
	{"charged when it has failed", `
		8:00:00 0 allowed left=3
		8:00:01 charge 2 charged left=1
		9:00:00 0 allowed left=1
		10:00:00 charge 2 charged left=0
		10:00:02 0 denied left=0 retry=13h59m58s
		1d+0:00:00 0 allowed left=3
	`, threeADay},
	{"a debt is paid off first", `
		0:00:00 charge 5 charged left=0 reset=40h0m0s
		0:00:00 0 denied left=0 retry=24h0m0s
		23:59:59 0 denied
		1d+0:00:00 0 allowed left=1
	`, with(threeADay, func(l *bucket.Limit) { l.Algorithm = bucket.TokenBucket })},
	{"unlimited", `
		0:00 9223372036854775807 allowed
		0:00 9223372036854775807 allowed
		0:00 read allowed
	`, bucket.Limit{Unlimited: true}},
	{"a refund is not of the window before", `
		0:10 2 allowed left=1
		1:10 1 allowed left=2
		1:20 refund 2 refunded
		1:20 read allowed left=3
		2:00 read allowed left=3
	`, threeChecks},
	{"a refund keeps the window", `
		0:10 3 allowed left=0
		0:20 refund 1 refunded
		0:20 read allowed left=1 reset=50s
		1:10 refund 1 refunded
		1:10 read allowed left=3
	`, with(threeChecks, firstHit)},
}

// TestExamples: the exact models have to agree with the examples, too.
func TestExamples(t *testing.T) {
	for _, c := range examples {
		t.Run(c.name, func(t *testing.T) { tell(t, c.story, c.limit) })
	}
}

// TestEachAlgorithm: what is the same for all.
func TestEachAlgorithm(t *testing.T) {
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			tell(t, `
				0:00 denied left=0 retry=never
				0:00 0 denied retry=never
				0:00 read denied retry=never
				23:00:00 denied left=0 retry=never
			`, with(per(c.algorithm, 0, time.Minute), func(l *bucket.Limit) { l.Soft = 1000 }))
			tell(t, `
				0:00 ×100 allowed
				0:00 ×10 soft left=0
				0:00 denied left=0
			`, with(per(c.algorithm, 100, time.Minute), func(l *bucket.Limit) { l.Soft = 10 }))
			tell(t, `
				0:00 refund 5 refunded
				0:00 7 allowed left=3
				0:00 refund 2 refunded
				0:00 read allowed left=5
				0:00 refund 100 refunded
				0:00 11 denied retry=never
				0:00 10 allowed left=0
				0:00 refund 9223372036854775807 refunded
				0:00 10 allowed left=0
				0:00 reset forgotten
				0:00 10 allowed left=0
				0:00 charge 5 charged left=0
				0:00 refund 4 refunded
				0:00 read denied left=0
				0:00 refund 2 refunded
				0:00 read allowed left=1
			`, per(c.algorithm, 10, time.Hour))
		})
	}
}

// TestSeveralLimits: the limit that decides is told, and a drained check empties what it found too little of.
func TestSeveralLimits(t *testing.T) {
	five, twenty := per(bucket.FixedWindow, 5, time.Minute), per(bucket.FixedWindow, 20, time.Hour)
	tell(t, `
		0:10 ×5 allowed by=0
		0:20 denied by=0 left=0 retry=40s
		1:10 ×5 allowed by=0
		2:10 ×5 allowed by=0
		3:10 ×4 allowed
		3:10 allowed by=0 left=0
		3:20 denied by=1 left=0 retry=56m40s
		1:00:00 read allowed by=0 left=5
	`, five, twenty)
	tell(t, `
		0:00 drain 3 allowed left=2
		0:10 drain 3 denied left=0 by=0 retry=50s
		0:20 denied retry=40s
		1:00 5 allowed left=0
		2:00 5 allowed left=0
		3:00 5 allowed left=0
		4:00 drain 5 denied left=0 by=1
		4:00 denied left=0 by=1 retry=56m0s
	`, five, twenty)
}
