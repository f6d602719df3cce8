package audit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// caller makes one call after the other and records the results. Not safe for concurrent use; the run reads the records
// when it has ended.
type caller struct {
	run   *run
	rng   *rand.Rand
	nodes nodes

	records  []record
	slots    timeline
	errors   errorKinds
	rerouted int64 // calls that were sent to another node after a failure
	heard    bool  // a call was answered, if only by an error that is not the node's

	// Used again by each call.
	drawn   []int32
	pending []pending
	request sluicev1.CheckRequest
}

// pending is a check without a decision so far.
type pending struct {
	key       int32
	ambiguous uint8
}

// attempt is one call to one node for all pending checks.
type attempt struct {
	number         int
	addr           string
	first          int64 // when the first one was sent
	sent, answered int64
	failure        failure
	kind, message  string // of the failure
	decisions      []*sluicev1.Decision
}

// load checks keys until there are none or ctx ends, and finishes the call in flight then.
func (c *caller) load(ctx context.Context, from chooser) {
	for ctx.Err() == nil {
		n := c.run.cfg.Batches[c.rng.IntN(len(c.run.cfg.Batches))]
		c.drawn = from.next(c.rng, c.drawn[:0], n)
		if len(c.drawn) == 0 || !c.run.pace.wait(ctx, len(c.drawn)) {
			return
		}
		c.ask(c.drawn, from)
	}
}

// ask sends checks of the keys until all have a decision, or AnswerWithin has passed. After a failure of the node it tries
// another one at once; after all nodes have failed, it waits first.
func (c *caller) ask(keys []int32, from chooser) {
	c.pending = c.pending[:0]
	for _, k := range keys {
		c.pending = append(c.pending, pending{key: k})
	}
	c.nodes.newRound()
	a := attempt{first: c.run.now(), kind: "no node", message: "there was no address to ask"}
	a.sent, a.answered = a.first, a.first
	deadline := a.first + int64(c.run.cfg.AnswerWithin)
	for {
		addr := c.nodes.pick(c.run.now())
		if addr == "" {
			c.nodes.newRound()
			wait := time.Duration(10+c.rng.IntN(91)) * time.Millisecond
			pause.For(context.Background(), min(wait, time.Duration(deadline-c.run.now())))
		} else {
			if a.number++; a.number > 1 && addr != a.addr {
				c.rerouted++
			}
			a.addr = addr
			c.try(&a, deadline)
			c.settle(&a, from)
		}
		if len(c.pending) == 0 {
			return
		}
		if c.run.now() >= deadline {
			c.giveUp(&a)
			return
		}
	}
}

// try makes one call for all pending checks and classifies its end.
func (c *caller) try(a *attempt, deadline int64) {
	c.request.Checks = c.request.Checks[:0]
	for _, p := range c.pending {
		c.request.Checks = append(c.request.Checks, c.run.keys.checks[p.key])
	}
	a.sent = c.run.now()
	a.decisions = nil
	to, err := c.nodes.at(a.addr)
	if err != nil {
		a.answered, a.failure, a.kind, a.message = a.sent, unsent, "unsent", err.Error()
		return
	}
	f := new(fate)
	limit := max(time.Millisecond, min(c.run.cfg.Attempt, time.Duration(deadline-a.sent)))
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), fateKey{}, f), limit)
	response, err := to.client.Check(ctx, &c.request)
	cancel()
	a.answered = c.run.now()
	if a.failure, a.kind = f.judge(err); err != nil {
		a.message = err.Error()
		to.until = a.answered + int64(shun)
		return
	}
	if a.decisions = response.Decisions; len(a.decisions) != len(c.pending) {
		a.failure, a.kind = final, "malformed"
		a.message = fmt.Sprintf("asked %d checks, got %d answers", len(c.pending), len(a.decisions))
		a.decisions = nil
	}
}

// settle records the pending checks that a has decided, or that no further attempt would, and keeps the others pending.
func (c *caller) settle(a *attempt, from chooser) {
	c.heard = c.heard || a.failure == none || a.failure == final
	if a.failure != none {
		c.errors.of(a.kind, a.addr+": "+a.message).Attempts++
		c.slots.failed(a.answered - c.run.began)
		if c.run.cfg.Failed != nil && a.failure != final {
			c.run.cfg.Failed(a.addr)
		}
		if a.failure == final {
			c.giveUp(a)
			return
		}
		for i := range c.pending {
			c.pending[i].count(a.failure)
		}
		return
	}
	left := c.pending[:0]
	for i, d := range a.decisions {
		p := c.pending[i]
		why, kind, message := judgeDecision(d)
		if why == none {
			c.keep(a, p, d)
			if o := c.records[len(c.records)-1]; o.outcome == denied && o.byOwner() {
				from.denied(p.key)
			}
			continue
		}
		a.kind, a.message = kind, message
		c.errors.of(kind, a.addr+": "+message).Attempts++
		c.slots.failed(a.answered - c.run.began)
		p.count(why)
		if why == final {
			c.keep(a, p, nil)
			continue
		}
		left = append(left, p)
	}
	c.pending = left
}

// count counts an attempt that may have been charged.
func (p *pending) count(f failure) {
	if f == ambiguous && p.ambiguous < 255 {
		p.ambiguous++
	}
}

// judgeDecision classifies a decision with an error.
func judgeDecision(d *sluicev1.Decision) (f failure, kind, message string) {
	switch e := d.GetError(); {
	case e == nil && d.GetSource() == sluicev1.Source_SOURCE_UNMATCHED:
		return final, "unmatched", "no rule of the server applies; see --inline-limits and --descriptor-key"
	case e == nil:
		return none, "", ""
	case e.Code == sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE:
		return ambiguous, "no owner", e.Message
	default:
		kind = strings.ToLower(strings.TrimPrefix(e.Code.String(), "ERROR_CODE_"))
		return final, strings.ReplaceAll(kind, "_", " "), strings.TrimSpace(e.Field + " " + e.Message)
	}
}

// giveUp records every pending check as failed.
func (c *caller) giveUp(a *attempt) {
	a.answered = c.run.now()
	for _, p := range c.pending {
		c.keep(a, p, nil)
	}
	c.pending = c.pending[:0]
}

// keep records a check that a has ended, with its decision, if any.
func (c *caller) keep(a *attempt, p pending, d *sluicev1.Decision) {
	r := record{first: a.first, sent: a.sent, answered: a.answered, key: p.key, ambiguous: p.ambiguous}
	switch {
	case d == nil:
		c.errors.of(a.kind, a.addr+": "+a.message).Final++
	case d.Allowed:
		r.outcome, r.source = admitted, uint8(d.Source)
	default:
		r.outcome, r.source = denied, uint8(d.Source)
	}
	c.records = append(c.records, r)
	c.run.counts.count(&r)
	c.slots.answered(r.answered-c.run.began, r.answered-r.first)
	if c.run.log == nil {
		return
	}
	line := Check{
		Key: c.run.keys.name(p.key), Spec: c.run.keys.spec(p.key), First: r.first, Sent: r.sent, Answered: r.answered,
		Node: a.addr, Decision: outcomeNames[r.outcome], Ambiguous: int(p.ambiguous), Attempts: a.number,
	}
	if d != nil {
		line.Source, line.Owner = sourceName(d.Source), d.Owner
	}
	if d == nil || a.number > 1 {
		line.Error = a.message
	}
	c.run.log.write(&line)
}

// sourceName is the lower-case name of a source, for example "forwarded".
func sourceName(s sluicev1.Source) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "SOURCE_"))
}

// failure classifies an attempt without a decision.
type failure uint8

const (
	none      failure = iota // there is a decision
	unsent                   // the call was not sent; nothing was charged
	rejected                 // the node answered UNAVAILABLE; nothing was charged
	ambiguous                // the call was sent, and may have been processed
	final                    // another node would give the same error
)

// fate is how far a call came. The status UNAVAILABLE does not tell whether the node was unreachable, rejected the call, or
// was lost while it decided. gRPC's reading goroutine may still write it when the call has returned.
type fate struct{ sent, answered atomic.Bool }

type fateKey struct{}

// watcher records the fate of each call whose context has one.
type watcher struct{}

func (watcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
	f, ok := ctx.Value(fateKey{}).(*fate)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.Begin:
		// Also when gRPC retries a call that the node has certainly not processed.
		f.sent.Store(false)
	case *stats.OutPayload:
		f.sent.Store(true)
	case *stats.InTrailer:
		f.answered.Store(true)
	}
}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watcher) HandleConn(context.Context, stats.ConnStats)                       {}

// overloaded reports whether err says that the node is overloaded.
func overloaded(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(d any) bool {
		e, ok := d.(*sluicev1.Error)
		return ok && e.Code == sluicev1.ErrorCode_ERROR_CODE_OVERLOADED
	})
}

// judge classifies err, of a call with this fate, and names the kind of error.
func (f *fate) judge(err error) (failure, string) {
	code := status.Code(err)
	switch {
	case code == codes.OK:
		return none, ""
	case !f.sent.Load() && !f.answered.Load():
		return unsent, "unsent"
	case code == codes.Unavailable && f.answered.Load() && overloaded(err):
		return final, "overloaded"
	case code == codes.Unavailable && f.answered.Load():
		return rejected, "unavailable"
	case code == codes.Unavailable:
		return ambiguous, "connection lost"
	case code == codes.DeadlineExceeded:
		return ambiguous, "deadline exceeded"
	}
	switch code {
	case codes.Canceled, codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss:
		return ambiguous, code.String()
	}
	return final, code.String()
}
