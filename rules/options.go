package rules

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// ownOptions are sluice's keys that say how a rule is enforced.
var ownOptions = []string{"consistency", "replication", "on_failure", "on_partition", "unknown_share", "on_lost_state", "response", "refunds", "elastic"}

// readOptions reads what a descriptor says about its rule beside the limits.
func (p *parser) readOptions(d *descriptor) {
	r := d.rule
	r.Shadow = p.flag(d, "shadow_mode")
	r.Quota = p.flag(d, "quota_mode")
	r.DetailedMetric = p.flag(d, "detailed_metric")
	if f, ok := d.fields["metadata"]; ok {
		r.Metadata = p.Map(f.Value, d.path+".metadata")
	}
	for _, name := range ownOptions {
		f, ok := d.fields[name]
		if !ok {
			continue
		}
		path := d.path + "." + name
		if len(d.limits) == 0 {
			p.FaultAt(f.Line, path, "has no effect without rate_limit or limits beside it")
		}
		switch name {
		case "consistency":
			r.Consistency, _ = yamldoc.Enum(p.Reader, f.Value, path, consistencies)
		case "replication":
			r.Replication, _ = yamldoc.Enum(p.Reader, f.Value, path, replications)
		case "on_failure":
			r.OnFailure, _ = yamldoc.Enum(p.Reader, f.Value, path, onFailures)
		case "on_partition":
			r.OnPartition, _ = yamldoc.Enum(p.Reader, f.Value, path, onFailures)
		case "unknown_share":
			r.UnknownShare, _ = yamldoc.Enum(p.Reader, f.Value, path, unknownShares)
		case "on_lost_state":
			r.OnLostState, _ = yamldoc.Enum(p.Reader, f.Value, path, onLostStates)
		case "refunds":
			r.Refunds = p.flag(d, name)
		case "elastic":
			p.readElastic(d, f, path)
		case "response":
			r.Response = p.readResponse(f.Value, path)
		}
	}
}

// flag reads a key of the descriptor that is true or false.
func (p *parser) flag(d *descriptor, name string) bool {
	f, ok := d.fields[name]
	if !ok {
		return false
	}
	v, _ := p.Bool(f.Value, d.path+"."+name)
	return v
}

// maxResponseBody bounds what is sent to every client that is denied.
const maxResponseBody = 64 << 10

func (p *parser) readResponse(n *yaml.Node, path string) *Response {
	res := &Response{}
	for _, f := range p.fields(n, path, inResponse) {
		at := path + "." + f.Name
		switch f.Name {
		case "status":
			status, _ := p.Int(f.Value, at, 400, 599)
			res.Status = int(status)
		case "headers":
			for _, h := range p.Fields(f.Value, at) {
				p.readHeader(res, h, at)
			}
		case "body":
			res.Body, _ = p.String(f.Value, at)
			if len(res.Body) > maxResponseBody {
				p.FaultAt(f.Line, at, "has %d bytes; at most %d are sent", len(res.Body), maxResponseBody)
			}
		}
	}
	return res
}

// ownHeaders are set by the HTTP server for every response.
var ownHeaders = []string{"connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade"}

func (p *parser) readHeader(res *Response, f yamldoc.Field, path string) {
	path += "." + f.Name
	value, ok := p.String(f.Value, path)
	switch {
	case !isToken(f.Name):
		p.FaultAt(f.Line, path, "%s is not the name of an HTTP header", yamldoc.Quote(f.Name))
	case slices.Contains(ownHeaders, strings.ToLower(f.Name)):
		p.FaultAt(f.Line, path, "the server sets this header itself")
	case slices.ContainsFunc(res.Headers, func(h Header) bool { return strings.EqualFold(h.Name, f.Name) }):
		p.FaultAt(f.Line, path, "the header comes twice")
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		p.FaultAt(f.Line, path, "a header's value may not hold line breaks or control characters")
	case ok:
		res.Headers = append(res.Headers, Header{Name: f.Name, Value: value})
	}
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	})
}

// leastEventual is the shortest period that can be decided in eventual mode: nodes tell each other of it every 50 ms.
const leastEventual = time.Second

// checkConsistency rejects what eventual mode cannot keep: a node that decides alone can count in a window that all
// nodes see begin and end, and nothing else.
func (p *parser) checkConsistency(d *descriptor) {
	f, ok := d.fields["consistency"]
	if !ok || d.rule.Consistency != Eventual {
		return
	}
	reject := func(field, format string, args ...any) { p.FaultAt(f.Line, d.path+"."+field, format, args...) }
	if len(d.limits) > 1 {
		reject("consistency", "eventual takes one limit, and the rule has %d", len(d.limits))
	}
	if r, ok := d.fields["replication"]; ok && d.rule.Replication == ReplicateSync {
		p.FaultAt(r.Line, d.path+".replication", "sync makes no sense beside consistency: eventual, which answers before anybody else knows")
	}
	if o, ok := d.fields["on_lost_state"]; ok && d.rule.OnLostState == LostDeny {
		p.FaultAt(o.Line, d.path+".on_lost_state", "deny makes no sense beside consistency: eventual, where every node decides alone: use fresh, or leave it out")
	}
	if e, ok := d.fields["elastic"]; ok {
		p.FaultAt(e.Line, d.path+".elastic", "has no effect beside consistency: eventual: give up one of them")
	}
	for i := range d.limits {
		l := &d.limits[i]
		switch {
		case l.Algorithm != bucket.FixedWindow:
			reject("consistency", "eventual needs a fixed_window, not a %s", l.Algorithm)
		case l.Align == bucket.AlignFirstHit:
			reject("consistency", "eventual needs a window that begins for all nodes at once: align epoch or calendar, not first_hit")
		case l.Align != bucket.AlignCalendar && l.Period < leastEventual:
			reject("consistency", "eventual needs a period of 1s or more, not %v", l.Period)
		case l.Soft != 0:
			reject("consistency", "eventual has no soft margin: leave soft out")
		case l.MinInterval != 0:
			reject("consistency", "eventual keeps no min_interval: leave it out")
		case l.Cost > 1:
			reject("consistency", "eventual takes no cost of a limit: leave it out")
		}
	}
}

// Replication says when a replica learns of a charge.
type Replication uint8

const (
	// ReplicateNone keeps counters on their owner only.
	ReplicateNone Replication = iota
	// ReplicateAsync answers first and replicates a moment later.
	ReplicateAsync
	// ReplicateSync answers when the replica has the charge.
	ReplicateSync
)

// defaultLostState is the on_lost_state of rules that do not say. Who would rather deny a check than admit one too many,
// or waits for a replica, wants no counter to begin anew. In eventual mode nodes decide alone, and there is no counter to miss.
func defaultLostState(r *Rule) OnLostState {
	if r.Consistency != Eventual &&
		(r.OnFailure == FailClosed || r.OnPartition == FailClosed || r.Replication == ReplicateSync) {
		return LostDeny
	}
	return LostFresh
}

func (r Replication) String() string { return nameOf(replications, r) }

// asyncFrom is the shortest period that is replicated unless the rule says otherwise.
const asyncFrom = 10 * time.Second

// DefaultReplication is that of rules that do not say, and of checks that bring their
// own limits: async where losing a counter hurts for long, which is where the longest
// period is ten seconds or more, else none.
func DefaultReplication(l *bucket.Limits) Replication {
	for i := range l.Len() {
		// A calendar unit is a minute at least. What is unlimited counts nothing.
		if one := l.At(i); !one.Unlimited && (one.Align == bucket.AlignCalendar || one.Period >= asyncFrom) {
			return ReplicateAsync
		}
	}
	return ReplicateNone
}

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

// checkOwn rejects limits whose denial a pool cannot make good.
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
