package rules

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
)

// elasticRef is a rule's key elastic, until all files are read and its pool can be found.
type elasticRef struct {
	rule *Rule
	// file, lines and path are for errors; a line of 0 stands for a key that is not given.
	file, path                            string
	line, poolLine, priorityLine, keyLine int
	pool, priority, priorityKey           string
}

// readElastic reads the key elastic of d.
func (p *parser) readElastic(d *descriptor, f yamldoc.Field, path string) {
	ref := elasticRef{rule: d.rule, file: p.file, line: f.Line, path: path}
	before := p.Count()
	for _, f := range p.fields(f.Value, path, inElastic) {
		at := path + "." + f.Name
		switch f.Name {
		case "pool":
			ref.pool, _ = p.String(f.Value, at)
			ref.poolLine = f.Line
		case "priority":
			ref.priority, _ = p.String(f.Value, at)
			ref.priorityLine = f.Line
		case "priority_key":
			ref.priorityKey, _ = p.String(f.Value, at)
			ref.keyLine = f.Line
		}
	}
	if p.Count() > before {
		return
	}
	if ref.pool == "" {
		p.FaultAt(cmp.Or(ref.poolLine, f.Line), path+".pool", "is missing: name a pool of this domain")
		return
	}
	p.checkOwn(d)
	if p.Count() == before {
		p.set.elastic = append(p.set.elastic, ref)
	}
}

// checkOwn refuses limits whose denial a pool cannot make good.
func (p *parser) checkOwn(d *descriptor) {
	for i := range d.limits {
		l := &d.limits[i]
		fault := func(key, reason string) {
			p.FaultAt(l.fields[key].Line, l.path+"."+key, "does not go with elastic: %s", reason)
		}
		switch {
		case l.Unlimited:
			fault("unlimited", "the rule denies nothing")
		case l.MinInterval > 0:
			fault("min_interval", "a pool has units to give and no time")
		case l.CountDenied:
			fault("count_denied", "what the pool admits would count as denied")
		case l.Algorithm == bucket.LeakyQueue:
			fault("algorithm", "what the pool admits would overtake those who wait in the queue")
		}
	}
}

// poolsOf returns the pools of domain, to be added to.
func (s *Set) poolsOf(domain string) map[string]*Pool {
	if s.pools == nil {
		s.pools = make(map[string]map[string]*Pool)
	}
	if s.pools[domain] == nil {
		s.pools[domain] = make(map[string]*Pool)
	}
	return s.pools[domain]
}

// Pool returns the domain's pool of that name, nil if there is none. It does not allocate.
func (s *Set) Pool(domain, name string) *Pool { return s.pools[domain][name] }

// Pools returns every pool, by domain and name.
func (s *Set) Pools() []*Pool {
	var out []*Pool
	for _, pools := range s.pools {
		for _, p := range pools {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *Pool) int {
		return cmp.Or(strings.Compare(a.Domain, b.Domain), strings.Compare(a.Name, b.Name))
	})
	return out
}

// joinPools gives the rules with elastic their pools, which may stand in any file of the domain, and
// warns of pools that no rule takes from. It is asked when all files have been read.
func (s *Set) joinPools() (errs []error) {
	used := make(map[*Pool]bool)
	for i := range s.elastic {
		ref := &s.elastic[i]
		pool := s.Pool(ref.rule.Domain, ref.pool)
		if pool == nil {
			errs = append(errs, ref.fault(ref.poolLine, ".pool", "the domain has no pool "+yamldoc.Quote(ref.pool)))
			continue
		}
		used[pool] = true
		if err := ref.join(pool); err != nil {
			errs = append(errs, err)
		}
	}
	for _, p := range s.Pools() {
		if !used[p] {
			s.warnings = append(s.warnings, Warning{File: p.File, Line: p.Line, Path: "pools." + shorten(p.Name),
				Text: "no rule of the domain takes from this pool"})
		}
	}
	s.elastic = nil
	return errs
}

func (ref *elasticRef) fault(line int, key, reason string) error {
	return &Error{File: ref.file, Line: cmp.Or(line, ref.line), Path: ref.path + key, Reason: reason}
}

// join makes the rule's Elastic.
func (ref *elasticRef) join(pool *Pool) error {
	e := &Elastic{Pool: pool, level: -1}
	if len(pool.reserves) == 0 {
		if ref.priority != "" || ref.priorityKey != "" {
			return ref.fault(cmp.Or(ref.priorityLine, ref.keyLine), ".priority", "pool "+yamldoc.Quote(pool.Name)+" has no reserves, so all take from it alike")
		}
		ref.rule.Elastic = e
		return nil
	}
	names := strings.Join(pool.Priorities(), ", ")
	if ref.priority == "" {
		return ref.fault(ref.priorityLine, ".priority", "is missing: pool "+yamldoc.Quote(pool.Name)+" has "+names)
	}
	if e.priority = pool.find(ref.priority); e.priority < 0 {
		return ref.fault(ref.priorityLine, ".priority", "must be one of "+names+", not "+yamldoc.Quote(ref.priority))
	}
	if ref.priorityKey != "" {
		e.level = slices.IndexFunc(ref.rule.levels, func(l level) bool { return l.entry.Key == ref.priorityKey })
		if e.level < 0 {
			return ref.fault(ref.keyLine, ".priority_key", "no entry that leads to this rule has the key "+yamldoc.Quote(ref.priorityKey))
		}
	}
	ref.rule.Elastic = e
	return nil
}
