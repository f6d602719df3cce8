package lease

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// opened returns a book with a line for a key, as of the request that the last check has made.
func opened(t testing.TB, limits *bucket.Limits) (b *Book, r *bucket.Request, now int64, ask Request) {
	b, r = NewBook(DefaultHot), &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: limits, Cost: 1}
	for now = 1; ; now += ms {
		var d bucket.Decision
		v, _, q, asks := b.Take(now, r, Leaseholder, &d)
		if v != Ask || d != (bucket.Decision{}) {
			t.Fatalf("after %d ms: verdict %d, %+v", now/ms, v, d)
		}
		if asks {
			return b, r, now, q
		}
		if now > 100*ms {
			t.Fatal("the key does not become hot")
		}
	}
}

// TestLine is a lease from the first request to its end.
func TestLine(t *testing.T) {
	limits := hourly(t, 1000)
	b, r, now, ask := opened(t, limits)
	if now != 1+49*ms || ask.Want != 15 || ask.Rate != 500 || ask.For != 100*time.Millisecond || ask.Limits != limits {
		t.Fatalf("after %d ms: %+v; want 30 ms of 500 a second", now/ms, ask)
	}
	take := func(cost int64) (v Verdict, d bucket.Decision, asks bool) {
		q := *r
		q.Cost = cost
		v, _, next, asks := b.Take(now, &q, Leaseholder, &d)
		if asks {
			ask = next
		}
		return v, d, asks
	}
	if v, _, asks := take(1); v != Ask || asks {
		t.Errorf("while the first request is on its way: verdict %d, asks=%v", v, asks)
	}
	sent := now
	now += 2 * ms
	b.Granted(sent, now, &ask, "h", &bucket.Grant{ID: 1, Units: 15, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000, Remaining: 900, ResetAfter: time.Hour}})
	v, d, asks := take(3)
	if want := (bucket.Decision{Allowed: true, Limit: 1000, Remaining: 912, ResetAfter: time.Hour}); v != Spent || d != want || asks {
		t.Errorf("verdict %d, %+v, asks=%v; want %+v", v, d, asks, want)
	}
	now += 10 * ms
	if v, _, asks = take(6); v != Spent || !asks {
		t.Errorf("with 6 left: verdict %d, asks=%v; want it to ask ahead", v, asks)
	}
	b.Granted(now, now, &ask, "h", &bucket.Grant{ID: 2, Units: 2, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000, Remaining: 0}})
	if v, _, _ = take(7); v != Spent {
		t.Errorf("7 of 6 and 2: verdict %d", v)
	}
	if ask.Done != 0 {
		t.Errorf("grant %d is said to be spent", ask.Done)
	}
	if v, d, asks = take(2); v != Denied || d.Allowed || d.RetryAfter != 20*time.Millisecond || d.Remaining != 1 || asks {
		t.Errorf("2 of 1: verdict %d, %+v, asks=%v; want to come again when more will have been asked for", v, d, asks)
	}
	if s := b.Stats(); s != (Stats{Granted: 17, Spent: 16, Live: 1, Denied: 1, Keys: 1}) {
		t.Errorf("%+v", s)
	}
	now = sent + 12*ms + int64(ask.For)
	if v, _, asks = take(1); v != Ask || !asks || ask.Done != 1 {
		t.Errorf("when the lease has ended: verdict %d, asks=%v", v, asks)
	}
	b.Failed(now, &ask)
	if _, _, asks = take(1); !asks {
		t.Error("it does not ask again")
	}
	if back := b.Close(); len(back) != 0 || b.Stats().Expired != 1 {
		t.Errorf("returned %+v, %+v", back, b.Stats())
	}
	b.Granted(now, now, &ask, "", &bucket.Grant{ID: 3, Units: 4, For: ask.For})
	if back := b.Tick(now); len(back) != 1 || back[0] != (Return{r.Key, 3, 4}) {
		t.Errorf("returned %+v; want what came when nobody wanted it any more", back)
	}
}

// TestLineTooSmall: of a key whose checks are larger than what can be had, nothing is kept: the owner decides them.
func TestLineTooSmall(t *testing.T) {
	b, r, now, _ := opened(t, hourly(t, 1000))
	r.Cost = 50
	var d bucket.Decision
	_, _, _, asks := b.Take(now, r, Leaseholder, &d)
	if asks {
		t.Fatal("two requests at a time")
	}
	ask := Request{LeaseRequest: bucket.LeaseRequest{Key: r.Key, Limits: r.Limits, Want: 50}}
	b.Granted(now, now, &ask, "", &bucket.Grant{ID: 1, Units: 20, For: time.Second, Decision: bucket.Decision{Allowed: true, Limit: 1000, Remaining: 20}})
	for range 3 {
		if v, _, _, asks := b.Take(now, r, Leaseholder, &d); v != Ask || asks {
			t.Errorf("verdict %d, asks=%v; want the owner to be asked, and no lease", v, asks)
		}
	}
	if back := b.Tick(now); len(back) != 1 || back[0].Unspent != 20 {
		t.Errorf("returned %+v", back)
	}
}

// TestNotGranted: limits that do not grant make no line.
func TestNotGranted(t *testing.T) {
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.LeakyQueue, Count: 1000, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBook(DefaultHot)
	for now := int64(1); now < 300*ms; now += ms {
		var d bucket.Decision
		if _, _, _, asks := b.Take(now, &bucket.Request{Limits: l, Cost: 1}, Owner, &d); asks {
			t.Fatal("it asks for a lease")
		}
	}
}

// TestDemands: each gets its part of all demand of late, and the owner's own checks lease as long as others do.
func TestDemands(t *testing.T) {
	d, k := NewDemands("self"), bucket.Key{Lo: 1}
	if d.Live(0, k) {
		t.Error("nobody has asked")
	}
	for _, s := range []struct {
		at          int64
		boot        string
		rate        int64
		part, whole int64
		live        bool
	}{
		{0, "self", 100, 100, 100, false}, {10, "x", 300, 300, 400, true}, {20, "y", 0, 1, 401, true}, {30, "x", 500, 500, 601, true},
		{140, "self", 100, 100, 601, true}, {175, "self", 100, 100, 600, true}, {181, "self", 100, 100, 100, false},
	} {
		part, whole := d.Note(s.at*ms, k, s.boot, 0, s.rate, 0)
		if live := d.Live(s.at*ms, k); part != s.part || whole != s.whole || live != s.live {
			t.Errorf("at %d ms %s: %d of %d, live=%v; want %d of %d, %v", s.at, s.boot, part, whole, live, s.part, s.whole, s.live)
		}
	}
	if d.Sweep(331 * ms); d.Keys() != 1 || d.Keys() == 0 {
		t.Error("a demand is forgotten too early")
	}
	if d.Sweep(332 * ms); d.Keys() != 0 || d.Keys() > 0 {
		t.Error("a demand is not forgotten")
	}
}

// TestTakeAllocs: a check costs no allocation, with a lease and without.
func TestTakeAllocs(t *testing.T) {
	b, r, now, ask := opened(t, hourly(t, 1000))
	b.Granted(now, now, &ask, "", &bucket.Grant{ID: 1, Units: 1 << 40, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
	cold := *r
	cold.Key.Lo++
	if n := testing.AllocsPerRun(1000, func() {
		var d bucket.Decision
		if v, _, _, _ := b.Take(now, r, Leaseholder, &d); v != Spent {
			t.Fatal("not spent")
		}
		b.Take(now, &cold, Leaseholder, &d)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestReserves: checks of one key that leave different room for others have leases of their own, and neither
// spends what the other has leased.
func TestReserves(t *testing.T) {
	b, r, now, ask := opened(t, hourly(t, 1000))
	b.Granted(now, now, &ask, "", &bucket.Grant{ID: 1, Units: 10, For: ask.For, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
	low := *r
	low.Reserve = 300
	var d bucket.Decision
	if v, _, _, _ := b.Take(now, &low, Leaseholder, &d); v != Ask {
		t.Errorf("a check that leaves 300 has verdict %d by a lease of one that leaves none", v)
	}
	var asked Request
	for asks := false; !asks; now += ms {
		if now > 200*ms {
			t.Fatal("its own lease is not asked for")
		}
		_, _, asked, asks = b.Take(now, &low, Leaseholder, &d)
	}
	if asked.Reserve != 300 {
		t.Errorf("asks for %+v, want to leave 300", asked)
	}
	b.Granted(now, now, &asked, "", &bucket.Grant{ID: 2, Units: 2, For: asked.For, Decision: bucket.Decision{Allowed: true, Limit: 1000}})
	for i, want := range []Verdict{Spent, Spent, Denied} {
		d = bucket.Decision{}
		if v, _, _, _ := b.Take(now, &low, Leaseholder, &d); v != want {
			t.Errorf("check %d that leaves 300: verdict %d, want %d", i, v, want)
		}
	}
	demands, k := NewDemands("self"), r.Key
	demands.Note(now, k, "x", 0, 100, 0)
	if part, whole := demands.Note(now, k, "x", 300, 50, 0); part != 50 || whole != 150 {
		t.Errorf("part %d of %d, want 50 of 150", part, whole)
	}
}

// TestAgainAsksNothing: a check that is tried again makes no request, since nobody would send it.
func TestAgainAsksNothing(t *testing.T) {
	b, r := NewBook(DefaultHot), &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: hourly(t, 1000), Cost: 1}
	for i := range 3 {
		now := 1 + int64(i)*askEvery
		var d bucket.Decision
		_, _, ask, asks := b.Take(now, r, Owner, &d)
		if !asks {
			t.Fatalf("request %d is not made", i)
		}
		b.Failed(now, &ask)
		if _, _, _, asks := b.Take(now, r, Again, &d); asks {
			t.Fatal("it asks again")
		}
	}
}
