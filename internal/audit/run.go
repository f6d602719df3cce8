package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/audit/model"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNoNode means that no node answered within AnswerWithin at the beginning, or none ever answered a check.
var ErrNoNode = errors.New("no node answers")

// run is what the callers of an audit share.
type run struct {
	cfg    Config
	models []*model.Model
	name   string // the prefix of its keys
	keys   *keys
	pace   *pace
	counts *keyCounts // nil without Config.Progress
	log    *logWriter
	start  time.Time
	began  int64 // start, in Unix ns
}

// now is the time in Unix ns by a monotonic clock.
func (r *run) now() int64 { return r.began + int64(time.Since(r.start)) }

// Run audits until c.Duration has passed or ctx ends, and returns the report. It finishes calls in flight then, for
// AnswerWithin at most. The report is nil when the Config is invalid or no node answers at the beginning.
func Run(ctx context.Context, c Config) (*Report, error) {
	c, models, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64() // #nosec G404 -- of a load
	}
	r := &run{cfg: c, models: models, name: fmt.Sprintf("%08x", rand.Uint32()), log: newLogWriter(c.Log), start: time.Now()} // #nosec G404 -- a name, no secret
	r.began = r.start.UnixNano()
	r.keys = newKeys(&r.cfg, r.name)
	callers := make([]*caller, c.Callers)
	for i := range callers {
		rng := rand.New(rand.NewPCG(c.Seed, uint64(i))) // #nosec G404 -- of a load
		callers[i] = &caller{run: r, rng: rng, nodes: nodes{targets: c.Targets, options: dialOptions(c.DialOptions), rng: rng}}
		defer callers[i].nodes.close()
	}
	if err := callers[0].probe(ctx); err != nil {
		return nil, err
	}

	// The run begins with the load.
	r.start = time.Now()
	r.began = r.start.UnixNano()
	r.pace = newPace(c.Rate)
	done, watching := make(chan struct{}), sync.WaitGroup{}
	if c.Progress != nil {
		r.counts = newKeyCounts(r.keys.len())
		watching.Go(func() { r.watch(done) })
	}
	loading, stop := context.WithTimeout(ctx, c.Duration)
	loadAll(loading, callers, anyKey(r.keys.len()))
	stop()
	left := 0
	if c.Exhaust.Denials > 0 {
		e := newExhaust(r.keys.len(), c.Exhaust.Denials)
		exhausting, stop := context.WithTimeout(ctx, c.Exhaust.Within)
		loadAll(exhausting, callers, e)
		stop()
		left = e.left()
	}
	close(done)
	watching.Wait()
	report := r.report(callers)
	report.Unexhausted = left
	if report.Checks > 0 && !slices.ContainsFunc(callers, func(c *caller) bool { return c.heard }) {
		err = fmt.Errorf("%w: %d checks were sent", ErrNoNode, report.Checks)
	}
	return report, errors.Join(err, r.log.close())
}

// loadAll runs load on all callers and waits.
func loadAll(ctx context.Context, callers []*caller, from chooser) {
	var running sync.WaitGroup
	for _, c := range callers {
		running.Go(func() { c.load(ctx, from) })
	}
	running.Wait()
}

// probe returns as soon as any node responds.
func (c *caller) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.run.cfg.AnswerWithin)
	defer cancel()
	var cause error
	for {
		addr := c.nodes.pick(c.run.now())
		if addr == "" {
			c.nodes.newRound()
			if !pause.For(ctx, 50*time.Millisecond) {
				return fmt.Errorf("%w: %w", ErrNoNode, cmp.Or(cause, errors.New("there is no address to ask")))
			}
			continue
		}
		to, err := c.nodes.at(addr)
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, c.run.cfg.Attempt)
			_, err = to.client.Nodes(attempt, &sluicev1.NodesRequest{})
			cancel()
			switch status.Code(err) {
			case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unimplemented: // the last: another port than that of the API
			default:
				c.nodes.newRound()
				return nil
			}
		}
		if cause == nil || !over(ctx) {
			cause = fmt.Errorf("%s: %w", addr, err)
		}
	}
}

// Gap is a time in which checks of a key waited for an owner's decision.
type Gap struct {
	Key    string  `json:"key"`
	Length Seconds `json:"length"`
	// At is when it began, since the beginning of the run.
	At Seconds `json:"at"`
	// Ended: an owner's decision ended it. Otherwise its last check ended without one, and none was in flight then.
	Ended bool `json:"ended"`
}

// span is a gap in Unix ns.
type span struct {
	from, to int64
	ended    bool
}

// longestGap returns the longest time that checks of one key waited for an owner. A gap begins when a check is sent and
// ends with an owner's decision. When the check ends without one (an error, or a fallback), the gap goes on while further
// checks have none either, and the decision of a check that was sent meanwhile ends it. If no check was in flight when the
// next decided check was sent, the gap ended with the last undecided one.
//
// It sorts the records by when they were answered.
func longestGap(records []record) span {
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.answered, b.answered) })
	var longest, open span
	waiting := false
	longer := func(s span) {
		if s.to-s.from > longest.to-longest.from {
			longest = s
		}
	}
	for i := range records {
		r := &records[i]
		if !r.byOwner() {
			if !waiting {
				open.from, waiting = r.first, true
			}
			open.from, open.to = min(open.from, r.first), r.answered
			longer(open)
			continue
		}
		from := r.first
		if waiting && r.first <= open.to {
			from = min(from, open.from)
		}
		waiting = false
		longer(span{from, r.answered, true})
	}
	return longest
}
