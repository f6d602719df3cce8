package bucket_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// reservationStep is one call about a reservation at a time, and what is left for checks after it.
type reservationStep struct {
	at    string
	verb  bucket.Verb
	id    uint64
	units int64
	want  bucket.Reserved // but for Expires
	left  int64
}

// TestReservationStories: what is reserved counts until it is settled, and then what was needed does. Reservations are for 10 s.
func TestReservationStories(t *testing.T) { reservationStories(t, "") }

// TestTrap02: a reservation that is not settled ends at its own deadline, though others of the counter are extended and checks come.
func TestTrap02(t *testing.T) { reservationStories(t, "trap 2") }

// TestTrap08: units that are reserved count in every window until they are settled, and what was needed in the window of the
// settlement.
func TestTrap08(t *testing.T) { reservationStories(t, "trap 8") }

// TestTrap09: a settlement after the deadline is late, and charges as a debt what was not charged then.
func TestTrap09(t *testing.T) { reservationStories(t, "trap 9") }

// TestTrap11: callers that reserve and callers that only check spend one counter.
func TestTrap11(t *testing.T) { reservationStories(t, "trap 11") }

// TestTrap17: no call gives back more than was reserved, or what was not.
func TestTrap17(t *testing.T) { reservationStories(t, "trap 17") }

// reservationStories tells the stories of a trap, or those of none.
func reservationStories(t *testing.T, trap string) {
	const (
		check, reserve, extend, spend, settle = bucket.Check, bucket.Reserve, bucket.Extend, bucket.Spend, bucket.Settle
		read, reset, refund                   = bucket.Read, bucket.Reset, bucket.Refund
	)
	has := func(units int64) bucket.Reserved { return bucket.Reserved{Units: units} }
	settled := func(charged, returned int64) bucket.Reserved {
		return bucket.Reserved{Units: charged, Returned: returned}
	}
	none := bucket.Reserved{}
	unknown := bucket.Reserved{Unknown: true}
	window := []bucket.Limit{per(bucket.FixedWindow, 10, time.Minute)}
	three := bucket.Limit{Algorithm: bucket.Concurrency, Count: 3}
	for _, c := range []struct {
		name    string
		limits  []bucket.Limit
		release bool
		steps   []reservationStep
	}{
		{"trap 11: less than was reserved", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:11", check, 0, 3, none, 1}, {"0:12", settle, 1, 2, settled(2, 4), 5}, {"1:00", read, 0, 0, none, 10},
		}},
		{"trap 17: nothing of it was needed", []bucket.Limit{per(bucket.TokenBucket, 10, 100*time.Second)}, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:12", settle, 1, 0, settled(0, 6), 10},
		}},
		{"reserved twice", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:11", reserve, 1, 6, bucket.Reserved{Units: 6, Repeated: true}, 4}, {"0:12", reserve, 2, 5, none, 4},
		}},
		{"trap 9: not settled, and charged", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:20", read, 0, 0, none, 4}, {"0:21", settle, 1, 2, bucket.Reserved{Units: 6, Late: true}, 4},
			{"0:22", settle, 1, 2, bucket.Reserved{Units: 6, Repeated: true}, 4},
		}},
		{"trap 9: late, and more", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:20", settle, 1, 9, bucket.Reserved{Units: 9, Late: true}, 1},
		}},
		{"trap 9: not settled, and released", window, true, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:19.999999999", read, 0, 0, none, 4}, {"0:20", read, 0, 0, none, 10},
			{"0:21", settle, 1, 8, bucket.Reserved{Units: 8, Late: true}, 2}, {"0:22", settle, 1, 1, bucket.Reserved{Units: 8, Repeated: true}, 2},
		}},
		{"trap 8: in the window after it", window, false, []reservationStep{
			{"0:55", reserve, 1, 6, has(6), 4}, {"0:56", check, 0, 4, none, 0}, {"1:01", read, 0, 0, none, 4}, {"1:04", settle, 1, 3, settled(3, 3), 7},
		}},
		{"trap 2: others are extended", window, true, []reservationStep{
			{"0:10", reserve, 1, 4, has(4), 6}, {"0:11", reserve, 2, 3, has(3), 3}, {"0:19", extend, 2, 0, has(3), 3}, {"0:19", check, 0, 1, none, 2},
			{"0:20", read, 0, 0, none, 6}, {"0:28", extend, 2, 0, has(3), 6}, {"0:37", settle, 2, 3, settled(3, 0), 6},
		}},
		{"trap 8: of a sliding window", []bucket.Limit{per(bucket.SlidingCounter, 10, time.Minute)}, false, []reservationStep{
			{"0:55", reserve, 1, 6, has(6), 4}, {"1:04", read, 0, 0, none, 4}, {"1:04", settle, 1, 3, settled(3, 3), 7},
		}},
		{"trap 11: both ask for the last units", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:10", check, 0, 5, none, 4}, {"0:10", check, 0, 4, none, 0}, {"0:11", reserve, 2, 1, none, 0},
			{"0:12", settle, 1, 1, settled(1, 5), 5}, {"0:12", reserve, 3, 5, has(5), 0}, {"0:12", check, 0, 1, none, 0},
		}},
		{"trap 17: less than nothing", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:11", extend, 1, -9, has(0), 10}, {"0:12", extend, 1, -9, has(0), 10}, {"0:13", spend, 1, -5, has(0), 10},
			{"0:14", settle, 1, -5, settled(0, 0), 10}, {"0:15", refund, 0, 9, none, 10}, {"0:16", check, 0, 10, none, 0},
		}},
		{"a reset keeps it", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:11", check, 0, 3, none, 1}, {"0:12", reset, 0, 0, none, 4}, {"0:13", settle, 1, 1, settled(1, 5), 9},
		}},
		{"trap 17: unknown", window, false, []reservationStep{
			{"0:10", settle, 1, 6, unknown, 10}, {"0:10", check, 0, 1, none, 9}, {"0:11", spend, 1, 6, unknown, 9}, {"0:11", extend, 7, 1, unknown, 9},
		}},
		{"slots", []bucket.Limit{three}, false, []reservationStep{
			{"0:00", reserve, 1, 1, has(1), 2}, {"0:00", reserve, 2, 2, has(2), 0}, {"0:01", reserve, 3, 1, none, 0}, {"0:01", settle, 2, 0, settled(0, 2), 2},
			{"0:02", settle, 2, 0, bucket.Reserved{Repeated: true}, 2}, {"0:02", reserve, 3, 1, has(1), 1}, {"0:05", extend, 3, 0, has(1), 1},
			{"0:09.999999999", read, 0, 0, none, 1}, {"0:10", read, 0, 0, none, 2}, {"0:14.999999999", read, 0, 0, none, 2},
			{"0:15", read, 0, 0, none, 3}, {"0:16", settle, 3, 0, bucket.Reserved{Late: true}, 3},
		}},
		{"slots beside a window, which is charged when they are taken", []bucket.Limit{three, per(bucket.FixedWindow, 5, time.Minute)}, false, []reservationStep{
			{"0:00", reserve, 1, 2, has(2), 1}, {"0:01", settle, 1, 2, has(2), 3}, {"0:02", reserve, 2, 3, has(3), 0}, {"0:03", settle, 2, 0, settled(0, 3), 0},
			{"0:04", reserve, 3, 1, none, 0},
		}},
		{"forgotten", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:12", settle, 1, 2, settled(2, 4), 8},
			{"10:11.999999999", settle, 1, 2, bucket.Reserved{Units: 2, Repeated: true}, 10}, {"10:12", settle, 1, 2, unknown, 10},
			{"10:12", reset, 0, 0, none, 10}, {"10:12", settle, 1, 2, unknown, 10}, {"10:13", reserve, 1, 6, has(6), 4},
		}},
		{"forgotten, and reserved anew", window, false, []reservationStep{
			{"0:10", reserve, 1, 6, has(6), 4}, {"0:12", settle, 1, 2, settled(2, 4), 8}, {"10:12", reserve, 1, 5, has(5), 5},
			{"10:13", settle, 1, 4, settled(4, 1), 6},
		}},
	} {
		if before, _, _ := strings.Cut(c.name, ":"); before != trap && (trap != "" || strings.HasPrefix(c.name, "trap")) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			// A second table gets all changes, as a replica does, and has to decide alike at every step.
			table, replica, limits := smallTable(t), smallTable(t), mustLimits(t, c.limits...)
			table.Record(0, bucket.RecordAll, 0)
			replica.Seal(0)
			for i, s := range c.steps {
				now := clock(t, s.at)
				if s.verb == reset {
					table.Sweep(now, 0)
				}
				r := &bucket.Request{Limits: limits, Cost: s.units, Verb: s.verb}
				if s.verb >= reserve {
					r.Reservation = &bucket.Reservation{ID: s.id, Least: s.units, MaxOpen: 100, For: 10 * time.Second, Release: c.release}
				}
				d, _, v := table.Try(now, r, nil)
				if v != bucket.Decided {
					t.Fatalf("step %d: verdict %d", i, v)
				}
				if r.Reservation != nil {
					got := r.Reservation.Reserved
					if open := !got.Late && !got.Unknown && s.verb != settle && got.Units > 0; open != (got.Expires > 0) && (open || s.verb != spend && s.verb != extend) {
						t.Errorf("step %d: it expires after %v", i, got.Expires)
					}
					if got.Expires = 0; got != s.want {
						t.Errorf("step %d, %v at %s: %+v, want %+v", i, s.verb, s.at, got, s.want)
					}
					if s.verb == reserve && d.Allowed != (s.want.Units > 0) {
						t.Errorf("step %d, %v at %s: %+v", i, s.verb, s.at, d)
					}
					if !s.want.Unknown && d.Remaining != s.left {
						t.Errorf("step %d, %v at %s: %+v, want %d left", i, s.verb, s.at, d, s.left)
					}
				}
				if got := left(table, now, &bucket.Request{Limits: limits}); got != s.left {
					t.Errorf("step %d, %v at %s: %d left, want %d", i, s.verb, s.at, got, s.left)
				}
				keys, seq, _ := table.Drain(0, nil)
				handKeys(t, table, replica, keys, now, now, false)
				replica.Open(0, seq)
				if got := left(replica, now, &bucket.Request{Limits: limits}); got != s.left {
					t.Errorf("step %d, %v at %s: the replica has %d left, want %d", i, s.verb, s.at, got, s.left)
				}
				replica.Seal(0)
			}
		})
	}
}

// attemptStep is one request of an attempt, and what is left after it.
type attemptStep struct {
	verb    bucket.Verb
	attempt uint64
	left    int64
}

// TestReserveAttempts: an attempt that has failed for another key cancels what it has got, and what it has not got yet, but nothing
// that another attempt has got.
func TestReserveAttempts(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []attemptStep
		atEnd int64 // left after the deadline
	}{
		{"canceled", []attemptStep{{bucket.Reserve, 1, 4}, {bucket.Cancel, 1, 10}, {bucket.Reserve, 1, 10}, {bucket.Reserve, 2, 4}}, 4},
		{"canceled before it arrives", []attemptStep{{bucket.Cancel, 1, 10}, {bucket.Reserve, 1, 10}, {bucket.Reserve, 2, 4}, {bucket.Cancel, 2, 10}}, 10},
		{"another attempt has it", []attemptStep{{bucket.Reserve, 1, 4}, {bucket.Reserve, 2, 4}, {bucket.Cancel, 1, 4}, {bucket.Cancel, 2, 4}}, 4},
		{"and was alone", []attemptStep{{bucket.Reserve, 1, 4}, {bucket.Cancel, 2, 4}}, 4},
		{"and settles it", []attemptStep{{bucket.Reserve, 1, 4}, {bucket.Reserve, 2, 4}, {bucket.Cancel, 1, 4}, {bucket.Settle, 0, 9}, {bucket.Cancel, 2, 9}, {bucket.Reserve, 3, 9}}, 9},
	} {
		table, limits := smallTable(t), mustLimits(t, per(bucket.FixedWindow, 10, time.Hour))
		for i, s := range c.steps {
			r := &bucket.Request{
				Limits: limits, Cost: 6, Verb: s.verb, Once: s.attempt, Reservation: &bucket.Reservation{ID: 9, Least: 6, MaxOpen: 9, For: time.Minute},
			}
			if s.verb == bucket.Settle && s.attempt == 0 {
				r.Cost = 1
			}
			table.Do(day, r)
			if got := left(table, day, &bucket.Request{Limits: limits}); got != s.left {
				t.Errorf("%s, step %d: %d left, want %d; %+v", c.name, i, got, s.left, r.Reservation.Reserved)
			}
			copied := smallTable(t)
			hand(t, table, copied, day, day, false)
			table = copied
		}
		if got := left(table, day+int64(time.Minute), &bucket.Request{Limits: limits}); got != c.atEnd {
			t.Errorf("%s: %d left in the end, want %d", c.name, got, c.atEnd)
		}
	}
}

// TestFreshReservation: an ID that another attempt has got by chance gives nothing, and the other one keeps what it has.
func TestFreshReservation(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, per(bucket.FixedWindow, 10, time.Hour))
	reserve := func(attempt uint64) bucket.Reserved {
		x := bucket.Reservation{ID: 9, Least: 4, MaxOpen: 9, For: time.Minute, Fresh: true}
		table.Do(day, &bucket.Request{Limits: limits, Cost: 4, Verb: bucket.Reserve, Once: attempt, Reservation: &x})
		return x.Reserved
	}
	if got := reserve(1); got.Units != 4 || got.Unknown {
		t.Errorf("%+v", got)
	}
	if got := reserve(1); got.Units != 4 || !got.Repeated {
		t.Errorf("the same attempt: %+v", got)
	}
	if got := reserve(2); !got.Unknown {
		t.Errorf("another attempt: %+v", got)
	}
	if got := left(table, day, &bucket.Request{Limits: limits}); got != 6 {
		t.Errorf("%d left", got)
	}
}

// TestReservationsWhenFull: a caller that reserves of ever new keys is denied when the table is full, and others keep what they have.
func TestReservationsWhenFull(t *testing.T) {
	const room = 2000 // a reservation of a new key takes two
	table := mustTable(t, bucket.Config{Shards: 1, MaxEntries: room, WhenFull: bucket.DenyNew})
	limits, made := mustLimits(t, per(bucket.FixedWindow, 10, time.Hour)), 0
	reserve := func(i int) *bucket.Request {
		return &bucket.Request{
			Key: bucket.Key{Hi: uint64(i)}, Limits: limits, Cost: 4, Verb: bucket.Reserve,
			Reservation: &bucket.Reservation{ID: uint64(i) + 1, Least: 4, MaxOpen: 9, For: time.Minute},
		}
	}
	for i := range room {
		if d := table.Do(day, reserve(i)); d.Allowed {
			made++
		} else if d.RetryAfter <= 0 || d.RetryAfter == bucket.Never {
			t.Fatalf("%d: %+v", i, d)
		}
	}
	if s := table.Stats(); made < room/2-1 || made > room/2 || s.EvictedLive > 0 || s.Entries > room {
		t.Errorf("%d were made: %+v", made, s)
	}
	for i := range made {
		r := reserve(i)
		if r.Verb, r.Cost = bucket.Settle, 3; !table.Do(day, r).Allowed || r.Reservation.Reserved.Returned != 1 {
			t.Fatalf("%d: %+v", i, r.Reservation.Reserved)
		}
	}
}

// TestTrap12: what is held under a limit that is lowered stays held. Nothing is admitted until enough is settled, and no unit is lost.
func TestTrap12(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.SlidingLog, bucket.SlidingCounter, bucket.TokenBucket} {
		table := smallTable(t)
		high, low := mustLimits(t, per(algorithm, 20, 10000*time.Hour)), mustLimits(t, per(algorithm, 5, 10000*time.Hour))
		ask := func(limits *bucket.Limits, verb bucket.Verb, id uint64, units int64) bool {
			return table.Do(day, &bucket.Request{
				Limits: limits, Cost: units, Verb: verb, Reservation: &bucket.Reservation{ID: id, Least: max(1, units), MaxOpen: 9, For: time.Minute},
			}).Allowed
		}
		check := func(cost int64) bool { return table.Do(day, &bucket.Request{Limits: low, Cost: cost}).Allowed }
		if !ask(high, bucket.Reserve, 1, 12) || !ask(high, bucket.Reserve, 2, 3) {
			t.Fatalf("%s: not reserved", algorithm)
		}
		if check(1) || ask(low, bucket.Reserve, 3, 1) || ask(low, bucket.Extend, 2, 1) {
			t.Errorf("%s: admitted beside 15 units that are held of 5", algorithm)
		}
		if !ask(low, bucket.Settle, 1, 1) || !check(1) || check(1) {
			t.Errorf("%s: 3 are held and 1 is spent of 5: want one more", algorithm)
		}
		if !ask(low, bucket.Settle, 2, 0) || !check(3) || check(1) {
			t.Errorf("%s: 2 are spent of 5: want three more", algorithm)
		}
	}
}

// TestHeldCaller: who has a grant is kept while it is changed and handed off, beside all that is kept with it.
func TestHeldCaller(t *testing.T) {
	table, to := smallTable(t), smallTable(t)
	limits := mustLimits(t, per(bucket.FixedWindow, 100, time.Minute))
	const most = 1<<bucket.CallerBits - 1
	want := map[uint64]uint32{1: 0, 2: 1, 3: 1 << 10, 4: 1 << 11, 5: most}
	for id, caller := range want {
		x := &bucket.Reservation{ID: id, Least: 1, MaxOpen: 10, For: 20 * time.Second, Release: id%2 == 0}
		once := uint64(caller)<<(64-bucket.CallerBits) | 7
		for _, verb := range []bucket.Verb{bucket.Reserve, bucket.Reserve, bucket.Extend, bucket.Spend} {
			table.Do(day, &bucket.Request{Limits: limits, Verb: verb, Cost: 3, Once: once, Reservation: x})
			once++
		}
	}
	hand(t, table, to, day, day, false)
	for _, x := range []*bucket.Table{table, to} {
		list, _, _ := x.Held(day, bucket.Key{}, 10)
		if len(list) != len(want) {
			t.Fatalf("held: %+v", list)
		}
		for _, h := range list {
			if h.Caller != want[h.ID] || h.Use != bucket.ForReservation || h.Units != 3 || h.Expires != 20*time.Second {
				t.Errorf("%+v; want caller %d", h, want[h.ID])
			}
		}
	}
}

// TestSettlementDeniesForAWhile: what a settlement charges beyond the limits makes a bucket deny
// for the time of the request, or for that of a full bucket, and no longer.
func TestSettlementDeniesForAWhile(t *testing.T) {
	tokens := per(bucket.TokenBucket, 10, time.Minute)
	steps := with(tokens, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval })
	twice := with(tokens, func(l *bucket.Limit) { l.Cost = 2 })
	for _, c := range []struct {
		name            string
		limits          []bucket.Limit
		longest         time.Duration
		actual, charged int64
		denied          time.Duration
	}{
		{"tokens for 10 minutes", []bucket.Limit{tokens}, 10 * time.Minute, 1 << 62, 110, 10*time.Minute + 6*time.Second},
		{"a full bucket", []bucket.Limit{per(bucket.TokenBucket, 10, time.Hour)}, time.Minute, 1 << 62, 20, time.Hour + 6*time.Minute},
		{"within the bound", []bucket.Limit{tokens}, 10 * time.Minute, 70, 70, 6*time.Minute + 6*time.Second},
		{"cost of 2", []bucket.Limit{twice}, 10 * time.Minute, 1 << 62, 55, 10*time.Minute + 12*time.Second},
		{"refill in steps", []bucket.Limit{steps}, 10 * time.Minute, 1 << 62, 110, 11 * time.Minute},
		{"a leaky bucket", []bucket.Limit{per(bucket.LeakyBucket, 10, time.Minute)}, 10 * time.Minute, 1 << 62, 110, 10*time.Minute + 6*time.Second},
		{"a window", []bucket.Limit{per(bucket.FixedWindow, 10, time.Minute)}, 10 * time.Minute, 1 << 62, 1 << 62, time.Minute},
		{"a weighted window", []bucket.Limit{per(bucket.SlidingCounter, 10, time.Minute)}, 10 * time.Minute, 1 << 62, 1 << 62, 2 * time.Minute},
		{"beside a window", []bucket.Limit{tokens, per(bucket.FixedWindow, 50, time.Hour)}, time.Minute, 40, 40, time.Minute + 6*time.Second},
		{"no bound", []bucket.Limit{tokens}, 0, 1000, 1000, 99*time.Minute + 6*time.Second},
	} {
		table, limits, now := smallTable(t), mustLimits(t, c.limits...), int64(1000*time.Hour)
		do := func(verb bucket.Verb, cost int64, x bucket.Reservation) (bucket.Decision, bucket.Reserved) {
			x.ID = 7
			q := bucket.Request{Limits: limits, Verb: verb, Cost: cost}
			if verb >= bucket.Reserve {
				q.Reservation = &x
			}
			d := table.Do(now, &q)
			return d, x.Reserved
		}
		if _, x := do(bucket.Reserve, 4, bucket.Reservation{Least: 4, MaxOpen: 9, For: 10 * time.Second}); x.Units != 4 {
			t.Fatalf("%s: %+v", c.name, x)
		}
		if _, x := do(bucket.Settle, c.actual, bucket.Reservation{For: c.longest}); x.Units != c.charged {
			t.Errorf("%s: %d were charged, want %d", c.name, x.Units, c.charged)
		}
		if _, x := do(bucket.Settle, 1, bucket.Reservation{For: c.longest}); x.Units != c.charged || !x.Repeated {
			t.Errorf("%s: settled again: %+v", c.name, x)
		}
		if d, _ := do(bucket.Check, 1, bucket.Reservation{}); d.Allowed || d.RetryAfter > c.denied || d.RetryAfter < c.denied-13*time.Second {
			t.Errorf("%s: %+v, want a denial for %v", c.name, d, c.denied)
		}
	}
}

// TestLeaseIsChargedItsUnits: a leaseholder can have spent what was leased, and no more.
func TestLeaseIsChargedItsUnits(t *testing.T) {
	table, limits, now := smallTable(t), mustLimits(t, per(bucket.TokenBucket, 100, time.Minute)), int64(1000*time.Hour)
	x := &bucket.Reservation{ID: 7, Least: 1, MaxOpen: 9, For: time.Second, Lease: true}
	table.Do(now, &bucket.Request{Limits: limits, Verb: bucket.Reserve, Cost: 20, Reservation: x})
	if x.Reserved.Units != 12 {
		t.Fatalf("%+v", x.Reserved)
	}
	end := &bucket.Reservation{ID: 7, For: time.Second, Lease: true}
	d := table.Do(now, &bucket.Request{Verb: bucket.Settle, Cost: 1 << 62, Reservation: end})
	if end.Reserved.Units != 12 || d.Remaining != 88 {
		t.Errorf("%+v, %+v", end.Reserved, d)
	}
}
