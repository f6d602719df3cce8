// Package audit puts a load of checks on a running cluster and reports whether it kept its limits: over-admission and
// under-admission by key, checks without a decision, and for how long keys had no owner.
//
// It uses only the public gRPC API. It decides which checks to send, where to retry when a node fails, and how to count
// the results. Package model decides what a limit may admit. Printing, flags and exit codes are left to cmd/sluice.
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

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit/model"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"google.golang.org/grpc"
)

// Config configures an audit.
type Config struct {
	// Targets returns the gRPC addresses of the nodes. It is called before each call, by all callers at once. Required.
	Targets func() []string
	// Failed, if set, is called with the address of each call that failed because of the node.
	Failed func(addr string)
	// Specs are audited at the same time. At least one.
	Specs []Spec
	// Domain of all checks. Default "audit".
	Domain string
	// Rules: the servers' rules have the limits of the Specs, and checks have none of their own.
	Rules bool
	// Callers call concurrently, each over its own connections. Default 16.
	Callers int
	// Batches are the numbers of checks in a call; each call draws one. Default 1.
	Batches []int
	// Rate is how many checks a second all callers make together. 0: as many as they can.
	Rate float64
	// Duration of the load. Default 30 s. It also ends when the context does.
	Duration time.Duration
	// Exhaust follows Duration, if Denials is above 0.
	Exhaust Exhaust
	// Attempt bounds one call, default 3 s. AnswerWithin bounds the attempts for a check before it counts as a final
	// error, default 5 s.
	Attempt, AnswerWithin time.Duration
	// Clocks bounds the error of the nodes' clocks.
	Clocks model.Clocks
	// Log, if set, gets each check as a line of JSON; see [Check].
	Log io.Writer
	// Progress, if set, is called each second, by one goroutine.
	Progress func(Progress)
	// Seed makes the choice of keys, nodes and pauses repeatable. 0: a random one.
	Seed uint64
	// DialOptions are added to those of every connection.
	DialOptions []grpc.DialOption
}

// Exhaust checks every key until an owner has denied it Denials times, for Within at most (default 30 s).
type Exhaust struct {
	Denials int
	Within  time.Duration
}

// Spec is a number of keys with one limit each.
type Spec struct {
	Keys  int
	Limit bucket.Limit
	// Descriptor is the key of the descriptor's only entry, for the servers' rules; its value is new in each run. Default
	// "key".
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

const (
	maxBatch   = 10_000
	maxCallers = 10_000
	maxKeys    = 50_000_000
)

// Defaults of a Config, and of clocks that NTP keeps.
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

// Validate returns the validation error of Run.
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
		if s.Keys < 1 || s.Keys > maxKeys-keys {
			return c, nil, fmt.Errorf("keys: %d; want 1 or more, at most %d over all specs", s.Keys, maxKeys)
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
	for _, n := range c.Batches {
		if n < 1 || n > maxBatch {
			return fmt.Errorf("batch: %d; want 1 to %d", n, maxBatch)
		}
	}
	switch {
	case c.Targets == nil:
		return errors.New("targets: required")
	case len(c.Specs) == 0:
		return errors.New("specs: there is none; give at least one")
	case c.Callers < 1 || c.Callers > maxCallers:
		return fmt.Errorf("callers: %d; want 1 to %d", c.Callers, maxCallers)
	case !(c.Rate >= 0) || c.Rate > 1e9:
		return fmt.Errorf("rate: %v; want 0 to 1e9", c.Rate)
	case c.Exhaust.Denials < 0:
		return fmt.Errorf("denials: %d; want 0 or more", c.Exhaust.Denials)
	case min(c.Duration, c.Attempt, c.AnswerWithin, c.Exhaust.Within) < 0:
		return fmt.Errorf("duration %v, attempt %v, answer within %v, exhaust within %v: none may be negative",
			c.Duration, c.Attempt, c.AnswerWithin, c.Exhaust.Within)
	}
	return nil
}

// pace spreads the checks of all callers evenly over time. It does not catch up after a time without a free caller.
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

// wait waits until n checks may be made, and reports false when ctx ended before.
func (p *pace) wait(ctx context.Context, n int) bool {
	if p.each == 0 {
		return ctx.Err() == nil
	}
	now := float64(time.Since(p.start))
	p.mu.Lock()
	at := max(now, p.mu.next)
	p.mu.next = at + float64(n)*p.each
	p.mu.Unlock()
	return pause.For(ctx, time.Duration(at-now))
}

// ErrorKind counts errors of one kind.
type ErrorKind struct {
	Kind string `json:"kind"`
	// Attempts with this error, and Final errors: checks that ended with it, without a decision.
	Attempts int64 `json:"attempts"`
	Final    int64 `json:"final"`
	// Example is the first one's address and message.
	Example string `json:"example"`
}

type errorKinds []ErrorKind

// of returns the counts of a kind.
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

// merge adds another caller's errors, and sorts by frequency.
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
