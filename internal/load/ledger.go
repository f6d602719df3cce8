package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

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
	tally         Tally
	calls, failed int64 // calls
	spent         time.Duration
}

// newHistogram keeps times of 1 ns to a minute to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

// answered records a call.
func (l *ledger) answered(seen *Tally, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.spent += took
	l.tally.Add(seen)
	// A longer time than the histogram has room for counts as its longest.
	_ = l.latency.RecordValue(int64(min(max(took, 1), time.Minute)))
}

// unanswered records a call that failed, with so many checks.
func (l *ledger) unanswered(checks int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	l.tally.Fail(int64(checks), err)
}

// add adds what l has so far.
func (f *figures) add(l *ledger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.tally.Add(&l.tally)
	f.calls += l.calls
	f.failed += l.failed
	f.spent += l.spent
}
