package rules

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
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

// Bounds of pools.
const (
	maxPools      = 256 // of a domain
	maxPriorities = 16
	maxPoolName   = 64 // bytes
)

// defaultExpires is how long a report of a load counts where the file does not say.
const defaultExpires = 10 * time.Second

// readPools reads the key pools of the file that describes domain.
func (p *parser) readPools(f yamldoc.Field, domain string) {
	for _, f := range p.Fields(f.Value, "pools") {
		path := yamldoc.Join("pools", shorten(f.Name))
		pool := &Pool{Domain: domain, Name: f.Name, File: p.file, Line: f.Line, shrinkTo: 100}
		if !isPoolName(f.Name) {
			p.FaultAt(f.Line, path, "a pool's name is 1 to %d letters, digits, dots, hyphens and underscores", maxPoolName)
		}
		p.readPool(pool, f, path)
		pools := p.set.poolsOf(domain)
		switch other := pools[f.Name]; {
		case other != nil:
			p.FaultAt(f.Line, path, "the domain has a pool of this name already, at %s:%d", other.File, other.Line)
		case len(pools) == maxPools:
			p.FaultAt(f.Line, path, "the domain has %d pools already, and more are not allowed", maxPools)
			return
		default:
			pools[f.Name] = pool
		}
	}
}

func isPoolName(s string) bool {
	return len(s) > 0 && len(s) <= maxPoolName && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("._-", c))
	})
}

// readPool reads one pool and makes its sizes.
func (p *parser) readPool(pool *Pool, at yamldoc.Field, path string) {
	before := p.Count()
	var l limit
	replication, given := ReplicateNone, false
	for _, f := range p.fields(at.Value, path, inPool) {
		key := path + "." + f.Name
		switch f.Name {
		case "limit":
			l = p.readLimit(f.Value, key, inPoolLimit)
		case "reserves":
			p.readReserves(pool, f, key)
		case "load":
			p.readLoad(pool, f.Value, key)
		case "replication":
			replication, given = yamldoc.Enum(p.Reader, f.Value, key, replications)
		}
	}
	if l.node == nil && p.Count() == before {
		p.FaultAt(at.Line, path+".limit", "is missing: say how large the pool is")
	}
	if p.Count() > before {
		return // its faults are told already
	}
	p.checkPool(pool, &l)
	if p.Count() > before {
		return
	}
	pool.Replication = replication
	if !given {
		pool.Replication = DefaultReplication(pool.Limits(0))
	}
	p.checkReserves(pool, at.Line, path)
}

// checkPool takes the limit l, as far as a pool can be held to it.
func (p *parser) checkPool(pool *Pool, l *limit) {
	switch {
	case l.Algorithm == bucket.LeakyQueue:
		p.FaultAt(l.fields["algorithm"].Line, l.path+".algorithm", "leaky_queue answers with delays, and what a pool admits is admitted now; use leaky_bucket")
		return
	case l.Count == 0:
		p.Fault(l.node, l.path+".count", "must be at least 1: a pool of nothing admits nothing")
		return
	}
	pool.limit = l.Limit
	if err := pool.size(); err != nil {
		p.faultOf(&descriptor{node: l.node, path: l.path, limits: []limit{*l}}, err)
	}
}

func (p *parser) readReserves(pool *Pool, at yamldoc.Field, path string) {
	for _, f := range p.Fields(at.Value, path) {
		key := path + "." + shorten(f.Name)
		r := reserve{priority: f.Name}
		switch {
		case f.Name == "":
			p.FaultAt(f.Line, key, "a priority has a name, which may not be empty")
		case yamldoc.IsNull(f.Value):
			p.FaultAt(f.Line, key, "is missing: say how much the priority leaves free, in units or percent")
		case f.Value.Kind == yaml.ScalarNode && f.Value.ShortTag() == "!!int":
			r.amount, _ = p.Int(f.Value, key, 0, 1<<62)
		default:
			r.amount, r.percent = p.percent(f.Value, key), true
		}
		pool.reserves = append(pool.reserves, r)
	}
	if n := len(pool.reserves); n > maxPriorities {
		p.FaultAt(at.Line, path, "has %d priorities; at most %d are allowed", n, maxPriorities)
	}
}

// checkReserves rejects priorities that could never take anything.
func (p *parser) checkReserves(pool *Pool, line int, path string) {
	size := pool.capacity(0)
	for i := range pool.reserves {
		if kept := pool.Reserve(i, 0); kept >= size {
			p.FaultAt(line, path+".reserves."+shorten(pool.reserves[i].priority),
				"leaves %d of %d units free, so the priority would never get any", kept, size)
		}
	}
}

func (p *parser) readLoad(pool *Pool, n *yaml.Node, path string) {
	pool.FollowsLoad, pool.Expires = true, defaultExpires
	given := false
	for _, f := range p.fields(n, path, inLoad) {
		key := path + "." + f.Name
		switch f.Name {
		case "shrink_to":
			pool.shrinkTo, given = p.percent(f.Value, key), true
			if pool.shrinkTo == 100 {
				p.FaultAt(f.Line, key, "100%% is no shrinking; give less, or leave load out")
			}
		case "expires":
			pool.Expires = p.duration(f.Value, key, 100*time.Millisecond)
			if pool.Expires > time.Hour {
				p.FaultAt(f.Line, key, "must be at most 1h, not %s: a load that old says nothing", pool.Expires)
			}
		case "unreported":
			pool.Unreported = float64(p.percent(f.Value, key)) / 100
		}
	}
	if !given {
		p.Fault(n, path+".shrink_to", "is missing: say what is left of the pool at full load, such as 20%%")
	}
}

// percent reads 0% to 100%.
func (p *parser) percent(n *yaml.Node, path string) int64 {
	s, ok := p.String(n, path)
	if !ok {
		if yamldoc.IsNull(n) {
			p.Fault(n, path, "is missing: give 0%% to 100%%")
		}
		return 0
	}
	digits, found := strings.CutSuffix(s, "%")
	v, err := strconv.ParseUint(digits, 10, 8)
	if !found || err != nil || v > 100 || digits != strconv.FormatUint(v, 10) {
		p.Fault(n, path, "must be a whole percentage from 0%% to 100%%, not %s", yamldoc.Quote(s))
		return 0
	}
	return int64(v)
}
