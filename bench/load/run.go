// Package load asks a limiter, or the bare transport, as fast as its callers
// can: each waits for its answer and asks again. It decides which keys are asked,
// of which node, and what is recorded; how a call is written on the wire is the
// Target's.
//
// Run owns a goroutine per caller and waits for all.
package load

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Target is what is asked.
type Target interface {
	// Nodes is how many nodes can be asked.
	Nodes() int
	// NewCaller returns a caller whose calls have so many checks.
	NewCaller(domain string, checks int) Caller
}

// Caller makes one call at a time, with messages of its own that it uses again.
type Caller interface {
	// Call asks node about keys, as many as the caller was made for, and adds
	// what it learnt to seen.
	Call(ctx context.Context, node int, keys []string, seen *Tally) error
}

// Tally counts answers to checks.
type Tally struct {
	Allowed   int64 `json:"allowed"`
	Denied    int64 `json:"denied"`
	Failed    int64 `json:"failed"`
	Forwarded int64 `json:"forwarded"`
	// Fallback are those that on_failure decided because no holder answered.
	Fallback int64 `json:"fallback"`
}

func (t *Tally) add(o *Tally) {
	t.Allowed += o.Allowed
	t.Denied += o.Denied
	t.Failed += o.Failed
	t.Forwarded += o.Forwarded
	t.Fallback += o.Fallback
}

// AnyNode is a Work's Node for a random one at each call.
const AnyNode = -1

// Work is a load.
type Work struct {
	Domain          string
	Callers, Checks int
	// Rate is how many calls are begun in a second by all callers; 0 means each begins when it has
	// its last answer. With a rate, latency is counted from when a call should have begun.
	Rate float64
	Keys *Keys
	Pick Pickers
	// Node is asked by every call; AnyNode means a random one.
	Node int
	Seed uint64
	// Calls that end in Window after Warmup are recorded.
	Warmup, Window time.Duration
	// Edge is called when the window opens and when it closes.
	Edge func() error
}

// Result is what a load did within its window.
type Result struct {
	Tally
	Window time.Duration
	Calls  int64
	// FailedCalls had no answer. They are not in Calls, nor their checks in Tally.
	FailedCalls int64
	// FirstError is why the first of them failed.
	FirstError error
	// Latency of calls in ns.
	Latency *hdrhistogram.Histogram
}

// Checks is how many checks were answered.
func (r *Result) Checks() int64 { return r.Allowed + r.Denied + r.Failed }

// newHistogram keeps a call's time to 0.5 µs below a millisecond and to 1/1000 above.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1000, int64(time.Minute), 3)
}

// Run puts w on target until its window is over. Failed calls are part of the
// result and no error.
func Run(ctx context.Context, target Target, w Work) (*Result, error) {
	// What earlier loads left is not to be collected during this one.
	runtime.GC()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open := time.Now().Add(w.Warmup)
	shut := open.Add(w.Window)
	all := make([]Result, w.Callers)
	var callers sync.WaitGroup
	for i := range all {
		r := &all[i]
		r.Latency = newHistogram()
		callers.Go(func() { r.call(ctx, target, &w, uint64(i), open, shut) })
	}
	err := edges(ctx, &w, open, shut)
	if err != nil {
		cancel()
	}
	// Calls under way may still be answered, but not for ever.
	late := time.AfterFunc(5*time.Second, cancel)
	defer late.Stop()
	callers.Wait()
	if err != nil {
		return nil, err
	}
	sum := &Result{Window: w.Window, Latency: newHistogram()}
	for i := range all {
		sum.merge(&all[i])
	}
	return sum, nil
}

// edges calls w.Edge at both ends of the window.
func edges(ctx context.Context, w *Work, open, shut time.Time) error {
	for _, at := range []time.Time{open, shut} {
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if w.Edge != nil {
			if err := w.Edge(); err != nil {
				return err
			}
		}
	}
	return nil
}

// call is one caller.
func (r *Result) call(ctx context.Context, target Target, w *Work, number uint64, open, shut time.Time) {
	caller := target.NewCaller(w.Domain, w.Checks)
	seed := w.Seed<<16 + number
	pick := w.Pick.New(seed)
	random := rand.New(rand.NewPCG(seed, 3))
	keys := make([]string, w.Checks)
	due := time.Now()
	var every time.Duration
	if w.Rate > 0 {
		every = time.Duration(float64(w.Callers) / w.Rate * float64(time.Second))
		due = due.Add(time.Duration(random.Float64() * float64(every)))
	}
	for {
		node := w.Node
		if node == AnyNode {
			node = random.IntN(target.Nodes())
		}
		for i := range keys {
			keys[i] = w.Keys.At(pick.Pick(node))
		}
		var seen Tally
		start := time.Now()
		if every > 0 {
			time.Sleep(due.Sub(start))
			start, due = due, due.Add(every)
		}
		if !start.Before(shut) || ctx.Err() != nil {
			return
		}
		err := caller.Call(ctx, node, keys, &seen)
		end := time.Now()
		if end.Before(open) || end.After(shut) {
			continue
		}
		if err != nil {
			r.FailedCalls++
			if r.FirstError == nil {
				r.FirstError = err
			}
			continue
		}
		r.Calls++
		r.add(&seen)
		// A call of over a minute cannot end in a window.
		_ = r.Latency.RecordValue(int64(end.Sub(start)))
	}
}

func (r *Result) merge(o *Result) {
	r.Calls += o.Calls
	r.FailedCalls += o.FailedCalls
	if r.FirstError == nil {
		r.FirstError = o.FirstError
	}
	r.add(&o.Tally)
	r.Latency.Merge(o.Latency)
}
