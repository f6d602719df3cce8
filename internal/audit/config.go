// Package audit hammers a running cluster with checks and says whether it kept its
// limits: which keys were admitted more or less than their limit allows, what got no answer,
// and for how long keys had none.
//
// It is a caller like any other, over the public gRPC API, and knows nothing of what is inside the
// nodes. It decides which checks to make, where to send them again when a node fails, and how to
// count what became of them. What a limit may admit is decided by package model. Printing, flags and
// exit codes are left to cmd/sluice.
//
// [Run] owns the callers' goroutines and connections and returns when all have ended. A [Discovery]
// owns one goroutine, from Discover to Close.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/audit/model"
	"github.com/sluice-project/sluice/internal/pause"
	"google.golang.org/grpc"
)

// Config says whom to ask, what, and for how long.
type Config struct {
	// Targets returns the gRPC addresses to ask now. It is called before each call,
	// by all callers at once. Required.
	Targets func() []string
	// Failed, if set, is told the address of each call that failed because of the node.
	Failed func(addr string)
	// Specs are audited at the same time. At least one.
	Specs []Spec
	// Domain of all checks. Default "audit".
	Domain string
	// Rules: the servers' rules hold the limits of the Specs, and checks bring none of their own.
	Rules bool
	// Callers ask at the same time, each over its own connections. Default 16.
	Callers int
	// Batches are the numbers of checks in a call; each call draws one. Default 1.
	Batches []int
	// Rate is how many checks a second all callers make together. 0: as many as they can.
	Rate float64
	// Duration of the load. Default 30 s. It also ends when the context does.
	Duration time.Duration
	// Exhaust goes on after Duration, if Denials is above 0.
	Exhaust Exhaust
	// Attempt is how long one call may take, default 3 s. AnswerWithin is how long a
	// check is sent to one node after the other before it counts as a final error, default 5 s.
	Attempt, AnswerWithin time.Duration
	// Clocks says how far the nodes' clocks may be from this one's.
	Clocks model.Clocks
	// Log, if set, gets each check as a line of JSON; see [Check].
	Log io.Writer
	// Seed makes the choice of keys, nodes and pauses repeatable. 0: a random one.
	Seed uint64
	// DialOptions are added to those of every connection.
	DialOptions []grpc.DialOption
}

// Exhaust asks for every key until an owner has denied it Denials times, at most for Within
// (default 30 s).
type Exhaust struct {
	Denials int
	Within  time.Duration
}

// Spec is a number of keys that are each held to one limit.
type Spec struct {
	Keys  int
	Limit bucket.Limit
	// Descriptor is the key of the descriptor's only entry, for the rules of the
	// servers to match; the value is new in each run. Default "key".
	Descriptor string
}

func (s Spec) String() string {
	name := s.Limit.Algorithm.String()
	if s.Limit.Algorithm == bucket.FixedWindow {
		name += " " + s.Limit.Align.String()
	}
	if s.Limit.Burst != 0 {
		name += fmt.Sprintf(" burst %d", s.Limit.Burst)
	}
	// 1h, not 1h0m0s.
	period := s.Limit.Period.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(period, zero) {
			period = period[:len(period)-2]
		}
	}
	return fmt.Sprintf("%s, %d per %s", name, s.Limit.Count, period)
}

// Bounds of a Config.
const (
	MaxBatch   = 10_000
	MaxCallers = 10_000
	MaxKeys    = 50_000_000
)

// Defaults of a Config, and the clocks that suit machines whose time is kept by NTP.
const (
	DefaultCallers      = 16
	DefaultDuration     = 30 * time.Second
	DefaultAttempt      = 3 * time.Second
	DefaultAnswerWithin = 5 * time.Second
	DefaultExhaust      = 30 * time.Second
	DefaultClockError   = time.Second
	// DefaultDrift is what NTP may do to the speed of a clock, in parts per million.
	DefaultDrift = 500
)

// Validate says what is wrong with c, as Run would.
func (c Config) Validate() error {
	_, _, err := c.withDefaults()
	return err
}

// withDefaults returns c with its defaults filled in, and the models of its specs.
func (c Config) withDefaults() (Config, []*model.Model, error) {
	c.Domain = cmp.Or(c.Domain, "audit")
	c.Duration, c.Attempt = cmp.Or(c.Duration, DefaultDuration), cmp.Or(c.Attempt, DefaultAttempt)
	c.AnswerWithin, c.Exhaust.Within = cmp.Or(c.AnswerWithin, DefaultAnswerWithin), cmp.Or(c.Exhaust.Within, DefaultExhaust)
	c.Callers = cmp.Or(c.Callers, DefaultCallers)
	if len(c.Batches) == 0 {
		c.Batches = []int{1}
	}
	if err := c.validate(); err != nil {
		return c, nil, err
	}
	specs := make([]Spec, len(c.Specs))
	models := make([]*model.Model, len(c.Specs))
	keys := 0
	for i, s := range c.Specs {
		s.Descriptor = cmp.Or(s.Descriptor, "key")
		if s.Keys < 1 || s.Keys > MaxKeys-keys {
			return c, nil, fmt.Errorf("keys: %d; want 1 or more, at most %d over all specs", s.Keys, MaxKeys)
		}
		keys += s.Keys
		m, err := model.New(s.Limit, c.Clocks)
		if err != nil {
			return c, nil, fmt.Errorf("%v: %w", s, err)
		}
		specs[i], models[i] = s, m
	}
	c.Specs = specs
	return c, models, nil
}

func (c *Config) validate() error {
	if c.Targets == nil {
		return errors.New("targets: required")
	}
	if len(c.Specs) == 0 {
		return errors.New("specs: there is none; give at least one")
	}
	if c.Callers < 1 || c.Callers > MaxCallers {
		return fmt.Errorf("callers: %d; want 1 to %d", c.Callers, MaxCallers)
	}
	for _, n := range c.Batches {
		if n < 1 || n > MaxBatch {
			return fmt.Errorf("batch: %d; want 1 to %d", n, MaxBatch)
		}
	}
	if !(c.Rate >= 0) || c.Rate > 1e9 {
		return fmt.Errorf("rate: %v; want 0 to 1e9", c.Rate)
	}
	if c.Exhaust.Denials < 0 {
		return fmt.Errorf("denials: %d; want 0 or more", c.Exhaust.Denials)
	}
	if min(c.Duration, c.Attempt, c.AnswerWithin, c.Exhaust.Within) < 0 {
		return fmt.Errorf("duration %v, attempt %v, answer within %v, exhaust within %v: none may be negative",
			c.Duration, c.Attempt, c.AnswerWithin, c.Exhaust.Within)
	}
	return nil
}

// pace spreads checks evenly over time, whoever makes them. What was not made in
// its time, because no caller was free, is not made up for.
type pace struct {
	each float64 // ns between checks; 0: no pace
	mu   struct {
		sync.Mutex
		next float64 // ns since start
	}
	start time.Time
}

func newPace(rate float64) *pace {
	p := &pace{start: time.Now()}
	if rate > 0 {
		p.each = float64(time.Second) / rate
	}
	return p
}

// wait returns when n checks may be made; it reports whether ctx still goes on then.
func (p *pace) wait(ctx context.Context, n int) bool {
	if p.each == 0 {
		return ctx.Err() == nil
	}
	return pause.For(ctx, p.reserve(n))
}

func (p *pace) reserve(n int) time.Duration {
	now := float64(time.Since(p.start))
	p.mu.Lock()
	defer p.mu.Unlock()
	at := max(now, p.mu.next)
	p.mu.next = at + float64(n)*p.each
	return time.Duration(at - now)
}

// ErrorKind counts errors of one kind.
type ErrorKind struct {
	Kind string `json:"kind"`
	// Attempts that failed so, and Final errors: checks that ended so, without an answer.
	Attempts int64 `json:"attempts"`
	Final    int64 `json:"final"`
	// Example is the first one's address and message.
	Example string `json:"example"`
}

// errorKinds are few.
type errorKinds []ErrorKind

// of returns the one of that kind, with an example at least.
func (e *errorKinds) of(kind, example string) *ErrorKind {
	i := slices.IndexFunc(*e, func(k ErrorKind) bool { return k.Kind == kind })
	if i < 0 {
		i = len(*e)
		*e = append(*e, ErrorKind{Kind: kind})
	}
	k := &(*e)[i]
	k.Example = cmp.Or(k.Example, example)
	return k
}

// merge adds another caller's, and keeps the most frequent first.
func (e *errorKinds) merge(other errorKinds) {
	for _, o := range other {
		k := e.of(o.Kind, o.Example)
		k.Attempts += o.Attempts
		k.Final += o.Final
	}
	slices.SortFunc(*e, func(a, b ErrorKind) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(a.Kind, b.Kind))
	})
}
