package bucket_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// reservation is one as its caller knows it.
type reservation struct {
	id, units  uint64
	end        int64
	release    bool
	ended      bool
	charged    int64 // when it ended
	settled    bool
	remembered int64 // until when the outcome is
}

// reserving plays checks and reservations of one key. The account gets what is charged when it is charged; what is reserved
// is beside it.
type reserving struct {
	t       *rapid.T
	owner   *bucket.Table
	replica *bucket.Table // has all changes
	account *account
	now     int64
	list    []*reservation
	next    uint64
}

const settleWindow = 10 * int64(time.Minute)

func (h *reserving) held() (sum int64) {
	for _, x := range h.list {
		if !x.ended {
			sum += int64(x.units)
		}
	}
	return sum
}

// fits reports whether all limits have room for cost beside what is reserved.
func (h *reserving) fits(cost int64) bool {
	for _, m := range h.account.models {
		if units := m.units(cost + h.held()); !m.counted(h.now, units) {
			return false
		}
	}
	return true
}

// advance lets time pass: reservations end at their deadlines.
func (h *reserving) advance(to int64) {
	open := slices.DeleteFunc(slices.Clone(h.list), func(x *reservation) bool { return x.ended || x.end > to })
	slices.SortFunc(open, func(a, b *reservation) int { return cmp.Compare(a.end, b.end) })
	for _, x := range open {
		x.ended = true
		if !x.release {
			x.charged = int64(x.units)
			h.now = max(h.now, x.end-1)
			if x.units > 0 {
				h.account.charge(h.now, x.charged, false)
			}
		}
	}
	h.now = to
	for _, x := range open {
		x.remembered = to + settleWindow
	}
}

func (h *reserving) request(verb bucket.Verb, cost int64, x *bucket.Reservation) bucket.Decision {
	d, _, v := h.owner.Try(h.now, &bucket.Request{Limits: h.account.limits, Verb: verb, Cost: cost, Reservation: x}, nil)
	if v != bucket.Decided {
		h.t.Fatalf("verdict %d", v)
	}
	h.copy()
	return d
}

// copy brings the replica level.
func (h *reserving) copy() {
	keys, _, _ := h.owner.Drain(0, nil)
	handKeys(h.t, h.owner, h.replica, keys, h.now, h.now, false)
}

// fail over makes the replica the owner.
func (h *reserving) failOver() {
	h.owner, h.replica = h.replica, h.owner
	h.owner.Open(0, 0)
	h.owner.Record(0, bucket.RecordAll, 0)
	h.replica.Record(0, bucket.RecordNothing, 0)
	h.replica.Seal(0)
	h.replica.DropShard(0)
	hand(h.t, h.owner, h.replica, h.now, h.now, false)
}

// restart makes a table that has read the owner's records in pieces, as of a snapshot, the owner.
func (h *reserving) restart() {
	restored := smallTable(h.t)
	if rapid.Bool().Draw(h.t, "sealed") {
		restored.Seal(0)
	}
	for keys := h.owner.Keys(0, nil); len(keys) > 0; {
		n := rapid.IntRange(1, min(8, len(keys))).Draw(h.t, "keys at once")
		handKeys(h.t, h.owner, restored, keys[:n], h.now, h.now, false)
		keys = keys[n:]
	}
	h.replica = restored
	h.failOver()
}

func (h *reserving) reserve() {
	want := rapid.Int64Range(1, 6).Draw(h.t, "units")
	x := &bucket.Reservation{
		ID: h.next + 1, Least: rapid.Int64Range(1, want).Draw(h.t, "least"), MaxOpen: 1000, Release: rapid.Bool().Draw(h.t, "release"),
		For: time.Duration(rapid.Int64Range(int64(bucket.LeastLease), min(int64(h.account.limits.At(0).Period)+int64(time.Second), int64(bucket.MostReservation))).Draw(h.t, "for")),
	}
	d := h.request(bucket.Reserve, want, x)
	got := x.Reserved.Units
	if d.Allowed != (got > 0) || got > want || got > 0 && (got < x.Least || !h.fits(got) || got < want && h.fits(got+1)) || got == 0 && h.fits(x.Least) {
		h.t.Fatalf("at %d: %d units of %d to %d reserved beside %d: %+v", h.now, got, x.Least, want, h.held(), d)
	}
	if got > 0 {
		h.next++
		h.list = append(h.list, &reservation{id: x.ID, units: uint64(got), end: h.now + int64(x.For), release: x.Release})
	}
}

func (h *reserving) change(verb bucket.Verb) {
	if len(h.list) == 0 {
		return
	}
	x := rapid.SampledFrom(h.list).Draw(h.t, "whose")
	if h.now >= x.remembered && x.ended {
		return // the outcome may be forgotten by now
	}
	units := rapid.Int64Range(0, 8).Draw(h.t, "how many")
	r := &bucket.Reservation{ID: x.id}
	if verb == bucket.Extend {
		units -= 2
		r.For = time.Duration(rapid.Int64Range(0, min(int64(h.account.limits.At(0).Period), int64(bucket.MostReservation))).Draw(h.t, "for"))
	}
	may := !x.ended
	switch {
	case verb == bucket.Extend:
		may = may && (units <= 0 || h.fits(units))
	case verb == bucket.Spend:
		may = may && units <= int64(x.units)
	}
	d := h.request(verb, units, r)
	want := bucket.Reserved{Unknown: verb != bucket.Settle && x.ended}
	switch {
	case verb == bucket.Settle && x.settled:
		want = bucket.Reserved{Repeated: true, Units: x.charged}
	case verb == bucket.Settle && x.ended:
		if more := max(0, units-x.charged); more > 0 {
			h.account.charge(h.now, more, false)
			x.charged += more
		}
		x.settled, x.remembered = true, h.now+settleWindow
		want = bucket.Reserved{Late: true, Units: x.charged}
	case verb == bucket.Settle:
		if units > 0 {
			h.account.charge(h.now, units, false)
		}
		x.ended, x.settled, x.charged, x.remembered = true, true, units, h.now+settleWindow
		want = bucket.Reserved{Units: units, Returned: max(0, int64(x.units)-units)}
	case x.ended:
		want.Units = x.charged
	case verb == bucket.Spend && may:
		x.units -= uint64(units)
		if units > 0 {
			h.account.charge(h.now, units, false)
		}
		fallthrough
	case verb == bucket.Spend:
		want.Units, want.Expires = int64(x.units), time.Duration(x.end-h.now)
	default:
		if may {
			x.units = uint64(max(0, int64(x.units)+units))
			x.end = max(x.end, h.now+int64(r.For))
		}
		want.Units, want.Expires = int64(x.units), time.Duration(x.end-h.now)
	}
	if r.Reserved != want || d.Allowed != may && verb != bucket.Settle {
		h.t.Fatalf("at %d: verb %d of %d units: %+v, %v, want %+v, %v", h.now, verb, units, r.Reserved, d.Allowed, want, may)
	}
}

// TestReservedExactly: whatever callers do with reservations, a counter admits what the limits have room for beside all that is
// reserved, neither more nor less, also where its replica takes over.
func TestReservedExactly(t *testing.T) {
	for _, c := range algorithms {
		if c.algorithm == bucket.LeakyQueue {
			continue // cannot be reserved
		}
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				limit := genGranting(t, c.algorithm)
				limit.Soft, limit.Align, limit.Unit, limit.Zone = 0, bucket.AlignEpoch, 0, ""
				limit.LogEntries = 0
				reserveExactly(t, mustLimits(t, limit))
			})
		})
	}
}

func reserveExactly(t *rapid.T, limits *bucket.Limits) {
	h := &reserving{t: t, owner: smallTable(t), replica: smallTable(t), account: newAccount(limits), now: genStart.Draw(t, "start")}
	h.owner.Record(0, bucket.RecordAll, 0)
	h.replica.Seal(0)
	for range 40 {
		switch rapid.SampledFrom([]string{"reserve", "reserve", "check", "check", "spend", "extend", "settle", "settle", "wait", "wait", "sweep", "fail over", "restart"}).Draw(t, "what") {
		case "reserve":
			h.reserve()
		case "check":
			cost := rapid.Int64Range(1, 4).Draw(t, "cost")
			may := h.fits(cost)
			if d := h.request(bucket.Check, cost, nil); d.Allowed != may {
				t.Fatalf("at %d: a check of %d beside %d that are reserved: %+v, want %v", h.now, cost, h.held(), d, may)
			}
			if may {
				h.account.charge(h.now, cost, true)
			}
		case "spend":
			h.change(bucket.Spend)
		case "extend":
			h.change(bucket.Extend)
		case "settle":
			h.change(bucket.Settle)
		case "sweep":
			h.owner.Sweep(h.now, 0)
			h.replica.Sweep(h.now, 0)
			h.copy()
		case "fail over":
			h.failOver()
		case "restart":
			h.restart()
		case "wait":
			to := h.now + genStep(t, h.now, limits.At(0), bucket.Decision{})
			if len(h.list) > 0 && rapid.Bool().Draw(t, "to a deadline") {
				to = max(h.now, rapid.SampledFrom(h.list).Draw(t, "whose").end+rapid.Int64Range(-2, 1).Draw(t, "off"))
			}
			h.advance(to)
		}
	}
}
