package audit

import (
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/audit/model"
)

// Progress is the state of a running audit.
type Progress struct {
	// Elapsed is the time since the beginning of the load, All the longest that it takes.
	Elapsed, All time.Duration
	// Checks that ended, and those of them without an answer.
	Checks, Errors int64
	// Over is the over-admission that is certain already. The report may find more.
	Over Keys
	// Exhausted of Keys were denied by an owner, once at least.
	Exhausted, Keys int
}

// keyCounts counts the checks of each key while an audit runs, for Config.Progress; nil counts nothing.
type keyCounts struct {
	checks, errors atomic.Int64
	admitted       []atomic.Int32 // by key
	denied         []atomic.Bool
}

func newKeyCounts(keys int) *keyCounts {
	return &keyCounts{admitted: make([]atomic.Int32, keys), denied: make([]atomic.Bool, keys)}
}

// count counts a check that ended.
func (t *keyCounts) count(r *record) {
	if t == nil {
		return
	}
	t.checks.Add(1)
	switch {
	case r.outcome == failed:
		t.errors.Add(1)
	case r.outcome == admitted:
		t.admitted[r.key].Add(1)
	case r.byOwner():
		t.denied[r.key].Store(true)
	}
}

// watch reports the progress each second, until done.
func (r *run) watch(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.cfg.Progress(r.progress())
		case <-done:
			return
		}
	}
}

// progress takes each admission for one at any time since the beginning.
func (r *run) progress() Progress {
	t := r.counts
	p := Progress{
		Elapsed: time.Since(r.start), All: r.cfg.Duration, Checks: t.checks.Load(), Errors: t.errors.Load(), Keys: r.keys.len(),
	}
	if r.cfg.Exhaust.Denials > 0 {
		p.All += r.cfg.Exhaust.Within
	}
	now := r.now()
	for i, s := range r.cfg.Specs {
		for key := r.keys.from[i]; key < r.keys.from[i+1]; key++ {
			if t.denied[key].Load() {
				p.Exhausted++
			}
			n := t.admitted[key].Load()
			if int64(n) <= s.Limit.Count {
				continue
			}
			spans := make([]model.Span, n)
			for j := range spans {
				spans[j] = model.Span{From: r.began, To: now}
			}
			p.Over.add(r.models[i].Over(r.began, spans))
		}
	}
	return p
}
