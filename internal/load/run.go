// Package load puts a load on a cluster and counts what comes back: callers that each
// wait for their answer and ask again, about keys drawn evenly or with a skew. It
// decides which keys are asked, when, and what is recorded; how a call is written on
// the wire is the Target's, and package API has one for each of sluice's APIs.
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

	"github.com/sluice-project/sluice/internal/pause"
)

// Target is what is asked, through one API. It is safe for concurrent use.
type Target interface {
	// Nodes is how many nodes there are to choose from, at least 1.
	Nodes() int
	// NewCaller returns a caller whose calls have so many checks.
	NewCaller(checks int) Caller
}

// Caller makes one call at a time.
type Caller interface {
	// Call asks node about keys, as many as the caller was made for, and adds what it learnt to
	// seen. With an error it has learnt nothing. It ends soon after ctx does, and in a
	// bounded time anyway.
	Call(ctx context.Context, node int, keys []string, seen *Counts) error
}

// Work is a load. See Validate for what its fields may be.
type Work struct {
	// Callers ask at the same time; each call has Batch checks.
	Callers, Batch int
	// Rate is how many checks are begun in a second by all callers; 0: each caller asks again as
	// soon as it has its answer. With a rate, latency counts from when a call was due, so that
	// a slow answer shows in all the calls that had to wait for it.
	Rate float64
	// Keys draws the key of each check; see Name for Prefix.
	Keys   *Pickers
	Prefix string
	// Nodes are the nodes of the target to ask; nil: all of them. Each call goes to a random one.
	Nodes []int
	// Accepts reports whether a check of key may go to node. Another key is drawn until it does, so it must accept some key for each node. Nil accepts
	// all.
	Accepts func(node int, key uint32) bool
	// Seed makes the choice of keys and nodes repeatable.
	Seed uint64
	// Calls that are answered in Duration after Warmup are recorded.
	Warmup, Duration time.Duration
	// Progress, if set, is called each second, by one goroutine.
	Progress func(Progress)
}

// MaxCallers is the most callers of a load.
const MaxCallers = 100_000

// Validate says which field is wrong.
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

// Progress is what a second brought.
type Progress struct {
	// Elapsed since the beginning; Warming says that none of it is recorded yet.
	Elapsed time.Duration
	Warming bool
	// Checks of this second that have a decision, and those that have none.
	Decided Decided
	Failed  int64
	// Latency of its calls, on average; 0 if there were none.
	Latency time.Duration
	// FirstError is of the whole run.
	FirstError error
}

// Result is what a load did in the time that was recorded.
type Result struct {
	Counts
	// Took is how long was recorded: less than Work.Duration if the run was stopped.
	Took time.Duration
	// Calls were answered, FailedCalls were not; their checks are among Count.Failed.
	Calls, FailedCalls int64
	// Latency of the answered calls in ns.
	Latency *hdrhistogram.Histogram
}

// grace is how long calls that are under way at the end may go on.
const grace = 2 * time.Second

// failurePause is how long a caller rests when a call has failed, so that a node which rejects at once
// is not hammered by nothing but rejections.
const failurePause = 10 * time.Millisecond

// Run puts w on target until its time is over, or ctx ends: then the result is what there is so
// far. Failed calls are part of the result. The error is about w.
func Run(ctx context.Context, target Target, w Work) (*Result, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	r := &run{target: target, work: &w, warm: newLedgers(), kept: newLedgers()}
	began := time.Now()
	r.open = began.Add(w.Warmup)
	r.shut = r.open.Add(w.Duration)

	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(w.Warmup+w.Duration+grace, cancel)
	defer late.Stop()
	var callers, watching sync.WaitGroup
	for i := range w.Callers {
		callers.Go(func() { r.call(calling, i) })
	}
	done := make(chan struct{})
	if w.Progress != nil {
		watching.Go(func() { r.watch(began, done) })
	}
	callers.Wait()
	stopped := r.shut
	// Callers that have nothing due any more end early too.
	if now := time.Now(); ctx.Err() != nil && now.Before(stopped) {
		stopped = now
	}
	close(done)
	watching.Wait()
	return r.result(max(0, stopped.Sub(r.open))), nil
}

// run is what the callers of a load share.
type run struct {
	target     Target
	work       *Work
	open, shut time.Time
	// warm are the books of the warm-up, kept those of what counts.
	warm, kept []ledger
}

func newLedgers() []ledger {
	l := make([]ledger, books)
	for i := range l {
		l[i].latency = newHistogram()
	}
	return l
}

// call is one caller.
func (r *run) call(ctx context.Context, number int) {
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
		// The names of a call are parts of one string: one allocation for all.
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
		err := caller.Call(ctx, node, keys, &seen)
		end := time.Now()
		if end.After(r.shut) || ctx.Err() != nil {
			return // nobody knows what a call that was cut off would have been
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

// watch tells each second what it brought, until done.
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

// result adds up what counts.
func (r *run) result(took time.Duration) *Result {
	var sum figures
	latency := newHistogram()
	for i := range r.kept {
		sum.add(&r.kept[i])
		latency.Merge(r.kept[i].latency)
	}
	return &Result{Counts: sum.counts, Took: took, Calls: sum.calls, FailedCalls: sum.failed, Latency: latency}
}
