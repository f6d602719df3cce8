package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

const farRTT = 200 * time.Millisecond

// leasedFar returns a region's book that has leased 100 units for 2 s, by a request sent at 1 whose answer came at now.
func leasedFar(t *testing.T) (b *Book, r *bucket.Request, now int64) {
	b, r = NewRegionBook(farRTT), &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: hourly(t, 1000), Cost: 1}
	for i := range 3 {
		var d bucket.Decision
		v, _, ask, asks := b.Take(1, r, Leaseholder, &d)
		if v != Ask || asks != (i == 1) {
			t.Fatalf("check %d: verdict %d, asks=%v; want the second one to ask", i, v, asks)
		}
		if asks {
			now = 1 + int64(farRTT)
			defer b.Granted(1, now, &ask, "h", &bucket.Grant{ID: 7, Units: 100, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000, Remaining: 900}})
			if ask.For != 2*time.Second {
				t.Fatalf("it asks for %v", ask.For)
			}
		}
	}
	return b, r, now
}

func take(b *Book, now int64, r *bucket.Request, cost int64) (v Verdict) {
	q, d := *r, bucket.Decision{}
	q.Cost = cost
	v, _, _, _ = b.Take(now, &q, Leaseholder, &d)
	return v
}

// TestRegionTimes: equal checks that come together are spent together, and cost no more than one of them when there is less than they want.
func TestRegionTimes(t *testing.T) {
	b, r, now := leasedFar(t)
	times := func(cost, times int64) (v Verdict) {
		q, d := *r, bucket.Decision{}
		q.Cost = cost
		v, _, _, _ = b.TakeTimes(now, &q, times, Leaseholder, nil, &d)
		return v
	}
	if v := times(1<<62, 3); v != Ask {
		t.Errorf("costs whose sum overflows: verdict %d", v)
	}
	if v := times(33, 3); v != Spent {
		t.Errorf("99 of 100: verdict %d", v)
	}
	if v := times(1, 2); v != Ask {
		t.Errorf("2 of 1: verdict %d", v)
	}
	if left, _ := b.Left(now, r.Key); left != 1 {
		t.Errorf("%d left, want 1", left)
	}
}

// TestHeld: what a check has spent can be given back until the lease ends, of each grant that it was spent of.
func TestHeld(t *testing.T) {
	b, r, now := leasedFar(t)
	hold := func(cost int64) (h Held, v Verdict) {
		q, d := *r, bucket.Decision{}
		q.Cost = cost
		v, _, _, _ = b.TakeTimes(now, &q, 1, Leaseholder, &h, &d)
		return h, v
	}
	left := func(want int64) {
		t.Helper()
		if units, _ := b.Left(now, r.Key); units != want {
			t.Errorf("%d left, want %d", units, want)
		}
	}
	first, v1 := hold(60)
	second, v2 := hold(40)
	if v1 != Spent || v2 != Spent || !first.Any() || !second.Any() || take(b, now, r, 1) == Spent {
		t.Fatalf("verdicts %d, %d", v1, v2)
	}
	if none, v := hold(1); v == Spent || none.Any() {
		t.Errorf("of a lease that is used up: verdict %d", v)
	}
	if !first.GiveBack(now) {
		t.Error("60 are not given back")
	}
	if left(60); take(b, now, r, 60) != Spent {
		t.Error("what was given back is not spent again")
	}
	if back := b.Tick(now + int64(MaxLife) - 1); len(back) != 0 {
		t.Errorf("returned %+v within MaxLife", back)
	}
	now += int64(MaxLife)
	if back := b.Tick(now); !slices.Equal(back, []Return{{r.Key, 7, 0}}) {
		t.Errorf("returned %+v", back)
	}
	if second.GiveBack(now) || take(b, now, r, 1) == Spent {
		t.Error("given back after the owner was told that all is spent")
	}

	b, r, now = leasedFar(t)
	take(b, now, r, 70)
	end := now + int64(2*time.Second)
	b.Granted(now, now, subAsk(r, 50), "h", &bucket.Grant{ID: 8, Units: 50, For: 2 * time.Second, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
	h, v := hold(60)
	if left(20); v != Spent || !h.Any() {
		t.Errorf("60 of two grants with 30 and 50: verdict %d", v)
	}
	if !h.GiveBack(now) {
		t.Error("60 of two grants are not given back")
	}
	left(80)
	h, _ = hold(60)
	now = end - 1 // the first grant has ended
	if h.GiveBack(now) {
		t.Error("given back of a lease that has ended")
	}
	left(50)
	h, _ = hold(50)
	if h.GiveBack(end) {
		t.Error("given back at the end")
	}
}

func subAsk(r *bucket.Request, want int64) *Request {
	return &Request{LeaseRequest: bucket.LeaseRequest{Key: r.Key, Limits: r.Limits, Want: want, Part: 1, Whole: 1, For: MaxLife}}
}

// TestRegionDeadline: a lease of another region lasts so long after its request was sent, however late its answer.
func TestRegionDeadline(t *testing.T) {
	b, r, _ := leasedFar(t)
	end := 1 + int64(2*time.Second)
	if v := take(b, end-1, r, 1); v != Spent {
		t.Errorf("just before the end: verdict %d", v)
	}
	if v := take(b, end, r, 1); v == Spent {
		t.Error("spent at the end")
	}
}

// TestRegionSub: a lease out of a lease ends before that could be returned in time, and there is none any more then.
func TestRegionSub(t *testing.T) {
	b, r, _ := leasedFar(t)
	last := 1 + int64(2*time.Second-farRTT/4) // a return must be sent by then, which takes half of farRTT: the owner's time begins as much later
	for _, before := range []time.Duration{time.Second, 100 * time.Millisecond, 99 * time.Millisecond, 30 * time.Millisecond, 5 * time.Millisecond} {
		at := last - int64(before)
		g, ok, _, _ := b.Grant(at, subAsk(r, 1))
		if !ok || g.Units != 1 || g.For != min(MaxLife, before) || !g.Decision.Allowed {
			t.Errorf("%v before: %+v, %v", before, g, ok)
		}
	}
	if g, _, _, _ := b.Grant(last-int64(4*time.Millisecond), subAsk(r, 1)); g.Units != 0 {
		t.Errorf("too late: %+v", g)
	}
}

// TestRegionSubHeld: a lease is neither returned nor reported as spent while others have leases of it; what these return may be spent
// again, once, and what they do not counts as spent.
func TestRegionSubHeld(t *testing.T) {
	b, r, now := leasedFar(t)
	g, _, _, _ := b.Grant(now, subAsk(r, 60))
	if take(b, now, r, 40) != Spent || take(b, now, r, 1) == Spent {
		t.Fatal("want 40 units beside those of the other")
	}
	if _, _, ask, asks := b.Grant(now+int64(10*time.Millisecond), subAsk(r, 1)); asks && ask.Done != 0 {
		t.Errorf("grant %d is reported as spent", ask.Done)
	}
	if back := b.Tick(now); len(back) != 0 {
		t.Fatalf("returned %+v", back)
	}
	if n := b.TakeBack(now, r.Key, g.ID, 25); n != 25 || b.TakeBack(now, r.Key, g.ID, 25) != 0 {
		t.Errorf("%d taken back", n)
	}
	if take(b, now, r, 25) != Spent || take(b, now, r, 1) == Spent {
		t.Error("want the 25 units that came back, and no more")
	}

	b, r, now = leasedFar(t)
	g, _, _, _ = b.Grant(now, subAsk(r, 60))
	if back := b.Drop(func(bucket.Key) bool { return false }); len(back) != 0 {
		t.Errorf("returned %+v while others have leases of it", back)
	}
	if n := b.TakeBack(now, r.Key, g.ID, 60); n != 0 {
		t.Errorf("%d taken back by a book that has ended", n)
	}

	b, r, now = leasedFar(t)
	if _, _, _, _ = b.Grant(now, subAsk(r, 60)); take(b, now+int64(MaxLife), r, 40) != Spent {
		t.Error("want 40 units")
	}
	if back := b.Tick(now + int64(MaxLife)); take(b, now+int64(MaxLife), r, 1) == Spent || len(back) != 0 {
		t.Errorf("returned %+v; what was not returned counts as spent", back)
	}
}

// TestRegionTooFar: limits whose leases would end before they are of use grant none to a region.
func TestRegionTooFar(t *testing.T) {
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1000, Period: time.Second, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	b := NewRegionBook(farRTT)
	for i := range 5 {
		var d bucket.Decision
		if _, _, _, asks := b.Take(int64(i+1), &bucket.Request{Limits: l, Cost: 1}, Leaseholder, &d); asks {
			t.Fatal("it asks for a lease")
		}
	}
}

// TestRegionFirstRequest: the first request of a region gets its part of what the others have not asked for since their last ones.
func TestRegionFirstRequest(t *testing.T) {
	d, now := NewDemands("owner"), int64(time.Hour)
	for _, x := range []struct {
		region string
		after  time.Duration
		want   float64
	}{{"a", 0, 1}, {"b", 500 * time.Millisecond, 2. / 3}, {"a", 500 * time.Millisecond, 2. / 3}, {"b", 200 * time.Millisecond, 700. / 900}, {"c", 800 * time.Millisecond, 1. / 2.8}} {
		now += int64(x.after)
		part, whole := d.Note(now, bucket.Key{Lo: 1}, "region "+x.region, 0, 100, 2*time.Second)
		if got := float64(part) / float64(whole); got < x.want-0.01 || got > x.want+0.01 {
			t.Errorf("region %s gets %.3f, want %.3f", x.region, got, x.want)
		}
	}
}

// TestRegionAhead: a region asks for more while what it has lasts until the answer is here.
func TestRegionAhead(t *testing.T) {
	b, r, now := leasedFar(t)
	asked := false
	for end := now + int64(time.Second); now < end; now += int64(5 * time.Millisecond) {
		q, d := *r, bucket.Decision{}
		v, _, ask, asks := b.Take(now, &q, Leaseholder, &d)
		if v != Spent {
			t.Fatalf("verdict %d after %v", v, time.Duration(now))
		}
		if asked = asked || asks; asks {
			left, _ := b.Left(now, r.Key)
			if wanted := 200 * int64(farRTT) / int64(time.Second); left < wanted {
				t.Errorf("it asks with %d units left, and %d are wanted meanwhile", left, wanted)
			}
			b.Granted(now, now+int64(farRTT), &ask, "h", &bucket.Grant{ID: 8 + uint64(now), Units: ask.Want, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
		}
	}
	if !asked {
		t.Error("it does not ask for more")
	}
}

// requester is a region's book whose first request, of 20 checks at 1, is in flight.
type requester struct {
	t    *testing.T
	b    *Book
	r    *bucket.Request
	asks []Request
	sent []int64
}

func newRequester(t *testing.T) *requester {
	a := &requester{t: t, b: NewRegionBook(farRTT), r: &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: hourly(t, 1e6), Cost: 1}}
	a.checks(1, 20)
	if len(a.asks) != 1 {
		t.Fatalf("20 checks asked %d times", len(a.asks))
	}
	return a
}

// checks checks so often, and returns the last verdict.
func (a *requester) checks(now int64, times int) (v Verdict) {
	for range times {
		var d bucket.Decision
		verdict, _, ask, asks := a.b.Take(now, a.r, Leaseholder, &d)
		if v = verdict; asks {
			a.asks, a.sent = append(a.asks, ask), append(a.sent, now)
		}
	}
	return v
}

// answer answers request i with so many units.
func (a *requester) answer(i int, now, units int64) (newest bool) {
	return a.b.Granted(a.sent[i], now, &a.asks[i], "h", &bucket.Grant{
		ID: uint64(i + 1), Units: units, For: a.asks[i].For, Decision: bucket.Decision{Allowed: units > 0, Limit: 1e6, Remaining: 1000 * int64(i)},
	})
}

// TestRegionRequests: while the owner grants less than is wanted, a request is made before the last one has its answer, up to three; else
// only when that is late, and none while it grants less than a check needs.
func TestRegionRequests(t *testing.T) {
	for _, c := range []struct {
		units int64
		made  []int64 // after the second request, until which 20 checks came in each of 10 ms
	}{
		{1e6, []int64{270, 540}}, {1, []int64{70, 140}}, {0, nil},
	} {
		a := newRequester(t)
		for now := 1 + 10*ms; now < 900*ms; now += 10 * ms {
			if now == 1+210*ms {
				a.answer(0, now, min(a.asks[0].Want, c.units))
			}
			a.checks(now, 20)
		}
		var got []int64
		for _, at := range a.sent[2:] {
			got = append(got, (at-a.sent[1])/ms)
		}
		if !slices.Equal(got, c.made) {
			t.Errorf("after an answer of %d units, and a request without one, others were made after %v ms; want %v", c.units, got, c.made)
		}
	}
}

// TestRegionOldAnswer: an answer that another one has overtaken adds its units, and says nothing else.
func TestRegionOldAnswer(t *testing.T) {
	a := newRequester(t)
	a.checks(1+270*ms, 20) // the answer is late
	if len(a.asks) != 2 {
		t.Fatalf("%d requests, want 2", len(a.asks))
	}
	if !a.answer(1, 1+480*ms, a.asks[1].Want) || a.answer(0, 1+490*ms, 0) {
		t.Error("the answer to the first request is taken for the newest")
	}
	for now := 1 + 490*ms; a.checks(now, 1) != Ask; now += ms {
		if now > 2000*ms {
			t.Fatal("never used up")
		}
		var d bucket.Decision
		if v, _, _, _ := a.b.Take(now, a.r, Leaseholder, &d); v == Denied || v == Spent && d.Remaining < 1000 {
			t.Fatalf("verdict %d, %+v", v, d)
		}
	}
}

// TestRegionLateAnswer: an answer is full if it grants what its own request wanted.
func TestRegionLateAnswer(t *testing.T) {
	a := newRequester(t)
	a.checks(1+270*ms, 5000) // much more is wanted
	if len(a.asks) != 2 || a.asks[1].Want <= a.asks[0].Want {
		t.Fatalf("%+v", a.asks)
	}
	a.answer(0, 1+300*ms, a.asks[0].Want)
	if v := a.checks(1+300*ms, int(a.asks[0].Want)+1); v != Ask {
		t.Errorf("when that is spent: verdict %d, want the home to be asked", v)
	}
}

// TestRegionGrantsEnd: units whose lease ends first are spent first, in whichever order their answers came.
func TestRegionGrantsEnd(t *testing.T) {
	a := newRequester(t)
	a.checks(1+270*ms, 20)
	a.answer(1, 1+480*ms, 5)
	a.answer(0, 1+490*ms, 5)
	a.checks(1+490*ms, 5)
	if left, _ := a.b.Left(a.sent[0]+2000*ms, a.r.Key); left != 5 {
		t.Errorf("%d units left after the end of the first lease, want 5", left)
	}
}

// TestRegionFewUnits: a unit is kept and spent though three checks of one unit each came together.
func TestRegionFewUnits(t *testing.T) {
	b, r, d := NewRegionBook(farRTT), &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: hourly(t, 1000), Cost: 1}, bucket.Decision{}
	_, _, ask, asks := b.TakeTimes(1, r, 3, Leaseholder, nil, &d)
	if !asks {
		t.Fatal("three checks do not ask")
	}
	now := 1 + int64(farRTT)
	b.Granted(1, now, &ask, "h", &bucket.Grant{ID: 7, Units: 1, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
	for i, want := range []Verdict{Denied, Spent, Denied} {
		times := int64(1)
		if i == 0 {
			times = 3
		}
		d = bucket.Decision{}
		if v, _, _, _ := b.TakeTimes(now, r, times, Leaseholder, nil, &d); v != want {
			t.Errorf("check %d: verdict %d, want %d", i, v, want)
		}
	}
}
