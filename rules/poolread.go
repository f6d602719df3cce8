package rules

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
)

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

// checkReserves refuses priorities that could never take anything.
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
