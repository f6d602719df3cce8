package rules

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// readOptions reads what a descriptor says about its rule beside the limits.
func (p *parser) readOptions(d *descriptor) {
	r := d.rule
	r.Shadow = p.flag(d, "shadow_mode")
	r.Quota = p.flag(d, "quota_mode")
	r.DetailedMetric = p.flag(d, "detailed_metric")
	if f, ok := d.fields["metadata"]; ok {
		r.Metadata = p.Map(f.Value, f.Path)
	}
	r.Reservation = DefaultReservation(nil)
	// sluice's own keys say how a rule is enforced.
	own := keys{
		"consistency":   enum(p, &r.Consistency, consistencies),
		"replication":   enum(p, &r.Replication, replications),
		"on_failure":    func(f yamldoc.Field) { enum(p, &r.OnFailure, onFailures)(f); r.StatesOnFailure = true },
		"on_partition":  enum(p, &r.OnPartition, onFailures),
		"unknown_share": enum(p, &r.UnknownShare, unknownShares),
		"on_lost_state": enum(p, &r.OnLostState, onLostStates),
		"cache_denials": func(f yamldoc.Field) { cached := true; p.boolean(&cached)(f); r.NoDenialCache = !cached },
		"elastic":       func(f yamldoc.Field) { p.readElastic(d, f) },
		"reservation":   func(f yamldoc.Field) { p.readReservation(d, f) },
		"response":      func(f yamldoc.Field) { r.Response = p.readResponse(f) },
		"scope":         enum(p, &r.Global, scopes),
		"home":          func(f yamldoc.Field) { p.readHome(d, f) },
	}
	for _, name := range grammar[inDescriptor] { // in a fixed order
		f, ok := d.fields[name]
		if !ok || own[name] == nil {
			continue
		}
		if len(d.limits) == 0 {
			p.reject(f, "has no effect without limits beside it")
		}
		own[name](f)
	}
	p.checkScope(d)
}

// MaxRegion is the most bytes of the name of a region.
const MaxRegion = 63

func (p *parser) readHome(d *descriptor, f yamldoc.Field) {
	home := &d.rule.Home
	switch p.text(home)(f); {
	case *home == bucket.HomeAuto:
	case *home != "" && (len(*home) > MaxRegion || !onlyNameBytes(*home, "-_.")):
		p.reject(f, "must be the name of a region: at most %d letters, digits, dashes, underscores and dots, not %s", MaxRegion, yamldoc.Quote(*home))
	case *home != "" && p.regions != nil && !p.regions(*home):
		p.reject(f, "%s is no region that this process knows: add it to the list of regions, or name one of them", yamldoc.Quote(*home))
	}
}

// checkScope checks scope, home and what must be beside them.
func (p *parser) checkScope(d *descriptor) {
	scope, home := d.fields["scope"], d.fields["home"]
	switch r := d.rule; {
	case !r.Global:
		if home.Value != nil {
			p.reject(home, "is for scope: global; add that, or leave home out")
		}
	case home.Value == nil:
		p.reject(scope, "global needs home beside it: the name of the region whose nodes count")
	case r.Consistency == Eventual && r.Home == bucket.HomeAuto:
		p.reject(home, "auto has no use beside consistency: eventual, where each node decides by itself; name a region")
	case p.regions == nil:
		p.warn(scope.Line, scope.Path, "global has no effect on nodes without a list of regions: there the limit counts in each region by itself")
	}
}

// warnOfForwarding warns of a global rule whose limits grant no leases.
func (p *parser) warnOfForwarding(d *descriptor) {
	if d.rule.Global && d.rule.Consistency != Eventual && d.rule.Limits.LongestLease() == 0 {
		p.warn(d.fields["scope"].Line, d.fields["scope"].Path, "global with these limits takes a round trip to the home region for each check from elsewhere: they grant no leases")
	}
}

// flag reads a key of the descriptor that is true or false.
func (p *parser) flag(d *descriptor, name string) (v bool) {
	if f, ok := d.fields[name]; ok {
		p.boolean(&v)(f)
	}
	return v
}

// maxResponseBody bounds what is sent to every client that is denied.
const maxResponseBody = 64 << 10

func (p *parser) readResponse(at yamldoc.Field) *Response {
	res := &Response{}
	given := p.read(at.Value, at.Path, inResponse, keys{
		"status": number(p, &res.Status, 400, 599),
		"headers": func(f yamldoc.Field) {
			for _, h := range p.Fields(f.Value, f.Path) {
				p.readHeader(res, h)
			}
		},
		"body": p.text(&res.Body),
	})
	if n := len(res.Body); n > maxResponseBody {
		p.reject(given["body"], "has %d bytes; at most %d are sent", n, maxResponseBody)
	}
	return res
}

// ownHeaders are set by the HTTP server for every response.
var ownHeaders = []string{"connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade"}

func (p *parser) readHeader(res *Response, f yamldoc.Field) {
	value, ok := p.String(f.Value, f.Path)
	switch {
	case !isToken(f.Name):
		p.reject(f, "%s is not the name of an HTTP header", yamldoc.Quote(f.Name))
	case slices.Contains(ownHeaders, strings.ToLower(f.Name)):
		p.reject(f, "the server sets this header itself")
	case slices.ContainsFunc(res.Headers, func(h Header) bool { return strings.EqualFold(h.Name, f.Name) }):
		p.reject(f, "the header comes twice")
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		p.reject(f, "a header's value may not hold line breaks or control characters")
	case ok:
		res.Headers = append(res.Headers, Header{Name: f.Name, Value: value})
	}
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool { return s != "" && onlyNameBytes(s, "!#$%&'*+-.^_`|~") }

// onlyNameBytes reports whether s has only ASCII letters, digits and the bytes of others.
func onlyNameBytes(s, others string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune(others, c))
	})
}

// leastEventual is the shortest period in eventual mode: nodes report their counts to each other every 50 ms.
const leastEventual = time.Second

// checkConsistency rejects limits that eventual mode cannot keep: a node that decides alone can only count in a window
// that begins and ends at the same time on all nodes.
func (p *parser) checkConsistency(d *descriptor) {
	f, ok := d.fields["consistency"]
	if !ok || d.rule.Consistency != Eventual {
		return
	}
	reject := func(format string, args ...any) { p.reject(f, format, args...) }
	if len(d.limits) > 1 {
		reject("eventual takes one limit, and the rule has %d", len(d.limits))
	}
	if r, ok := d.fields["replication"]; ok && d.rule.Replication == ReplicateSync {
		p.reject(r, "sync makes no sense beside consistency: eventual, which answers before any other node has the charge")
	}
	if o, ok := d.fields["on_lost_state"]; ok && d.rule.OnLostState == LostDeny {
		p.reject(o, "deny makes no sense beside consistency: eventual, where every node decides alone: use fresh, or leave it out")
	}
	if e, ok := d.fields["elastic"]; ok {
		p.reject(e, "has no effect beside consistency: eventual: give up one of them")
	}
	for i := range d.limits {
		l := &d.limits[i]
		switch {
		case l.Algorithm != bucket.FixedWindow:
			reject("eventual needs a fixed_window, not a %s", l.Algorithm)
		case l.Align == bucket.AlignFirstHit:
			reject("eventual needs a window that begins for all nodes at once: align epoch or calendar, not first_hit")
		case l.Align != bucket.AlignCalendar && l.Period < leastEventual:
			reject("eventual needs a period of 1s or more, not %v", l.Period)
		case l.Soft != 0:
			reject("eventual has no soft margin: leave soft out")
		case l.MinInterval != 0:
			reject("eventual keeps no min_interval: leave it out")
		case l.BlockFor != 0:
			reject("eventual keeps no block_for: leave it out")
		case l.Cost > 1:
			reject("eventual takes no weight of a limit: leave it out")
		}
	}
}

// Replication says when a replica gets a charge.
type Replication uint8

const (
	// ReplicateNone keeps counters on their owner only.
	ReplicateNone Replication = iota
	// ReplicateAsync responds first and replicates a moment later.
	ReplicateAsync
	// ReplicateSync responds once the replica has the charge.
	ReplicateSync
)

// defaultLostState is the default of on_lost_state: deny for rules that prefer denying to over-admission, or that wait
// for a replica. In eventual mode nodes decide alone, so no counter can be lost.
func defaultLostState(r *Rule) OnLostState {
	if r.Consistency != Eventual &&
		(r.OnFailure == FailClosed || r.OnPartition == FailClosed || r.Replication == ReplicateSync) {
		return LostDeny
	}
	return LostFresh
}

func (r Replication) String() string { return nameOf(replications, r) }

// asyncFrom is the shortest period that is replicated by default.
const asyncFrom = 10 * time.Second

// DefaultReplication is that of rules without replication, and of checks with limits of their own: async if the longest
// period is ten seconds or more, since losing a counter then matters for long, or with concurrency; else none.
func DefaultReplication(l *bucket.Limits) Replication {
	for i := range l.Len() {
		// A calendar unit is a minute at least, as is the usual time of a reservation. What is unlimited counts nothing.
		one := l.At(i)
		if !one.Unlimited && (one.Algorithm == bucket.Concurrency || one.Align == bucket.AlignCalendar || one.Period >= asyncFrom) {
			return ReplicateAsync
		}
	}
	return ReplicateNone
}

// elasticRef is a rule's key elastic, until all files are read and its pool can be found.
type elasticRef struct {
	rule   *Rule
	file   string
	domain *domain
	// at is the key elastic, and keys are those in it.
	at                          yamldoc.Field
	keys                        map[string]yamldoc.Field
	pool, priority, priorityKey string
}

// readElastic reads the key elastic of d.
func (p *parser) readElastic(d *descriptor, at yamldoc.Field) {
	ref := elasticRef{rule: d.rule, file: p.file, domain: p.domain, at: at}
	before := p.Count()
	ref.keys = p.read(at.Value, at.Path, inElastic, keys{
		"pool": p.text(&ref.pool), "priority": p.text(&ref.priority), "priority_key": p.text(&ref.priorityKey),
	})
	if p.Count() > before {
		return
	}
	if ref.pool == "" {
		p.ErrorfAt(cmp.Or(ref.keys["pool"].Line, at.Line), at.Path+".pool", "is missing: name a pool of this domain")
		return
	}
	p.checkOwn(d)
	if p.Count() == before {
		p.elastic = append(p.elastic, ref)
	}
}

// checkOwn rejects limits whose denial a pool cannot override.
func (p *parser) checkOwn(d *descriptor) {
	for i := range d.limits {
		l := &d.limits[i]
		reject := func(key, reason string) { p.reject(l.fields[key], "does not go with elastic: %s", reason) }
		switch {
		case l.Unlimited:
			reject("unlimited", "the rule denies nothing")
		case l.MinInterval > 0:
			reject("min_interval", "a pool has units to give and no time")
		case l.BlockFor > 0:
			reject("block_for", "a pool would admit what is blocked")
		case l.CountDenied:
			reject("count_denied", "what the pool admits would count as denied")
		case l.Algorithm == bucket.LeakyQueue:
			reject("algorithm", "checks that the pool admits would overtake those that wait in the queue")
		case l.Algorithm == bucket.Concurrency:
			reject("algorithm", "reservations take units of concurrency, and never of a pool")
		}
	}
}

// Pool returns the domain's pool of that name, nil if there is none. It does not allocate.
func (s *Set) Pool(domain, name string) *Pool {
	if d := s.domains[domain]; d != nil {
		return d.pools[name]
	}
	return nil
}

// Pools returns every pool, by domain and name.
func (s *Set) Pools() []*Pool {
	var out []*Pool
	for _, domain := range s.Domains() {
		pools := s.domains[domain].pools
		for _, name := range slices.Sorted(maps.Keys(pools)) {
			out = append(out, pools[name])
		}
	}
	return out
}

// joinPools gives the rules with elastic their pools, which may stand in any file of the domain, and warns of pools that
// no rule takes from. All files must have been read.
func (s *Set) joinPools(refs []elasticRef) (errs []error) {
	used := make(map[*Pool]bool)
	for i := range refs {
		ref := &refs[i]
		pool := ref.domain.pools[ref.pool]
		if pool == nil {
			errs = append(errs, ref.errorAt("pool", "the domain has no pool "+yamldoc.Quote(ref.pool)))
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
	return errs
}

// errorAt is an error at one of the keys, or at elastic if the key is missing.
func (ref *elasticRef) errorAt(key, reason string) error {
	return &Error{File: ref.file, Line: cmp.Or(ref.keys[key].Line, ref.at.Line), Path: ref.at.Path + "." + key, Reason: reason}
}

// join makes the rule's Elastic.
func (ref *elasticRef) join(pool *Pool) error {
	e, names := &Elastic{Pool: pool, level: -1}, strings.Join(pool.Priorities(), ", ")
	if names != "" {
		e.priority = pool.find(ref.priority)
	}
	if ref.priorityKey != "" {
		e.level = slices.IndexFunc(ref.rule.levels, func(l level) bool { return l.entry.Key == ref.priorityKey })
	}
	switch quoted := yamldoc.Quote(pool.Name); {
	case names == "" && ref.priority != "":
		return ref.errorAt("priority", "pool "+quoted+" has no reserves, so all rules take from it alike")
	case names == "" && ref.priorityKey != "":
		return ref.errorAt("priority_key", "pool "+quoted+" has no reserves, so all rules take from it alike")
	case names != "" && ref.priority == "":
		return ref.errorAt("priority", "is missing: pool "+quoted+" has "+names)
	case e.priority < 0:
		return ref.errorAt("priority", "must be one of "+names+", not "+yamldoc.Quote(ref.priority))
	case ref.priorityKey != "" && e.level < 0:
		return ref.errorAt("priority_key", "no entry that leads to this rule has the key "+yamldoc.Quote(ref.priorityKey))
	}
	ref.rule.Elastic = e
	return nil
}
