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

// Source says who decided a check, as its API tells it.
type Source uint8

// Sources of a decision.
const (
	// Untold: the API does not say.
	Untold Source = iota
	// Held: the node that was asked holds the key.
	Held
	// Forwarded: another node holds the key.
	Forwarded
	// Share, Closed and Open: no owner answered; on_failure or on_partition decided.
	Share
	Closed
	Open
	// Unmatched: nothing limits the check.
	Unmatched
	// Lease: another node holds the key, and has granted units of it.
	Lease
	// Eventual: the node that was asked decided on its share.
	Eventual
	// DenyCache: the SDK remembered a denial.
	DenyCache

	sources
)

var sourceNames = [sources]string{
	"untold", "held", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "deny_cache",
}

// String is the source as the APIs spell it, for example "forwarded".
func (s Source) String() string {
	if s < sources {
		return sourceNames[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// SourceNamed returns the source of that name; Untold, the first, for one that is not known.
func SourceNamed(name string) Source { return Source(max(0, slices.Index(sourceNames[:], name))) }

// Decided counts checks that have a decision.
type Decided struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
}

// Counts counts checks by what became of them. The zero Count is ready.
type Counts struct {
	By [sources]Decided
	// Failed have no decision.
	Failed int64
	// FirstError is why the first of them has none.
	FirstError error
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

// books is how many ledgers there are: enough that callers seldom wait for one, few
// enough that ten thousand callers do not have a histogram each.
const books = 16

// ledger is where some of the callers write down what became of their calls.
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

// newHistogram keeps times of 1 ns to a minute to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

// answered records a call.
func (l *ledger) answered(seen *Counts, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.spent += took
	l.counts.Add(seen)
	// A longer time than the histogram has room for counts as its longest.
	_ = l.latency.RecordValue(int64(min(max(took, 1), time.Minute)))
}

// unanswered records a call that failed, with so many checks.
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

// ErrNobody means that no node gave a decision.
var ErrNobody = errors.New("no node answers")

// Probe asks each node once, about keys that the load leaves alone, and returns an
// error that wraps ErrNobody and says why if none of them decides a check. The other
// nodes' errors are left to the load, which may be put on a cluster that is partly down.
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
	return fmt.Errorf("%w: %w", ErrNobody, errors.Join(errs...))
}
