package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

func TestTokenBucketOfThree(t *testing.T) {
	steps := per(bucket.TokenBucket, 3, time.Minute)
	steps.Refill = bucket.RefillInterval
	fromFirst := steps
	fromFirst.Align = bucket.AlignFirstHit

	t.Run("steps at whole minutes", func(t *testing.T) {
		tell(t, `
			0:01 allowed left=2 reset=59s
			0:15 ×2 allowed
			0:58 denied left=0 retry=2s reset=2s
			0:59.999999999 denied retry=1ns
			1:00 allowed left=2
		`, steps)
	})
	t.Run("steps from the first check", func(t *testing.T) {
		tell(t, `
			0:01 allowed left=2 reset=1m0s
			0:15 ×2 allowed
			0:58 denied retry=3s
			1:00 denied retry=1s
			1:01 allowed left=2
		`, fromFirst)
	})
	t.Run("continuous", func(t *testing.T) {
		tell(t, `
			0:01 allowed left=2 reset=20s
			0:15 ×2 allowed
			0:58 allowed
		`, per(bucket.TokenBucket, 3, time.Minute))
	})
}

func TestFixedWindowLetsTwoBurstsMeet(t *testing.T) {
	tell(t, `
		0:55 ×5 allowed
		0:59 denied left=0 retry=1s reset=1s
		1:00 ×5 allowed
		1:01 denied retry=59s
	`, per(bucket.FixedWindow, 5, time.Minute))
	for _, a := range []bucket.Algorithm{bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow} {
		tell(t, `
			0:55 ×5 allowed
			0:59 denied left=0
			1:00 ×5 denied left=0
		`, per(a, 5, time.Minute))
	}
}

func TestFixedWindowOfThree(t *testing.T) {
	epoch := per(bucket.FixedWindow, 3, time.Minute)
	firstHit, calendar := epoch, epoch
	firstHit.Align = bucket.AlignFirstHit
	calendar.Align, calendar.Unit, calendar.Period = bucket.AlignCalendar, bucket.Minute, 0
	const start story = `
		03:00:00 allowed left=2
		03:00:10 allowed left=1
		03:01:05 allowed left=2
		03:01:20 allowed left=1
		03:01:45 allowed left=0
		03:01:50 denied left=0
	`
	t.Run("aligned to the epoch", func(t *testing.T) {
		tell(t, start+"03:02:01 allowed left=2 reset=59s", epoch)
	})
	t.Run("aligned to the calendar", func(t *testing.T) {
		tell(t, start+"03:02:01 allowed left=2 reset=59s", calendar)
	})
	t.Run("from the first check", func(t *testing.T) {
		tell(t, start+`
			03:02:01 denied retry=4s
			03:02:05 allowed left=2 reset=1m0s
		`, firstHit)
	})
}

func TestSlidingLogOfTwo(t *testing.T) {
	without := per(bucket.SlidingLog, 2, time.Minute)
	with := without
	with.CountDenied = true
	const first story = `
		0:01 allowed left=1
		0:15 allowed left=0
		0:55 denied
		1:27 allowed
	`
	const second story = `
		1:00:01 allowed left=1
		1:00:30 allowed left=0
		1:00:50 denied left=0
		1:01:40 allowed
	`
	t.Run("denied do not count", func(t *testing.T) {
		tell(t, first, without)
		tell(t, second+"1:01:45 allowed left=0", without)
	})
	t.Run("denied count", func(t *testing.T) {
		tell(t, first, with)
		tell(t, second+"1:01:45 denied", with)
	})
	t.Run("retry after", func(t *testing.T) {
		tell(t, `
			0:01 allowed
			0:15 allowed reset=1m0s
			0:55 denied retry=6s reset=20s
			0:55 2 denied retry=20s
			0:55 3 denied retry=never
		`, without)
	})
}

func TestSlidingCounterWeighs(t *testing.T) {
	t.Run("7 a minute", func(t *testing.T) {
		tell(t, `
			0:30 5 allowed left=2
			1:01 3 allowed
			1:18 read allowed left=1
			1:18 allowed left=0
			1:18 denied
		`, per(bucket.SlidingCounter, 7, time.Minute))
	})
	t.Run("80 before, 10 now, at 15 s", func(t *testing.T) {
		tell(t, `
			0:30 80 allowed left=20
			1:15 10 allowed left=30
		`, per(bucket.SlidingCounter, 100, time.Minute))
	})
	t.Run("80 before, 50 now, at 45 s", func(t *testing.T) {
		tell(t, `
			0:30 80 allowed left=20
			1:45 50 allowed left=30
		`, per(bucket.SlidingCounter, 100, time.Minute))
	})
}

// The meter and the queue admit the same; the queue says when to act.
func TestLeakyQueueSpacesChecks(t *testing.T) {
	tell(t, `
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
	`, bucket.Limit{Algorithm: bucket.LeakyQueue, Count: 6, Period: time.Minute, Burst: 3})
	tell(t, `
		0:00 ×3 allowed delay=0s
		0:00 denied delay=0s retry=10s
		0:10 allowed delay=0s
	`, bucket.Limit{Algorithm: bucket.LeakyBucket, Count: 6, Period: time.Minute, Burst: 3})
}

// What a check drains is what it found too little of.
func TestDrainedLimits(t *testing.T) {
	tell(t, `
		0:00 drain 3 allowed left=2
		0:10 drain 3 denied left=0 by=0 retry=50s
		0:20 denied retry=40s
		1:00 5 allowed left=0
		2:00 5 allowed left=0
		3:00 5 allowed left=0
		4:00 drain 5 denied left=0 by=1
		4:00 denied left=0 by=1 retry=56m0s
	`, per(bucket.FixedWindow, 5, time.Minute), per(bucket.FixedWindow, 20, time.Hour))
}

func TestBlockAndUnlimited(t *testing.T) {
	for _, c := range algorithms {
		tell(t, `
			0:00 denied left=0 retry=never
			0:00 0 denied retry=never
			0:00 read denied retry=never
			23:00:00 denied left=0 retry=never
		`, per(c.algorithm, 0, time.Minute))
	}
	tell(t, `
		0:00 9223372036854775807 allowed
		0:00 9223372036854775807 allowed
		0:00 read allowed
	`, bucket.Limit{Unlimited: true})
}

// One unit of a check's cost can be several units of a limit.
func TestUnitCost(t *testing.T) {
	limit := per(bucket.FixedWindow, 10, time.Minute)
	limit.Cost = 3
	tell(t, `
		0:00 allowed left=7
		0:00 3 denied left=7 retry=1m0s
		0:00 2 allowed left=1
		0:00 denied left=1
		0:00 4 denied retry=never
		1:00 3 allowed left=1
	`, limit)
}
