package rules

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// Pool is a number of units of a domain that keys share beyond their own limits. It is immutable.
//
// All rules that take from it charge one counter. Each priority leaves a reserve free for those above it. A pool that
// follows a load shrinks in LoadSteps steps, so that few sets of limits are in use.
type Pool struct {
	Domain, Name string
	// File and Line locate the pool.
	File string
	Line int
	// Replication is that of its counter.
	Replication Replication
	// FollowsLoad: the pool shrinks with the load that clients report for it.
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

// LoadSteps is the number of steps that a load from 0 to 1 is divided into.
const LoadSteps = 20

// StepOf returns the step of a load: 0 for nothing, LoadSteps for 1 and more, rounded up.
func StepOf(load float64) int {
	return int(min(LoadSteps, max(0, math.Ceil(load*LoadSteps))))
}

// Limits returns the pool's limits at a step of the load, 0 to LoadSteps. Equal steps give the same pointer.
func (p *Pool) Limits(step int) *bucket.Limits { return p.sizes[min(step, len(p.sizes)-1)] }

// Reserve returns how many units priority, an index into Priorities, must leave free at a step of the load. Pools
// without priorities have no reserve.
func (p *Pool) Reserve(priority, step int) int64 {
	if len(p.reserves) == 0 {
		return 0
	}
	r := p.reserves[priority]
	if !r.percent {
		return r.amount
	}
	size := p.capacity(step)
	return size - portion(size, 100-r.amount, 100) // rounded up, so that the reserve is not lost to rounding
}

// capacity returns the most units that the pool can give at once at a step of the load.
func (p *Pool) capacity(step int) int64 {
	return capacity(p.Limits(step).At(0))
}

// capacity returns the most units that a limit can give at once, without its soft margin.
func capacity(l bucket.Limit) int64 {
	if l.Count > 0 && l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// Priorities returns the names of the pool's priorities in the file's order, nil without reserves.
func (p *Pool) Priorities() []string {
	var out []string
	for i := range p.reserves {
		out = append(out, p.reserves[i].priority)
	}
	return out
}

// find returns the index of a priority, -1 if there is none of that name.
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

// Elastic lets a rule's keys take from a pool what their own limits deny.
type Elastic struct {
	Pool *Pool

	priority int
	// level is the index of the entry whose value names the priority, -1 if none does.
	level int
}

// Priority returns the priority of descriptor in e's pool, as an index into Pool.Priorities: the one that its entry of
// priority_key names, else that of the rule. It does not allocate.
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

// readPools reads the key pools.
func (p *parser) readPools(at yamldoc.Field) {
	for _, f := range p.Fields(at.Value, "pools") {
		f.Path = yamldoc.Join("pools", shorten(f.Name))
		if f.Name == "" || len(f.Name) > maxPoolName || !onlyNameBytes(f.Name, "._-") {
			p.reject(f, "a pool's name is 1 to %d letters, digits, dots, hyphens and underscores", maxPoolName)
		}
		pool := p.readPool(f)
		switch other := p.domain.pools[f.Name]; {
		case other != nil:
			p.reject(f, "the domain has a pool of this name already, at %s:%d", other.File, other.Line)
		case len(p.domain.pools) == maxPools:
			p.reject(f, "the domain has %d pools already, and more are not allowed", maxPools)
			return
		default:
			p.domain.pools[f.Name] = pool
		}
	}
}

// readPool reads one pool and makes its sizes.
func (p *parser) readPool(at yamldoc.Field) *Pool {
	pool := &Pool{Domain: p.domain.name, Name: at.Name, File: p.file, Line: at.Line, shrinkTo: 100}
	before := p.Count()
	var l limit
	given := p.read(at.Value, at.Path, inPool, keys{
		"limit":       func(f yamldoc.Field) { l = p.readLimit(f, inPoolLimit) },
		"reserves":    func(f yamldoc.Field) { p.readReserves(pool, f) },
		"load":        func(f yamldoc.Field) { p.readLoad(pool, f) },
		"replication": enum(p, &pool.Replication, replications),
	})
	if l.node == nil && p.Count() == before {
		p.ErrorfAt(at.Line, at.Path+".limit", "is missing: say how large the pool is")
	}
	if p.Count() > before {
		return pool
	}
	p.checkPool(pool, &l)
	if p.Count() > before {
		return pool
	}
	if _, ok := given["replication"]; !ok {
		pool.Replication = DefaultReplication(pool.Limits(0))
	}
	// A reserve must leave its priority something.
	for i, size := 0, pool.capacity(0); i < len(pool.reserves); i++ {
		if kept := pool.Reserve(i, 0); kept >= size {
			p.ErrorfAt(at.Line, at.Path+".reserves."+shorten(pool.reserves[i].priority),
				"leaves %d of %d units free, so the priority would never get any", kept, size)
		}
	}
	return pool
}

// checkPool checks the limit l and gives it to the pool.
func (p *parser) checkPool(pool *Pool, l *limit) {
	switch {
	case l.Algorithm == bucket.LeakyQueue:
		p.reject(l.fields["algorithm"], "leaky_queue delays checks, and a pool admits them at once; use leaky_bucket")
		return
	case l.Algorithm == bucket.Concurrency:
		p.reject(l.fields["algorithm"], "concurrency is for reservations, and only checks take from a pool; use another one")
		return
	case l.Count == 0:
		p.Errorf(l.node, l.path+".count", "must be at least 1: a pool of nothing admits nothing")
		return
	}
	pool.limit = l.Limit
	if err := pool.size(); err != nil {
		p.rejectLimits(&descriptor{node: l.node, path: l.path, limits: []limit{*l}}, err)
	}
}

func (p *parser) readReserves(pool *Pool, at yamldoc.Field) {
	for _, f := range p.Fields(at.Value, at.Path) {
		f.Path = at.Path + "." + shorten(f.Name)
		r := reserve{priority: f.Name}
		switch {
		case f.Name == "":
			p.reject(f, "a priority has a name, which may not be empty")
		case yamldoc.IsNull(f.Value):
			p.reject(f, "is missing: say how much the priority leaves free, in units or percent")
		case f.Value.Kind == yaml.ScalarNode && f.Value.ShortTag() == "!!int":
			number(p, &r.amount, 0, 1<<62)(f)
		default:
			r.percent = true
			percent(p, &r.amount, 100)(f)
		}
		pool.reserves = append(pool.reserves, r)
	}
	if n := len(pool.reserves); n > maxPriorities {
		p.reject(at, "has %d priorities; at most %d are allowed", n, maxPriorities)
	}
}

func (p *parser) readLoad(pool *Pool, at yamldoc.Field) {
	pool.FollowsLoad, pool.Expires = true, defaultExpires
	unreported := int64(0)
	given := p.read(at.Value, at.Path, inLoad, keys{
		"shrink_to":  percent(p, &pool.shrinkTo, 100),
		"expires":    p.duration(&pool.Expires, 100*time.Millisecond),
		"unreported": percent(p, &unreported, 100),
	})
	pool.Unreported = float64(unreported) / 100
	if f, ok := given["shrink_to"]; !ok {
		p.Errorf(at.Value, at.Path+".shrink_to", "is missing: say what is left of the pool at full load, such as 20%%")
	} else if pool.shrinkTo == 100 {
		p.reject(f, "100%% is no shrinking; give less, or leave load out")
	}
	if pool.Expires > time.Hour {
		p.reject(given["expires"], "must be at most 1h, not %s: a load that old says nothing", pool.Expires)
	}
}

// percent reads a percentage from 0% to most.
func percent[T ~int32 | ~int64](p *parser, to *T, most uint64) func(yamldoc.Field) {
	return func(f yamldoc.Field) {
		*to = 0
		s, ok := p.String(f.Value, f.Path)
		if !ok {
			if yamldoc.IsNull(f.Value) {
				p.Errorf(f.Value, f.Path, "is missing: give 0%% to %d%%", most)
			}
			return
		}
		digits, found := strings.CutSuffix(s, "%")
		v, err := strconv.ParseUint(digits, 10, 16)
		switch {
		case err != nil || v > most || digits != strconv.FormatUint(v, 10):
			p.Errorf(f.Value, f.Path, "must be a whole percentage from 0%% to %d%%, not %s", most, yamldoc.Quote(s))
			return
		case !found:
			p.Errorf(f.Value, f.Path, "needs a percent sign: write %d%%", v)
			return
		}
		*to = T(v)
	}
}
