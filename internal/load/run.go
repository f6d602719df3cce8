// Package load puts a load on a cluster and counts the decisions: callers that each make one call after the other, with keys
// drawn evenly or with a skew. It decides which keys are checked, when, and what is recorded. A Target makes the calls;
// package api has one for each of sluice's APIs.
//
// Run owns a goroutine per caller and waits for all.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// Target is a cluster with one API. It is safe for concurrent use.
type Target interface {
	// Nodes is the number of nodes, at least 1.
	Nodes() int
	// NewCaller returns a caller whose calls have so many checks.
	NewCaller(checks int) Caller
}

// Caller makes one call at a time.
type Caller interface {
	// Call sends checks of keys, as many as NewCaller was given, to node and adds the results to seen; with an error it adds
	// nothing. It ends soon after ctx does, and in a bounded time anyway.
	Call(ctx context.Context, node int, keys []string, seen *Counts) error
}

// Work is a load. Validate has the bounds of its fields.
type Work struct {
	// Callers call concurrently; each call has Batch checks.
	Callers, Batch int
	// Rate is how many checks all callers begin in a second; 0: each caller makes its next call at once. With a rate, latency
	// counts from when a call was due, so that it includes the time that the call waited for the one before.
	Rate float64
	// Keys draws the key of each check; see Name for Prefix.
	Keys   *Pickers
	Prefix string
	// Nodes are the nodes to call, each time a random one; nil: all of them.
	Nodes []int
	// Accepts reports whether a check of key may go to node; otherwise another key is drawn, so it must accept some key for
	// each node. Nil accepts all.
	Accepts func(node int, key uint32) bool
	// Seed makes the choice of keys and nodes repeatable.
	Seed uint64
	// Calls that end in Duration after Warmup are recorded.
	Warmup, Duration time.Duration
	// Progress, if set, is called each second, by one goroutine.
	Progress func(Progress)
}

// MaxCallers is the most callers of a load.
const MaxCallers = 100_000

// Validate names the first invalid field.
func (w *Work) Validate() error {
	switch {
	case w.Callers < 1 || w.Callers > MaxCallers:
		return fmt.Errorf("concurrency: %d; want 1 to %d", w.Callers, MaxCallers)
	case w.Batch < 1 || w.Batch > MaxBatch:
		return fmt.Errorf("batch: %d; want 1 to %d", w.Batch, MaxBatch)
	case !(w.Rate >= 0 && w.Rate <= 1e9):
		return fmt.Errorf("rate: %v; want 0 to 1e9", w.Rate)
	case w.Keys == nil:
		return errors.New("keys: required")
	case w.Warmup < 0:
		return fmt.Errorf("warmup: %v; want 0 or more", w.Warmup)
	case w.Duration <= 0:
		return fmt.Errorf("duration: %v; want more than 0", w.Duration)
	}
	return nil
}

// MaxBatch is the most checks that one call of sluice's own API may have.
const MaxBatch = 10_000

// Progress is the result of a second.
type Progress struct {
	Elapsed    time.Duration // since the beginning
	Warming    bool          // nothing is recorded yet
	Decided    Decided
	Failed     int64         // checks without a decision
	Latency    time.Duration // of its calls, on average; 0 if there were none
	FirstError error         // of the whole run
}

// Result is the result of the recorded time.
type Result struct {
	Counts
	// Took is less than Work.Duration if the run was stopped.
	Took time.Duration
	// FailedCalls got no response; Failed includes their checks.
	Calls, FailedCalls int64
	// Latency of the answered calls in ns.
	Latency *hdrhistogram.Histogram
}

// grace is how long calls that are in flight at the end, or when the run is stopped, may go on.
const grace = 2 * time.Second

// failurePause is how long a caller waits after a failed call, so that it does not overload a node that rejects at once.
const failurePause = 10 * time.Millisecond

// Run puts w on target until its time is over or ctx ends, and returns the result so far. Failed calls are part of it, and so
// are calls in flight when ctx ended: nodes may have charged them.
// The error is that of Validate.
func Run(ctx context.Context, target Target, w Work) (*Result, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	r := &run{target: target, work: &w, warm: newLedgers(), kept: newLedgers()}
	began := time.Now()
	r.open = began.Add(w.Warmup)
	r.shut = r.open.Add(w.Duration)

	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	late := time.AfterFunc(w.Warmup+w.Duration+grace, cancel)
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { late.Reset(min(grace, time.Until(r.shut.Add(grace)))) })()
	var callers, watching sync.WaitGroup
	for i := range w.Callers {
		callers.Go(func() { r.call(ctx, calling, i) })
	}
	done := make(chan struct{})
	if w.Progress != nil {
		watching.Go(func() { r.watch(began, done) })
	}
	callers.Wait()
	stopped := r.shut
	// Callers without a further due call end early too.
	if now := time.Now(); ctx.Err() != nil && now.Before(stopped) {
		stopped = now
	}
	close(done)
	watching.Wait()
	return r.result(max(0, stopped.Sub(r.open))), nil
}

// run is shared by the callers of a load.
type run struct {
	target     Target
	work       *Work
	open, shut time.Time // of the recorded time
	warm, kept []ledger  // of the warm-up, and of the recorded time
}

func newLedgers() []ledger {
	l := make([]ledger, books)
	for i := range l {
		l[i].latency = newHistogram()
	}
	return l
}

// call runs one caller until ctx ends, with calls that end with calling.
func (r *run) call(ctx, calling context.Context, number int) {
	w := r.work
	seed := w.Seed<<20 + uint64(number)
	pick, random := w.Keys.New(seed), rand.New(rand.NewPCG(seed, 3)) // #nosec G404 -- of a load
	caller := r.target.NewCaller(w.Batch)
	keys := make([]string, w.Batch)
	var names []byte
	warm, kept := &r.warm[number%books], &r.kept[number%books]
	var every time.Duration
	due := time.Now()
	if w.Rate > 0 {
		every = time.Duration(float64(w.Callers) * float64(w.Batch) / w.Rate * float64(time.Second))
		due = due.Add(time.Duration(random.Float64() * float64(every)))
	}
	for {
		node := random.IntN(r.target.Nodes())
		if len(w.Nodes) > 0 {
			node = w.Nodes[random.IntN(len(w.Nodes))]
		}
		names = names[:0]
		for range keys {
			key := pick.Pick()
			for w.Accepts != nil && !w.Accepts(node, key) {
				key = pick.Pick()
			}
			names = appendName(names, w.Prefix, key)
		}
		// All names of a call are parts of one string: one allocation.
		text, length := string(names), len(names)/len(keys)
		for i := range keys {
			keys[i] = text[i*length : (i+1)*length]
		}
		begin := time.Now()
		if every > 0 {
			if due.After(r.shut) || !pause.For(ctx, due.Sub(begin)) {
				return
			}
			begin, due = due, due.Add(every)
		}
		if !begin.Before(r.shut) || ctx.Err() != nil {
			return
		}
		var seen Counts
		err := caller.Call(calling, node, keys, &seen)
		end := time.Now()
		if end.After(r.shut) || calling.Err() != nil {
			return // the result of a cancelled call is unknown
		}
		book := kept
		if end.Before(r.open) {
			book = warm
		}
		if err == nil {
			book.answered(&seen, end.Sub(begin))
			continue
		}
		book.unanswered(len(keys), err)
		pause.For(ctx, failurePause)
	}
}

// watch reports the progress of each second, until done.
func (r *run) watch(began time.Time, done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last figures
	for {
		select {
		case <-tick.C:
		case <-done:
			return
		}
		var now figures
		for i := range r.kept {
			now.add(&r.warm[i])
			now.add(&r.kept[i])
		}
		all, before := now.counts.Decided(), last.counts.Decided()
		p := Progress{
			Elapsed: time.Since(began), Warming: time.Now().Before(r.open), Decided: Decided{all.Allowed - before.Allowed, all.Denied - before.Denied},
			Failed: now.counts.Failed - last.counts.Failed, FirstError: now.counts.FirstError,
		}
		if calls := now.calls - last.calls; calls > 0 {
			p.Latency = (now.spent - last.spent) / time.Duration(calls)
		}
		r.work.Progress(p)
		last = now
	}
}

// result adds up the recorded results.
func (r *run) result(took time.Duration) *Result {
	var sum figures
	latency := newHistogram()
	for i := range r.kept {
		sum.add(&r.kept[i])
		latency.Merge(r.kept[i].latency)
	}
	return &Result{Counts: sum.counts, Took: took, Calls: sum.calls, FailedCalls: sum.failed, Latency: latency}
}
