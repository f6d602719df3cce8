package bucket_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

func TestHourAndMinuteTogether(t *testing.T) {
	limits := []bucket.Limit{per(bucket.FixedWindow, 500, time.Hour), per(bucket.FixedWindow, 10, time.Minute)}
	var s strings.Builder
	for minute := range 49 { // ten in each minute
		fmt.Fprintf(&s, "%d:10 ×10 allowed\n%d:20 denied by=1 left=0 retry=40s\n", minute, minute)
	}
	s.WriteString(`
		49:10 ×9 allowed by=0
		49:10 allowed left=0
		49:20 denied by=0 left=0 retry=10m40s
		50:00 denied by=0 left=0 retry=10m0s
		59:59 denied by=0 retry=1s
		1:00:00 read allowed by=1 left=10
		1:00:00 ×10 allowed by=1
		1:00:00 denied by=1
	`)
	tell(t, story(s.String()), limits...)
}

func TestTwoSecondsBetween(t *testing.T) {
	limit := per(bucket.FixedWindow, 10, time.Minute)
	limit.MinInterval = 2 * time.Second
	tell(t, `
		0:00 allowed left=9
		0:01 denied left=9 retry=1s
		0:01.999999999 denied retry=1ns
		0:02 allowed left=8
		0:04 allowed
		0:06 allowed
		0:08 allowed
		0:10 allowed
		0:12 allowed
		0:14 allowed
		0:16 allowed
		0:18 allowed left=0
		0:20 denied left=0 retry=40s
		0:59 denied retry=1s
		1:00 allowed left=9
		1:01 denied retry=1s
	`, limit)
	limit.CountDenied = true
	tell(t, `
		0:00 allowed
		0:01 denied retry=2s
		0:02 denied retry=2s
		0:04 allowed left=8
	`, limit)
}

func TestSoftTenPercent(t *testing.T) {
	limit := per(bucket.FixedWindow, 100, time.Minute)
	limit.Soft = 10
	tell(t, `
		0:01 ×99 allowed
		0:02 read allowed left=1
		0:02 allowed left=0
		0:03 read soft left=0
		0:03 ×9 soft left=0
		0:04 soft left=0
		0:05 denied left=0 retry=55s
		1:00 allowed left=99
	`, limit)
	for _, c := range algorithms { // the 110th is admitted and marked, the 111th denied
		limit.Algorithm = c.algorithm
		tell(t, `
			0:00 ×100 allowed
			0:00 ×10 soft left=0
			0:00 denied left=0
		`, limit)
	}
}

func TestPostsFriendsAndLikes(t *testing.T) {
	tell(t, `
		9:00:00 allowed
		9:00:00.5 denied retry=500ms
		9:00:01 allowed
	`, per(bucket.SlidingLog, 1, time.Second))
	friends := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 150, Align: bucket.AlignCalendar, Unit: bucket.Day}
	tell(t, `
		9:00:00 ×149 allowed
		22:00:00 allowed left=0 reset=2h0m0s
		22:00:00 denied retry=2h0m0s
		1d+0:00:00 allowed left=149
	`, friends)
	tell(t, `
		9:00:00 ×5 allowed
		9:00:00.1 denied left=0 retry=900ms
		9:00:01 ×5 allowed
		9:00:01.9 denied retry=100ms
	`, per(bucket.SlidingLog, 5, time.Second))

	// One user has a counter for each of the three: a like costs no post.
	table, user := smallTable(t), uint64(42)
	for action, limit := range []bucket.Limit{
		per(bucket.SlidingLog, 1, time.Second), friends, per(bucket.SlidingLog, 5, time.Second),
	} {
		r := &bucket.Request{Key: bucket.Key{Hi: user, Lo: uint64(action)}, Limits: mustLimits(t, limit), Cost: 1}
		for n := range limit.Count + 1 {
			if d := table.Do(day, r); d.Allowed != (n < limit.Count) {
				t.Errorf("action %d, check %d: %+v", action, n+1, d)
			}
		}
	}
}

func TestTenThousandASecondForEverybody(t *testing.T) {
	for _, c := range algorithms {
		l := per(c.algorithm, 10_000, time.Second)
		if c.algorithm == bucket.SlidingLog {
			l.LogEntries = 16_384
		}
		tell(t, `
			8:00:00 ×10000 allowed
			8:00:00 ×100 denied left=0
		`, l)
	}
}

func TestFreeAndPaidTier(t *testing.T) {
	table := smallTable(t)
	free, paid := mustLimits(t, per(bucket.TokenBucket, 10, time.Minute)), mustLimits(t, per(bucket.TokenBucket, 1000, time.Minute))
	for _, c := range []struct {
		user, tier string
		limits     *bucket.Limits
		admitted   int
	}{
		{"ann", "free", free, 10}, {"bob", "paid", paid, 1000}, {"cyd", "free", free, 10},
	} {
		r := &bucket.Request{Key: bucket.Key{Hi: uint64(c.user[0]), Lo: 1}, Limits: c.limits, Cost: 1}
		if got := drain(table, day, r); got != c.admitted {
			t.Errorf("%s (%s) got %d, want %d", c.user, c.tier, got, c.admitted)
		}
	}
	// ann buys the paid tier: what she spent stays spent.
	r := &bucket.Request{Key: bucket.Key{Hi: 'a', Lo: 1}, Limits: paid, Cost: 1}
	if got := drain(table, day, r); got != 990 {
		t.Errorf("after the upgrade ann got %d more, want 990", got)
	}
}

// drain repeats r at one moment until it is denied and returns how often it was not.
func drain(table *bucket.Table, now int64, r *bucket.Request) int {
	n := 0
	for table.Do(now, r).Allowed && n < 100_000 {
		n++
	}
	return n
}

func TestTwentyAccountsAnAddressADay(t *testing.T) {
	tell(t, `
		10:00:00 ×12 allowed
		23:59:59 ×8 allowed
		23:59:59 denied retry=1s
		1d+0:00:00 ×20 allowed
		1d+0:00:01 denied retry=23h59m59s
	`, per(bucket.FixedWindow, 20, 24*time.Hour))
}

func TestFiveRewardsADeviceAWeek(t *testing.T) {
	limit := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5, Align: bucket.AlignCalendar, Unit: bucket.Week}
	tell(t, `
		0d+8:00:00 ×3 allowed
		6d+23:00:00 ×2 allowed reset=1h0m0s
		6d+23:00:00 denied left=0 retry=1h0m0s
		7d+0:00:00 ×5 allowed
		7d+0:00:00 denied retry=168h0m0s
	`, limit)
}

// Only a *failed* payment counts, and that is known only afterwards: the shop
// reads before it tries, with a check of cost 0, and charges when it failed.
func TestThreeFailedPaymentsADay(t *testing.T) {
	limit := per(bucket.FixedWindow, 3, 24*time.Hour)
	tell(t, `
		8:00:00 0 allowed left=3
		8:00:01 charge 1 charged left=2
		8:01:00 0 allowed left=2
		8:01:01 charge 1 charged left=1
		9:00:00 0 allowed left=1
		9:30:00 0 allowed left=1
		10:00:00 0 allowed left=1
		10:00:01 charge 1 charged left=0
		10:00:02 0 denied left=0 retry=13h59m58s
		10:00:02 charge 1 charged left=0
		23:59:59 0 denied
		1d+0:00:00 0 allowed left=3
	`, limit)
	limit.Algorithm = bucket.SlidingLog
	tell(t, `
		8:00:00 charge 1 charged
		9:00:00 charge 1 charged
		10:00:00 0 allowed left=1
		10:00:00 charge 1 charged
		10:00:00 0 denied retry=22h0m0s
		1d+7:59:59 0 denied retry=1s
		1d+8:00:00 0 allowed left=1
	`, limit)
	limit.Algorithm = bucket.TokenBucket // a debt is paid off before anything is admitted
	tell(t, `
		0:00:00 charge 5 charged left=0 reset=40h0m0s
		0:00:00 0 denied left=0 retry=24h0m0s
		23:59:59 0 denied
		1d+0:00:00 0 allowed left=1
	`, limit)
}

// A request must pass its address's limit and its user's. They are two keys, so
// the one that was charged is given back when the other denies.
func TestAddressAndUserBothOrNeither(t *testing.T) {
	table := smallTable(t)
	address := &bucket.Request{Key: bucket.Key{Hi: 1, Lo: 10}, Limits: mustLimits(t, per(bucket.FixedWindow, 5, time.Minute)), Cost: 1}
	user := func(id uint64) *bucket.Request {
		return &bucket.Request{Key: bucket.Key{Hi: 2, Lo: id}, Limits: mustLimits(t, per(bucket.TokenBucket, 2, time.Minute)), Cost: 1}
	}
	for i, c := range []struct {
		at                      string
		user                    uint64
		want                    bool
		addressLeft, userRemain int64
	}{
		{"0:00", 1, true, 4, 1},
		{"0:01", 1, true, 3, 0},
		{"0:02", 1, false, 3, 0}, // the user denies: the address keeps its 3
		{"0:03", 2, true, 2, 1},
		{"0:04", 3, true, 1, 1},
		{"0:05", 4, true, 0, 1},
		{"0:06", 5, false, 0, 2}, // the address denies: the user keeps both
		{"1:00", 5, true, 4, 1},
	} {
		now := clock(t, c.at)
		u := user(c.user)
		if got := both(t, table, now, address, u); got != c.want {
			t.Errorf("row %d: admitted %v, want %v", i, got, c.want)
		}
		if got := left(table, now, address); got != c.addressLeft {
			t.Errorf("row %d: the address has %d left, want %d", i, got, c.addressLeft)
		}
		if got := left(table, now, u); got != c.userRemain {
			t.Errorf("row %d: the user has %d left, want %d", i, got, c.userRemain)
		}
	}
}

// both charges both requests or none.
func both(t *testing.T, table *bucket.Table, now int64, requests ...*bucket.Request) bool {
	t.Helper()
	receipts := make([]bucket.Receipt, len(requests))
	var held []*bucket.Receipt
	admitted := true
	for i, r := range requests {
		d, charged := table.DoHeld(now, r, &receipts[i])
		if charged != d.Allowed {
			t.Errorf("allowed %v, charged %v", d.Allowed, charged)
		}
		if charged {
			held = append(held, &receipts[i])
		}
		admitted = admitted && d.Allowed
	}
	if !admitted {
		for _, rc := range held {
			table.GiveBack(now, rc)
		}
	}
	return admitted
}

// left reads what remains on r's key.
func left(table *bucket.Table, now int64, r *bucket.Request) int64 {
	read := *r
	read.Verb = bucket.Read
	return table.Do(now, &read).Remaining
}
