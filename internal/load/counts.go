package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Source is where a check was decided, as its API reports it.
type Source uint8

// Sources of a decision.
const (
	Untold    Source = iota // not reported by the API
	Owned                   // the node that was asked owns the key
	Forwarded               // another node owns the key
	Share                   // no owner answered: on_failure or on_partition, as Closed and Open
	Closed
	Open
	Unmatched // no rule matches
	Lease     // another node owns the key, and has granted a lease
	Eventual  // the node that was asked decided on its share
	DenyCache // the SDK's denial cache

	sources
)

var sourceNames = [sources]string{
	"untold", "owned", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "deny_cache",
}

// String is the source's name in the APIs, for example "forwarded".
func (s Source) String() string {
	if s < sources {
		return sourceNames[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// SourceNamed returns the source of that name, or Untold.
func SourceNamed(name string) Source { return Source(max(0, slices.Index(sourceNames[:], name))) }

// Decided counts checks that have a decision.
type Decided struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
}

// Counts counts checks by their result. The zero Counts is ready.
type Counts struct {
	By         [sources]Decided
	Failed     int64 // checks without a decision
	FirstError error // of the first of them
}

// Count adds a decision.
func (t *Counts) Count(s Source, allowed bool) {
	if s >= sources {
		s = Untold
	}
	if allowed {
		t.By[s].Allowed++
	} else {
		t.By[s].Denied++
	}
}

// Fail adds n checks that have no decision because of err.
func (t *Counts) Fail(n int64, err error) {
	t.Failed += n
	if t.FirstError == nil {
		t.FirstError = err
	}
}

// Add adds o.
func (t *Counts) Add(o *Counts) {
	for s := range t.By {
		t.By[s].Allowed += o.By[s].Allowed
		t.By[s].Denied += o.By[s].Denied
	}
	if o.Failed > 0 {
		t.Fail(o.Failed, o.FirstError)
	}
}

// Decided sums the decisions of all sources.
func (t *Counts) Decided() (sum Decided) {
	for _, d := range t.By {
		sum.Allowed += d.Allowed
		sum.Denied += d.Denied
	}
	return sum
}

// books is how many ledgers there are: enough that callers seldom wait for one, and few enough for the memory of the
// histograms.
const books = 16

// ledger has the results of some of the callers.
type ledger struct {
	mu sync.Mutex
	figures
	latency *hdrhistogram.Histogram
}

// figures are sums over calls.
type figures struct {
	counts        Counts
	calls, failed int64 // calls
	spent         time.Duration
}

// newHistogram records times of 1 ns to a minute with three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

// answered records a call.
func (l *ledger) answered(seen *Counts, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.spent += took
	l.counts.Add(seen)
	// A longer time counts as the histogram's longest.
	_ = l.latency.RecordValue(int64(min(max(took, 1), time.Minute)))
}

// unanswered records a failed call with so many checks.
func (l *ledger) unanswered(checks int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	l.counts.Fail(int64(checks), err)
}

// add adds what l has so far.
func (f *figures) add(l *ledger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.counts.Add(&l.counts)
	f.calls += l.calls
	f.failed += l.failed
	f.spent += l.spent
}

// ErrNoNode means that no node gave a decision.
var ErrNoNode = errors.New("no node answers")

// Probe calls the nodes in turn, with keys that are not the load's, until one decides a check. Otherwise it returns an error
// that wraps ErrNoNode and the nodes' errors. A load may run on a cluster that is partly down.
func Probe(ctx context.Context, target Target, prefix string, checks int) error {
	keys := make([]string, checks)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sprobe%d", prefix, i)
	}
	var errs []error
	for node := range target.Nodes() {
		var seen Counts
		err := target.NewCaller(checks).Call(ctx, node, keys, &seen)
		if err == nil {
			if seen.Failed == 0 || seen.Decided() != (Decided{}) {
				return nil
			}
			err = seen.FirstError
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%w: %w", ErrNoNode, errors.Join(errs...))
}

// Bucket has the calls with a latency below Below, in seconds, and not below that of the bucket before.
type Bucket struct {
	Below float64 `json:"below"`
	Calls int64   `json:"calls"`
}

// Histogram counts the answered calls in buckets that end at 1, 2 and 5 times a power of ten. It has no empty ones.
func (r *Result) Histogram() []Bucket {
	list := []Bucket{}
	ends, at, power := [...]int64{1, 2, 5}, 0, int64(1)
	for _, bar := range r.Latency.Distribution() {
		if bar.Count == 0 {
			continue
		}
		for bar.From >= ends[at]*power {
			if at++; at == len(ends) {
				at, power = 0, 10*power
			}
		}
		below := time.Duration(ends[at] * power).Seconds()
		if len(list) == 0 || list[len(list)-1].Below != below {
			list = append(list, Bucket{Below: below})
		}
		list[len(list)-1].Calls += bar.Count
	}
	return list
}
