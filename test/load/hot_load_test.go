package load

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit/model"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// answer is a check: when it was sent and when its answer came, since the load began.
type answer struct {
	from, to        time.Duration
	node            int
	failed, allowed bool
	source          sluicev1.Source
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
	admitted        []answer // by the time of their answers
	asked           int
	perNodeAdmitted []int
	denied          []int // by node
	denials, failed int
	latencies       []time.Duration
	sources         map[sluicev1.Source]int
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
	var all []answer
	var mu sync.Mutex
	var work sync.WaitGroup
	began := time.Now()
	if l.during != nil {
		work.Go(l.during)
	}
	for _, n := range l.nodes {
		n.API() // connects
	}
	for c := range l.callers {
		work.Go(func() {
			own := l.caller(uint64(c), began, d)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	work.Wait()
	n := len(l.nodes)
	r := &hotResult{took: time.Since(began), asked: len(all), denied: make([]int, n), perNodeAdmitted: make([]int, n), sources: map[sluicev1.Source]int{}}
	slices.SortFunc(all, func(a, b answer) int { return cmp.Compare(a.to, b.to) })
	for _, a := range all {
		if a.failed {
			r.failed++
			continue
		}
		r.latencies = append(r.latencies, a.to-a.from)
		r.sources[a.source]++
		if a.allowed {
			r.admitted = append(r.admitted, a)
			r.perNodeAdmitted[a.node]++
		} else {
			r.denials++
			r.denied[a.node]++
		}
	}
	slices.Sort(r.latencies)
	return r
}

// caller is one caller's part.
func (l hotLoad) caller(c uint64, began time.Time, d time.Duration) (own []answer) {
	r := rand.New(rand.NewPCG(c, 7))
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
		at := r.IntN(len(l.nodes))
		if l.pick != nil {
			at = l.pick(r)
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
		res, err := l.nodes[at].API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
		cancel()
		x := answer{from: from, to: time.Since(began), node: at, failed: err != nil || res.Decisions[0].Error != nil}
		if !x.failed {
			x.source, x.allowed = res.Decisions[0].Source, res.Decisions[0].Allowed
		}
		own = append(own, x)
	}
	return own
}

func limitsOf(l *sluicev1.Limit) []*sluicev1.Limit {
	if l == nil {
		return nil
	}
	return []*sluicev1.Limit{l}
}

// over returns by how much admissions exceed a bucket of rate units, filled at rate a second, in the worst interval: those that
// were sent and answered within it, so were decided within it for sure.
func (r *hotResult) over(t *testing.T, rate int64) int64 {
	t.Helper()
	m, err := model.New(bucket.Limit{Algorithm: bucket.TokenBucket, Count: rate, Period: time.Second}, model.Clocks{})
	if err != nil {
		t.Fatal(err)
	}
	var spans []model.Span
	for _, a := range r.admitted {
		spans = append(spans, model.Span{From: int64(a.from), To: int64(a.to)})
	}
	return m.Over(0, spans)
}
