//go:build linux

package network

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/faultnet"
)

const (
	// faultAfter is when a fault begins: in the second window, when four fifths of it are spent. goesOn is how long checks go on after its end.
	faultWindow = 20 * time.Second
	faultAfter  = faultWindow + 2*faultWindow/5
	goesOn      = 2*faultWindow + 5*time.Second
	// undecidedMost is how long a key may have no region that decides it, and a region may take to go on after a fault.
	undecidedMost = 10 * time.Second
	// homeStops is how long a home that is cut off may decide: see docs/internals/regions.md.
	homeStops = 2 * time.Second
)

// farFault is a fault of one region.
type farFault struct {
	name, region string
	lasts        time.Duration
	run          func(l *farLab, region string, lasts time.Duration)
	// down: its nodes end. gone: they do not come back. hears: it may learn meanwhile that another region decides the keys of its home.
	down, gone, hears bool
}

// faultRules have each algorithm twice: with the defaults, share and fresh, and with closed and deny.
func faultRules(rate int) string {
	text := "domain: shop\ndescriptors:\n"
	for prefix, options := range map[string]string{"share": "", "closed": "on_partition: closed, on_failure: closed, "} {
		window := rate * int(faultWindow.Seconds())
		text += fmt.Sprintf(`  - {key: %[1]s_window, scope: global, home: eu, %[2]slimits: [{algorithm: fixed_window, count: %[3]d, period: %[4]v}]}
  - {key: %[1]s_sliding, scope: global, home: eu, %[2]slimits: [{algorithm: sliding_counter, count: %[3]d, period: %[4]v}]}
  - {key: %[1]s_bucket, scope: global, home: eu, %[2]slimits: [{algorithm: token_bucket, count: %[3]d, period: %[4]v, burst: %[5]d}]}
`, prefix, options, window, faultWindow, window/4)
	}
	return text
}

// cutRules lose all packets of a region, from it or to it, on the way to others.
func (l *farLab) cutRules(region string, from, to bool) (rules []faultnet.Rule) {
	for _, a := range l.hostsOf(region) {
		for _, b := range l.hosts {
			if slices.Contains(l.hostsOf(region), b) {
				continue
			}
			if from {
				rules = append(rules, faultnet.Rule{From: netip.MustParseAddr(a), To: netip.MustParseAddr(b), Loss: 1})
			}
			if to {
				rules = append(rules, faultnet.Rule{From: netip.MustParseAddr(b), To: netip.MustParseAddr(a), Loss: 1})
			}
		}
	}
	return rules
}

func cutFar(from, to bool) func(*farLab, string, time.Duration) {
	return func(l *farLab, region string, lasts time.Duration) {
		f := l.sw.Add(l.cutRules(region, from, to)...)
		<-time.After(lasts)
		f.Lift()
	}
}

func flapFar(l *farLab, region string, lasts time.Duration) {
	for end := time.Now().Add(lasts); time.Now().Before(end); <-time.After(3 * time.Second) {
		cutFar(true, true)(l, region, 3*time.Second)
	}
}

// killFar kills all nodes of a region.
func killFar(l *farLab, region string, lasts time.Duration) {
	for _, n := range l.nodes[region] {
		n.cmd.Process.Kill()
	}
	<-time.After(lasts)
}

// restartFar ends a region as a whole, the first node by SIGTERM and the others by SIGKILL, and starts it lasts later.
func restartFar(l *farLab, region string, lasts time.Duration) {
	l.nodes[region][0].cmd.Process.Signal(syscall.SIGTERM)
	for _, n := range l.nodes[region][1:] {
		n.kill()
	}
	<-time.After(lasts)
	for i, n := range l.nodes[region] {
		n.kill()
		l.launch(region, i)
	}
}

// farAdmission is one unit that was admitted between two times.
type farAdmission struct {
	sent, answered time.Time
	ends           time.Time // when the units count no more, as was answered
	place          string    // the region, and who decided
}

// A counter that moves takes its window along, which then ends later by the time that the message took. The answers of the owner say when.

// windowEnd returns when the fixed window of list ends that should end at to. Answers say it later by the time that they took at most.
func windowEnd(list []farAdmission, to time.Time) time.Time {
	ends := to
	for i := range list {
		a := &list[i]
		if end := a.ends.Add(a.sent.Sub(a.answered)); a.ends.Round(faultWindow).Equal(to) && strings.HasSuffix(a.place, "OWNED") && end.After(ends) {
			ends = end
		}
	}
	return ends
}

// in reports whether a unit is one of the fixed window that should end at to, and ends at that time, the one before at begins. While a region
// has a lease that goes on in the next window, units count until the end of that one. A few units are left out that were asked before a window
// begins, and answered after that: they may be of either.
func (a *farAdmission) in(to, begins, ends time.Time) bool {
	switch said := a.ends.Round(faultWindow); {
	case said.Equal(to):
		return !a.sent.Before(begins)
	case said.Equal(to.Add(faultWindow)):
		return a.answered.Before(ends)
	}
	return false
}

// within reports whether a unit was admitted between two times.
func (a *farAdmission) within(from, to time.Time) bool {
	return !a.sent.Before(from) && !a.answered.After(to)
}

// late returns how much later than at from a window of a sliding counter begins, of which list has what was admitted: one that is nearly used
// up counts no more two periods after its begin.
func late(list []farAdmission, from time.Time, count int64) (d time.Duration) {
	var used int64
	for i := range list {
		if a := &list[i]; a.within(from, from.Add(faultWindow)) {
			used++
			if by := a.ends.Sub(from) - 2*faultWindow; by < faultWindow/2 && strings.HasSuffix(a.place, "OWNED") {
				d = max(d, by)
			}
		}
	}
	if used < count*3/4 {
		return 0
	}
	return d
}

// farReferee counts what is admitted in all regions.
type farReferee struct {
	mu sync.Mutex
	// admitted has what was admitted of keys. last is when a key was last decided in a region, by the home or its leases, and
	// undecided its longest time without that. shared is when a share decided last.
	admitted        map[string][]farAdmission
	last            map[[2]string]time.Time
	undecided       map[[2]string]time.Duration
	shares          map[[2]string]int
	shared          time.Time
	asked, answered int
}

// excuse forgets the times without decisions in a region that was cut off or down: there on_partition decided.
func (f *farReferee) excuse(region string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.last {
		if k[0] == region {
			f.last[k], f.undecided[k] = time.Now(), 0
		}
	}
}

// ask asks the nodes of a region for a key, the next one after an error, until ctx ends.
func (f *farReferee) ask(ctx context.Context, region, key string, conns []*grpc.ClientConn, at int, pause time.Duration) {
	check := &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: key, Value: "all"}}}}}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		sent := time.Now()
		r, err := sluicev1.NewRateLimitServiceClient(conns[at%len(conns)]).Check(attempt, check)
		now := time.Now()
		cancel()
		f.mu.Lock()
		f.asked++
		if err != nil || len(r.Decisions) != 1 || r.Decisions[0].Error != nil {
			at++
			f.mu.Unlock()
			continue
		}
		f.answered++
		d, place := r.Decisions[0], [2]string{region, key}
		if d.Allowed {
			f.admitted[key] = append(f.admitted[key], farAdmission{sent, now, now.Add(time.Duration(d.GetResetAfterNs())), region + " " + strings.TrimPrefix(d.Source.String(), "SOURCE_")})
		}
		switch d.Source {
		case sluicev1.Source_SOURCE_SHARE:
			f.shared = now
			f.shares[place]++
		case sluicev1.Source_SOURCE_CLOSED, sluicev1.Source_SOURCE_OPEN:
		default:
			if last := f.last[place]; !last.IsZero() {
				f.undecided[place] = max(f.undecided[place], now.Sub(last))
			}
			f.last[place] = now
		}
		f.mu.Unlock()
	}
}

// TestFarRegionsFaults: three regions as those of TestFarRegions, in which twice as much is wanted as global limits admit, while one region
// is cut off, or its nodes end. What all regions together admit beyond the limits is within the bounds of docs/internals/consistency.md, no
// region that is not cut off is without decisions for longer than 10 s, and the end of a fault resets nothing.
func TestFarRegionsFaults(t *testing.T) {
	const minute, half = time.Minute, 30 * time.Second
	var rows []string
	for _, fault := range []farFault{
		{name: "region cut off", region: "ap", lasts: minute, run: cutFar(true, true)},
		{name: "region sends nothing", region: "ap", lasts: half, run: cutFar(true, false)},
		{name: "region receives nothing", region: "ap", lasts: half, run: cutFar(false, true)},
		{name: "region flaps", region: "ap", lasts: minute, run: flapFar},
		{name: "region restarts", region: "ap", lasts: 10 * time.Second, run: restartFar, down: true},
		{name: "home cut off", region: "eu", lasts: minute, run: cutFar(true, true)},
		{name: "home sends nothing", region: "eu", lasts: half, run: cutFar(true, false), hears: true},
		{name: "home receives nothing", region: "eu", lasts: half, run: cutFar(false, true)},
		{name: "home flaps", region: "eu", lasts: minute, run: flapFar, hears: true},
		{name: "home restarts at once", region: "eu", run: restartFar, down: true},
		{name: "home restarts", region: "eu", lasts: 10 * time.Second, run: restartFar, down: true},
		{name: "home killed for good", region: "eu", lasts: minute, run: killFar, down: true, gone: true},
	} {
		t.Run(fault.name, func(t *testing.T) { rows = append(rows, fault.test(t)...) })
	}
	t.Logf("\n| fault | lasted | rule | admitted | permitted | excess | bound | undecided at most |\n|---|---|---|---|---|---|---|---|\n%s", strings.Join(rows, "\n"))
}

func (fault farFault) test(t *testing.T) (rows []string) {
	const callers = 4
	size, rate := 2, 60
	if fault.down {
		size, rate = 3, 30
	}
	l := newFarLab(t, size, faultRules(rate))
	f := &farReferee{admitted: map[string][]farAdmission{}, last: map[[2]string]time.Time{}, undecided: map[[2]string]time.Duration{}, shares: map[[2]string]int{}}
	<-time.After(time.Until(time.Now().Truncate(faultWindow).Add(faultWindow)))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	start := time.Now()
	perSecond := float64(rate) * 2 / float64(len(farNames))
	for _, r := range farNames {
		var conns []*grpc.ClientConn
		for _, addr := range l.hostsOf(r) {
			quick := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second}
			conn, err := grpc.NewClient(addr+":7460", append(l.dialOptions(), grpc.WithConnectParams(quick))...)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
		}
		for _, variant := range []string{"share", "closed"} {
			for _, kind := range []string{"window", "sliding", "bucket"} {
				for i := range callers {
					all.Go(func() {
						f.ask(ctx, r, variant+"_"+kind, conns, i, time.Duration(callers/perSecond*float64(time.Second)))
					})
				}
			}
		}
	}
	<-time.After(faultAfter)
	began := time.Now()
	fault.run(l, fault.region, fault.lasts)
	ended := time.Now()
	if !fault.gone {
		f.excuse(fault.region)
	}
	<-time.After(goesOn)
	stop()
	all.Wait()

	linked := ended // when no share decided any more
	if f.shared.After(linked) {
		linked = f.shared
	}
	if after := linked.Sub(ended); after > undecidedMost || len(f.last) != 6*len(farNames) {
		t.Errorf("shares decided %v after the fault; %d keys were decided", after, len(f.last))
	}
	undecided := time.Duration(0)
	for _, place := range slices.SortedFunc(maps.Keys(f.last), func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) }) {
		if fault.gone && place[0] == fault.region {
			continue
		}
		silent := max(f.undecided[place], time.Since(f.last[place]))
		if place[0] != fault.region {
			undecided = max(undecided, silent)
		}
		t.Logf("%s in %s: undecided for %v at most, %d checks decided by shares", place[1], place[0], silent.Round(10*time.Millisecond), f.shares[place])
		if silent > undecidedMost {
			t.Errorf("%s in %s: undecided for %v", place[1], place[0], silent)
		}
	}
	t.Logf("%d of %d checks answered; the last one by a share %v after the end of the fault", f.answered, f.asked, linked.Sub(ended).Round(10*time.Millisecond))
	judge := farJudge{farFault: fault, size: int64(size), rate: int64(rate), start: start, began: began, ended: ended, linked: linked, until: time.Now()}
	for _, key := range slices.Sorted(maps.Keys(f.admitted)) {
		rows = append(rows, judge.of(t, key, f.admitted[key])+fmt.Sprintf(" %v |", undecided.Round(10*time.Millisecond)))
	}
	t.Logf("\n%s", strings.Join(rows, "\n"))
	return rows
}

// farJudge compares what was admitted of a key with the bound of a fault.
type farJudge struct {
	farFault
	size, rate                         int64
	start, began, ended, linked, until time.Time
}

// extra returns how many units of a limit may be admitted beyond it between two times, of which full are those of the limit at once, and refill
// those of a second: the shares of regions that do not reach the home, and once more the limit if the home's counters are lost.
func (j *farJudge) extra(key string, from, to time.Time, full, refill int64) (units int64) {
	if strings.HasPrefix(key, "closed") {
		return 0
	}
	// share is what the nodes of so many regions give that do not reach the region that decides at some time between two.
	share := func(regions int64, since, until time.Time) int64 {
		without := min(until.Sub(j.start), to.Sub(j.start), j.linked.Sub(j.start)) - max(from.Sub(j.start), since.Sub(j.start))
		if without <= 0 {
			return 0
		}
		return regions * j.size * (full/(3*j.size) + int64(float64(refill)*without.Seconds())/(3*j.size))
	}
	if j.region != "eu" {
		if j.down {
			return 0
		}
		return share(1, j.began, j.linked)
	}
	units = share(2, j.began, j.began.Add(undecidedMost))
	learns := j.ended // when the old home may learn that another region decides, which it may not reach yet
	if j.hears {
		learns = j.began
	}
	units += share(1, learns, j.linked)
	if from.Before(j.began.Add(homeStops)) && to.After(j.began) {
		units += full
	}
	return units
}

// of returns the row of a key.
func (j *farJudge) of(t *testing.T, key string, list []farAdmission) string {
	t.Helper()
	count := func(in func(a *farAdmission) bool) (n int64, places map[string]int) {
		places = map[string]int{}
		for i := range list {
			if in(&list[i]) {
				places[list[i].place]++
				n++
			}
		}
		return n, places
	}
	window := j.rate * int64(faultWindow.Seconds())
	var permitted, excess, bound int64
	if strings.HasSuffix(key, "bucket") {
		burst := window / 4
		slices.SortFunc(list, func(a, b farAdmission) int { return a.answered.Compare(b.answered) })
		permittedAt := func(at time.Time) int64 { return burst + int64(at.Sub(j.start).Seconds()*float64(j.rate)) + 1 }
		for i, a := range list {
			over := int64(i+1) - permittedAt(a.answered)
			if excess = max(excess, over); over > j.extra(key, j.start, a.answered, burst, j.rate) {
				t.Errorf("%s: %d admitted more than is permitted %v after the begin of the fault", key, over, a.answered.Sub(j.began))
				break
			}
		}
		permitted, bound = permittedAt(j.until), j.extra(key, j.start, j.until, burst, j.rate)
		// The bucket is empty now, but for what regions have leased ahead: 3 RTT + 200 ms of their demand, two thirds of the rate each.
		ahead := int64(float64(j.rate) * 2 / 3 * (3*(0.3+0.15+0.3) + 3*0.2))
		from := j.until.Add(-faultWindow)
		if n, places := count(func(a *farAdmission) bool { return a.sent.After(from) }); n > ahead+window {
			t.Errorf("%s: %d admitted in the last %v, %v; want %d at most", key, n, faultWindow, places, ahead+window)
		}
	} else {
		var each []int64
		for from := j.start.Truncate(faultWindow); from.Before(j.until); from = from.Add(faultWindow) {
			to := from.Add(faultWindow)
			begun, ends := windowEnd(list, from), windowEnd(list, to)
			in := func(a *farAdmission) bool { return a.in(to, begun, ends) }
			if strings.HasSuffix(key, "sliding") {
				begins := from.Add(late(list, from, window))
				in = func(a *farAdmission) bool { return a.within(begins, begins.Add(faultWindow)) }
			}
			extra := j.extra(key, from, to, window, 0)
			n, places := count(in)
			permitted, excess, bound, each = permitted+window, excess+max(0, n-window), bound+extra, append(each, n)
			if n > window+extra {
				near, _ := count(func(a *farAdmission) bool { return in(a) && a.answered.After(to.Add(-200*time.Millisecond)) })
				t.Errorf("%s: %d admitted in a window from %v after the begin of the fault, which was late by %v and ended %v late, %d in its last 200 ms and later, %v; want %d and %d at most",
					key, n, from.Sub(j.began), begun.Sub(from), ends.Sub(to), near, places, window, extra)
			}
		}
		t.Logf("%s: %v in windows", key, each)
	}
	if int64(len(list)) > permitted+bound {
		t.Errorf("%s: %d admitted of %d; want %d more at most", key, len(list), permitted, bound)
	}
	return fmt.Sprintf("| %s | %v | %s | %d | %d | %d | %d |", j.name, j.ended.Sub(j.began).Round(time.Second), key, len(list), permitted, excess, bound)
}
