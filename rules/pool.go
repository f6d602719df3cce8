package rules

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Pool is room of a domain that keys share beyond their own limits. It is immutable.
//
// What is taken from it counts in one counter, whichever rule took it. Each
// priority leaves a reserve free for those above it. A pool that follows a load shrinks
// in LoadSteps steps, so that few sets of limits are in use.
type Pool struct {
	Domain, Name string
	// File and Line say where the pool is written.
	File string
	Line int
	// Replication is that of its counter.
	Replication Replication
	// FollowsLoad: the pool shrinks by the load that is reported for it.
	FollowsLoad bool
	// Expires is how long a report of the load counts, more than 0 if it follows one.
	Expires time.Duration
	// Unreported is the load, 0 to 1, that is assumed while no report counts.
	Unreported float64

	limit    bucket.Limit
	shrinkTo int64 // percent of the size that is left at load 1
	reserves []reserve
	sizes    []*bucket.Limits // by step of the load
}

// reserve is what a priority leaves free: units, or percent of the pool's size.
type reserve struct {
	priority string
	amount   int64
	percent  bool
}

// LoadSteps is into how many steps a load from 0 to 1 is divided.
const LoadSteps = 20

// StepOf returns the step of a load: 0 for nothing, LoadSteps for 1 and more, rounded up.
func StepOf(load float64) int {
	return int(min(LoadSteps, max(0, math.Ceil(load*LoadSteps))))
}

// Limits returns what the pool is held to at a step of the load, 0 to LoadSteps. Equal
// steps give the same pointer.
func (p *Pool) Limits(step int) *bucket.Limits { return p.sizes[min(step, len(p.sizes)-1)] }

// Reserve returns how many units priority, an index into Priorities, must leave free at a
// step of the load. Pools without priorities have no reserve.
func (p *Pool) Reserve(priority, step int) int64 {
	if len(p.reserves) == 0 {
		return 0
	}
	r := p.reserves[priority]
	if !r.percent {
		return r.amount
	}
	// Rounded up: what is kept for others is not lost to rounding.
	return portionUp(p.capacity(step), r.amount, 100)
}

// capacity returns the most units that the pool can give at once at a step of the load.
func (p *Pool) capacity(step int) int64 {
	l := p.Limits(step).At(0)
	if l.Count > 0 && l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// Priorities returns the names of the pool's priorities in the file's order, nil if all
// are alike.
func (p *Pool) Priorities() []string {
	var out []string
	for i := range p.reserves {
		out = append(out, p.reserves[i].priority)
	}
	return out
}

// find returns the place of a priority, -1 if there is none of that name.
func (p *Pool) find(priority string) int {
	return slices.IndexFunc(p.reserves, func(r reserve) bool { return r.priority == priority })
}

// AppendKey appends the bytes that name the pool's counter. Different pools never have equal bytes.
func (p *Pool) AppendKey(dst []byte) []byte {
	return appendSized(appendSized(dst, p.Domain, plainValue), p.Name, plainValue)
}

// size makes the pool's limits for every step of the load. The error is that of bucket.NewLimits.
func (p *Pool) size() error {
	steps := 0
	if p.FollowsLoad {
		steps = LoadSteps
	}
	for step := range steps + 1 {
		l := p.limit
		const whole = 100 * LoadSteps
		left := whole - (100-p.shrinkTo)*int64(step)
		l.Count, l.Burst = portion(l.Count, left, whole), portion(l.Burst, left, whole)
		if p.limit.Burst > 0 && l.Burst == 0 {
			l.Count = 0 // a burst of 0 would mean the default, which is more than nothing
		}
		limits, err := bucket.NewLimitsIn(p.Domain, l)
		if err != nil {
			return err
		}
		p.sizes = append(p.sizes, limits)
	}
	return nil
}

// portion returns ⌊n × part / whole⌋ for n ≥ 0 and 0 ≤ part ≤ whole, whole small.
func portion(n, part, whole int64) int64 { return n/whole*part + n%whole*part/whole }

// portionUp is portion, rounded up.
func portionUp(n, part, whole int64) int64 { return n/whole*part + (n%whole*part+whole-1)/whole }

// Elastic says that a rule's keys may take from a pool what their own limits deny.
type Elastic struct {
	Pool *Pool

	priority int
	// level is the place of the entry whose value names the priority, -1 if none does.
	level int
}

// Priority returns the priority of descriptor in e's pool, as an index into Pool.Priorities: the one that
// its entry of priority_key names, else that of the rule. It does not allocate.
func (e *Elastic) Priority(descriptor []Entry) int {
	if e.level >= 0 && e.level < len(descriptor) {
		if i := e.Pool.find(descriptor[e.level].Value); i >= 0 {
			return i
		}
	}
	return e.priority
}
