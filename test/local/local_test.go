// Package local compares limiter/local with what a node decides. It is apart because local must not import a node.
package local

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/limiter/local"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/onenode"
)

// TestAsANode: over random rules, verbs, amounts and times, every field of every decision is that of a node that is alone. Pools
// are left out: they admit nothing here.
func TestAsANode(t *testing.T) {
	seen := make(map[string]int)
	rapid.Check(t, func(r *rapid.T) {
		s := genScenario.Draw(r, "scenario")
		var err error
		synctest.Test(t, func(*testing.T) { err = s.run(seen) })
		if err != nil {
			r.Fatal(err)
		}
	})
	for _, what := range []string{
		"allowed", "allowed_soft", "allowed_shadow", "denied", "denied_never", "denied_by_others",
		"delay", "response", "source unmatched", "error invalid", "error unknown domain", "limit_index", "retry_after", "burst",
	} {
		if seen[what] == 0 {
			t.Errorf("no decision had %s, of %v", what, seen)
		}
	}
}

// scenario is what is asked of a local limiter and of a node.
type scenario struct {
	rules string
	// knownDomains: checks of unknown domains are errors.
	knownDomains bool
	start        time.Duration
	steps        []step
}

// step is a call after some time, perhaps under other rules.
type step struct {
	sleep  time.Duration
	rules  string
	atomic bool
	checks []limit.Check
}

// run returns an error if the answers differ, and counts in seen what they had.
func (s *scenario) run(seen map[string]int) error {
	time.Sleep(s.start)
	p, err := newPair(s)
	if err != nil {
		return err
	}
	for i := range s.steps {
		if err := p.step(&s.steps[i], seen); err != nil {
			return fmt.Errorf("step %d: %w, under\n%s", i, err, s.rules)
		}
	}
	return nil
}

// pair is a local limiter and a node of the same rules.
type pair struct {
	local *local.Limiter
	node  *onenode.Node
	api   *limiter.Limiter
}

func newPair(s *scenario) (*pair, error) {
	node, err := onenode.New(time.Now().UnixNano())
	if err != nil {
		return nil, err
	}
	hasher, err := limiter.NewHasher([]byte(strings.Repeat("s", limiter.MinSecret)))
	if err != nil {
		return nil, err
	}
	api, err := limiter.New(limiter.Config{
		Decider: node, Cluster: struct{ limiter.Cluster }{}, Hasher: hasher,
		RejectUnknownDomains: s.knownDomains,
	})
	if err != nil {
		return nil, err
	}
	var opts []local.Option
	if s.knownDomains {
		opts = append(opts, local.WithKnownDomainsOnly())
	}
	l, err := local.New(local.Text(s.rules), opts...)
	if err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, s.rules)
	}
	p := &pair{l, node, api}
	return p, p.load(s.rules)
}

func (p *pair) load(yaml string) error {
	set, err := rules.Parse([]rules.File{{Name: "rules", Data: []byte(yaml)}}, rules.Options{})
	if err != nil {
		return err
	}
	p.api.SetRules(set)
	return p.local.Reload(local.Text(yaml))
}

func (p *pair) step(s *step, seen map[string]int) error {
	if s.rules != "" {
		if err := p.load(s.rules); err != nil {
			return fmt.Errorf("%w in\n%s", err, s.rules)
		}
	}
	time.Sleep(s.sleep)
	p.node.Now.Store(time.Now().UnixNano())
	want, wantErr := p.ask(s.checks, s.atomic)
	got, gotErr := make([]limit.Decision, 1), error(nil)
	switch {
	case s.atomic:
		var b limit.Batch
		b, gotErr = p.local.CheckAll(context.Background(), s.checks...)
		got = b.Decisions
	case len(s.checks) == 1:
		got[0], gotErr = p.local.Check(context.Background(), s.checks[0])
	default:
		got, gotErr = p.local.CheckEach(context.Background(), s.checks...)
	}
	if wantErr != nil {
		e, ok := errors.AsType[*limit.Error](gotErr)
		if !ok || strings.ReplaceAll(e.Code.String(), " ", "_") != wantErr.Code.String() || !strings.HasSuffix(e.Field, wantErr.Field) {
			return fmt.Errorf("error %v, want %v", gotErr, wantErr)
		}
		seen["error "+e.Code.String()]++
		if s.atomic {
			return nil
		}
	} else if gotErr != nil {
		return fmt.Errorf("error %w, want none", gotErr)
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			return fmt.Errorf("%d: %+v\n got %+v\nwant %+v", i, s.checks[i], got[i], want[i])
		}
		count(seen, &got[i])
	}
	return nil
}

func count(seen map[string]int, d *limit.Decision) {
	seen[d.Verdict.String()]++
	seen["source "+d.Source.String()]++
	for what, is := range map[string]bool{
		"delay": d.Delay > 0, "response": d.Response != nil, "limit_index": d.LimitIndex > 0, "retry_after": d.RetryAfter > 0, "burst": d.Burst > 0,
	} {
		if is {
			seen[what]++
		}
	}
}

// ask returns the node's decisions, and the first error.
func (p *pair) ask(checks []limit.Check, atomic bool) (out []limit.Decision, first *limiter.Error) {
	b := limiter.NewBatch()
	defer b.Release()
	b.AllOrNothing, b.IdempotencyKey = atomic, checks[0].IdempotencyKey
	for _, c := range checks {
		q := b.Add()
		q.Domain, q.Cost, q.Verb = c.Domain, c.Amount, bucket.Verb(c.Verb)
		for _, e := range c.Descriptor {
			q.Descriptor = append(q.Descriptor, rules.Entry(e))
		}
		for _, l := range c.Limits {
			q.Limits = append(q.Limits, bucketLimit(l))
		}
	}
	if err := p.api.Check(context.Background(), b); err != nil {
		panic(err)
	}
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil && first == nil {
			first = r.Err
		}
		out = append(out, decision(r))
	}
	return out, first
}

// decision returns r as transport/grpcapi sends it, from the only node.
func decision(r *limiter.Result) (d limit.Decision) {
	if r.Err != nil {
		return d
	}
	d.Allowed, d.Verdict, d.Rule = r.Allowed, limit.Verdict(r.Verdict()), r.RuleName()
	d.ResetAfter, d.Delay, d.Staleness = r.ResetAfter, r.Delay, r.Staleness
	switch r.Source {
	case check.Owned:
		d.Source = limit.SourceLocal
	case check.Unmatched:
		d.Source = limit.SourceUnmatched
	}
	if d.Counted = r.Counted(); d.Counted {
		l := r.Limits.At(int(r.Index))
		if r.Rule != nil {
			d.LimitName = r.Rule.LimitName(int(r.Index))
		}
		d.Limit, d.Remaining, d.Period, d.LimitIndex = r.Limit, r.Remaining, r.Period, r.LimitPlace()
		d.Count, d.Burst = l.Count, l.Burst
	}
	if wait, ok := r.RetryIn(); ok && !r.Allowed {
		d.RetryAfter = wait
	}
	if p := r.Response(); p != nil {
		d.Response = &limit.Response{Status: p.Status, Body: p.Body}
		for _, h := range p.Headers {
			d.Response.Header = append(d.Response.Header, limit.Header{Name: h.Name, Value: h.Value})
		}
	}
	return d
}

// bucketLimit returns l with the names of package bucket.
func bucketLimit(l limit.Limit) (out bucket.Limit) {
	algorithm := l.Algorithm
	if algorithm == 0 {
		algorithm = limit.FixedWindow
	}
	for text, to := range map[fmt.Stringer]interface{ UnmarshalText([]byte) error }{algorithm: &out.Algorithm, l.Refill: &out.Refill, l.Align: &out.Align} {
		if err := to.UnmarshalText([]byte(text.String())); err != nil {
			panic(err)
		}
	}
	if l.Unit != 0 {
		if err := out.Unit.UnmarshalText([]byte(l.Unit.String())); err != nil {
			panic(err)
		}
	}
	out.Count, out.Period, out.Burst, out.Cost, out.Zone = l.Count, l.Period, l.Burst, l.Weight, l.TimeZone
	out.MinInterval, out.BlockFor, out.Soft, out.CountDenied = l.MinInterval, l.BlockFor, l.SoftPercent, l.CountDenied
	out.SubWindows, out.LogEntries, out.Unlimited = l.SubWindows, l.LogEntries, l.Unlimited
	return out
}
