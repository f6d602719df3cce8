package load

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// admission is an admitted check: when it was sent and when its answer came, since the load began.
type admission struct {
	from, to time.Duration
	node     int
}

// hotLoad has callers ask for one key, or for keys of their own, as fast as they get answers.
type hotLoad struct {
	nodes   []*process.Node
	callers int
	// pick chooses the node to be asked. Nil is any.
	pick func(r *rand.Rand) int
	// limit travels with every check; domain and key name it. keys, if above 1, are how many keys the callers
	// ask for at random.
	domain, key string
	keys        int
	limit       *sluicev1.Limit
	// entry, if set, is asked for instead, by its rule.
	entry []*sluicev1.Entry
	// pace is the time between two checks of a caller; 0 asks again at once.
	pace time.Duration
	// during the load, if set, is called once in its own goroutine.
	during func()
}

// hotResult is what came of a load.
type hotResult struct {
	took            time.Duration
	admitted        []admission // by the time of their answers
	asked           int
	perNodeAdmitted []int
	denied, failed  []int // by node
	latencies       []time.Duration
	sources         map[sluicev1.Source]int
	lastErr         error
}

func (r *hotResult) rate() float64 { return float64(r.asked) / r.took.Seconds() }

func (r *hotResult) quantile(q float64) time.Duration {
	if len(r.latencies) == 0 {
		return 0
	}
	return r.latencies[min(len(r.latencies)-1, int(q*float64(len(r.latencies))))]
}

// run asks for so long.
func (l hotLoad) run(t *testing.T, d time.Duration) *hotResult {
	t.Helper()
	clients := make([]sluicev1.RateLimitServiceClient, len(l.nodes))
	for i, n := range l.nodes {
		clients[i] = n.API()
	}
	n := len(l.nodes)
	sum := &hotResult{denied: make([]int, n), failed: make([]int, n), perNodeAdmitted: make([]int, n), sources: map[sluicev1.Source]int{}}
	var mu sync.Mutex
	var work sync.WaitGroup
	began := time.Now()
	if l.during != nil {
		work.Go(l.during)
	}
	for c := range l.callers {
		work.Go(func() {
			own := l.caller(uint64(c), clients, began, d)
			mu.Lock()
			defer mu.Unlock()
			sum.add(own)
		})
	}
	work.Wait()
	sum.took = time.Since(began)
	slices.SortFunc(sum.admitted, func(a, b admission) int { return int(a.to - b.to) })
	slices.Sort(sum.latencies)
	return sum
}

// caller is one caller's part.
func (l hotLoad) caller(c uint64, clients []sluicev1.RateLimitServiceClient, began time.Time, d time.Duration) *hotResult {
	r := rand.New(rand.NewPCG(c, 7))
	n := len(clients)
	own := &hotResult{denied: make([]int, n), failed: make([]int, n), perNodeAdmitted: make([]int, n), sources: map[sluicev1.Source]int{}}
	var tick <-chan time.Time
	if l.pace > 0 {
		ticker := time.NewTicker(l.pace)
		defer ticker.Stop()
		tick = ticker.C
	}
	for time.Since(began) < d {
		if tick != nil {
			<-tick
		}
		at := 0
		if l.pick != nil {
			at = l.pick(r)
		} else {
			at = r.IntN(n)
		}
		key := l.key
		if l.keys > 1 {
			key = keyName(r.IntN(l.keys))
		}
		from := time.Since(began)
		// A call that is under way when the load ends is waited for: it may have been admitted.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		check := &sluicev1.Check{Domain: l.domain, Descriptor_: l.entry}
		if l.entry == nil {
			check.Descriptor_, check.Limits = []*sluicev1.Entry{{Key: "key", Value: key}}, limitsOf(l.limit)
		}
		res, err := clients[at].Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
		cancel()
		to := time.Since(began)
		own.asked++
		switch {
		case err != nil:
			own.failed[at]++
			own.lastErr = err
			continue
		case res.Decisions[0].Error != nil:
			own.failed[at]++
			continue
		}
		own.latencies = append(own.latencies, to-from)
		own.sources[res.Decisions[0].Source]++
		if res.Decisions[0].Allowed {
			own.admitted = append(own.admitted, admission{from, to, at})
			own.perNodeAdmitted[at]++
		} else {
			own.denied[at]++
		}
	}
	return own
}

func limitsOf(l *sluicev1.Limit) []*sluicev1.Limit {
	if l == nil {
		return nil
	}
	return []*sluicev1.Limit{l}
}

func (r *hotResult) add(x *hotResult) {
	r.admitted = append(r.admitted, x.admitted...)
	r.latencies = append(r.latencies, x.latencies...)
	r.asked += x.asked
	for i := range r.denied {
		r.denied[i] += x.denied[i]
		r.failed[i] += x.failed[i]
		r.perNodeAdmitted[i] += x.perNodeAdmitted[i]
	}
	for s, n := range x.sources {
		r.sources[s] += n
	}
	if x.lastErr != nil {
		r.lastErr = x.lastErr
	}
}

func (r *hotResult) failures() int { return sumOf(r.failed) }

func (r *hotResult) denials() int { return sumOf(r.denied) }

func sumOf(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// mostOver returns by how much admissions exceed burst + rate × length in the worst interval: those that
// were sent and answered within it, so were decided within it for sure. Negative: by how much they
// stayed below.
func mostOver(admitted []admission, burst, ratePerSecond float64) float64 {
	// Over intervals that begin with some check's sending, count + rate × begin is kept in a tree, to which
	// every check adds one for all intervals that begin before it was sent.
	starts := make([]time.Duration, len(admitted))
	for i, s := range admitted {
		starts[i] = s.from
	}
	slices.Sort(starts)
	tree := newMaxTree(len(starts), func(i int) float64 { return ratePerSecond * starts[i].Seconds() })
	worst := -burst
	for _, s := range admitted { // in the order of to
		i, _ := slices.BinarySearch(starts, s.from+1)
		tree.addUpTo(i) // intervals that begin at starts[0] to starts[i-1]
		if over := tree.max(i) - burst - ratePerSecond*s.to.Seconds(); over > worst {
			worst = over
		}
	}
	return worst
}

// maxTree is a segment tree of numbers, to a prefix of which one can be added, and whose prefix's
// maximum can be asked for.
type maxTree struct {
	size      int
	most, add []float64
}

func newMaxTree(n int, value func(int) float64) *maxTree {
	size := 1
	for size < n {
		size *= 2
	}
	t := &maxTree{size: size, most: make([]float64, 2*size), add: make([]float64, 2*size)}
	for i := range size {
		t.most[size+i] = -1e18
		if i < n {
			t.most[size+i] = value(i)
		}
	}
	for i := size - 1; i > 0; i-- {
		t.most[i] = max(t.most[2*i], t.most[2*i+1])
	}
	return t
}

func (t *maxTree) addUpTo(n int) { t.addIn(1, 0, t.size, n) }

func (t *maxTree) addIn(node, lo, hi, n int) {
	switch {
	case n <= lo:
	case hi <= n:
		t.most[node]++
		t.add[node]++
	default:
		mid := (lo + hi) / 2
		t.addIn(2*node, lo, mid, n)
		t.addIn(2*node+1, mid, hi, n)
		t.most[node] = t.add[node] + max(t.most[2*node], t.most[2*node+1])
	}
}

func (t *maxTree) max(n int) float64 { return t.maxIn(1, 0, t.size, n) }

func (t *maxTree) maxIn(node, lo, hi, n int) float64 {
	switch {
	case n <= lo:
		return -1e18
	case hi <= n:
		return t.most[node]
	}
	mid := (lo + hi) / 2
	return t.add[node] + max(t.maxIn(2*node, lo, mid, n), t.maxIn(2*node+1, mid, hi, n))
}
