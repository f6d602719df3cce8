package bucket

import (
	"hash/maphash"
	"sync/atomic"
	"unsafe"
)

// Key names one counter: a 128-bit keyed hash of a domain and a descriptor. The
// strings themselves are never kept beside a counter.
type Key struct {
	Hi uint64 `cbor:"1,keyasint"`
	Lo uint64 `cbor:"2,keyasint"`
}

// Shard returns the shard, in [0, shards), that k belongs to. A cluster uses as
// many shards as it has partitions, so that one lock, one LRU list and one unit
// of ownership are the same thing. shards must be positive.
func (k Key) Shard(shards int) int { return int(k.Lo % uint64(shards)) }

// A table accounts for its counters by domain, and for each set of limits as long as a counter refers to it. A counter
// names neither: its limits know their domain, so both cost a counter nothing.

// OtherDomains is the name under which a table accounts for the domains beyond MaxDomains, and for limits without one.
const OtherDomains = "(other)"

// MaxDomains is how many domains a table accounts for one by one, beside those of SetDomains.
const MaxDomains = 256

// otherDomains is how many accounts the domains beyond MaxDomains share, by a hash of the name. With one for all, which would
// soon be the largest, each of these domains would lose its counters to each insert of any other.
const otherDomains = 256

// DefaultMaxSets is the usual Config.MaxSets.
const DefaultMaxSets = 65_536

// domain is what the counters of one domain take of a table.
type domain struct {
	name string
	// entries are the domain's counters, bytes the memory of them and of their limits.
	entries, bytes atomic.Int64
	// maxKeys caps entries; 0 is no cap.
	maxKeys atomic.Int64
	evicted atomic.Uint64
	// sets are its sets of limits that are referred to. Written under Table.accounts.
	sets atomic.Int64
	// shared: it is one of Table.others.
	shared bool
}

// account is how often a table's counters refer to one set of limits.
type account struct {
	table  *Table
	domain *domain
	refs   atomic.Int64
}

// setOverhead is the memory of a Limits and of its account, without its lists.
const setOverhead = int64(unsafe.Sizeof(Limits{})) + int64(unsafe.Sizeof(account{})) + 64

// bytes returns the approximate memory of l.
func (l *Limits) bytes() int64 {
	return setOverhead + int64(len(l.list))*int64(unsafe.Sizeof(Limit{})+unsafe.Sizeof(plan{}))
}

// join adds a reference if there are any.
func (a *account) join() bool {
	for n := a.refs.Load(); n > 0; n = a.refs.Load() {
		if a.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// leave takes a reference away unless it is the last.
func (a *account) leave() bool {
	for n := a.refs.Load(); n > 1; n = a.refs.Load() {
		if a.refs.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// accountOf returns the account of l, nil if no counter refers to l.
func (t *Table) accountOf(l *Limits) *account {
	// The first table that uses the limits, in a process with several, finds its account without a lock.
	if a := l.account.Load(); a != nil && a.table == t {
		return a
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	return t.accounts.bySet[l]
}

// refer notes one more reference to l, and returns its domain.
func (t *Table) refer(l *Limits) *domain {
	if a := l.account.Load(); a != nil && a.table == t && a.join() {
		return a.domain
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	a := t.accounts.bySet[l]
	if a == nil {
		a = &account{table: t, domain: t.domainLocked(l.domain)}
		t.accounts.bySet[l] = a
		l.account.CompareAndSwap(nil, a)
		if a.domain.sets.Add(1) == 1 && a.domain.shared {
			t.listDomainsLocked()
		}
		a.domain.bytes.Add(l.bytes())
		t.bytes.Add(l.bytes())
		t.setBytes.Add(l.bytes())
		t.sets.Add(1)
	}
	a.refs.Add(1)
	return a.domain
}

// unrefer takes a reference to l away, and returns its domain.
func (t *Table) unrefer(l *Limits) *domain {
	a := t.accountOf(l)
	if a.leave() {
		return a.domain
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	if a.refs.Add(-1) > 0 {
		return a.domain
	}
	delete(t.accounts.bySet, l)
	l.account.CompareAndSwap(a, nil)
	a.domain.bytes.Add(-l.bytes())
	t.bytes.Add(-l.bytes())
	t.setBytes.Add(-l.bytes())
	t.sets.Add(-1)
	if a.domain.sets.Add(-1) == 0 {
		t.dropDomainLocked(a.domain)
	}
	return a.domain
}

// domainLocked returns the account of the domain called name. The accounts' lock must be held.
func (t *Table) domainLocked(name string) *domain {
	if d := t.accounts.byName[name]; d != nil {
		return d
	}
	if name == "" || len(t.accounts.byName)-len(t.accounts.named) >= MaxDomains {
		return t.shared(name)
	}
	return t.addDomainLocked(name)
}

// shared returns the one of the others' accounts that a domain called name is in.
func (t *Table) shared(name string) *domain {
	return &t.others[maphash.String(t.seed, name)%otherDomains]
}

func (t *Table) addDomainLocked(name string) *domain {
	d := &domain{name: name}
	t.accounts.byName[name] = d
	t.listDomainsLocked()
	return d
}

// dropDomainLocked takes d, which has no counters, off the list, and makes room for another domain in its place.
func (t *Table) dropDomainLocked(d *domain) {
	if !d.shared {
		if _, named := t.accounts.named[d.name]; named {
			return
		}
		delete(t.accounts.byName, d.name)
		t.shared(d.name).evicted.Add(d.evicted.Load())
	}
	t.listDomainsLocked()
}

func (t *Table) listDomainsLocked() {
	list := make([]*domain, 0, len(t.accounts.byName)+otherDomains)
	for i := range t.others {
		if t.others[i].sets.Load() > 0 {
			list = append(list, &t.others[i])
		}
	}
	for _, d := range t.accounts.byName {
		list = append(list, d)
	}
	t.domains.Store(&list)
}

// SetDomains names domains that are accounted for one by one, however many there are, and caps their counters: 0 is no cap. It
// takes the names and caps of before away. What is above a cap goes by Config.WhenFull.
func (t *Table) SetDomains(maxKeys map[string]int64) {
	t.accounts.Lock()
	defer t.accounts.Unlock()
	before, capped := t.accounts.named, false
	t.accounts.named = maxKeys
	for name, most := range maxKeys {
		d := t.accounts.byName[name]
		if d == nil {
			d = t.addDomainLocked(name)
		}
		d.maxKeys.Store(most)
		capped = capped || most > 0
	}
	for name := range before {
		if _, still := maxKeys[name]; !still {
			d := t.accounts.byName[name]
			d.maxKeys.Store(0)
			if d.sets.Load() == 0 {
				t.dropDomainLocked(d)
			}
		}
	}
	t.capped.Store(capped)
}

// DomainStats is what the counters of one domain take of a table.
type DomainStats struct {
	Name           string
	Entries, Bytes int64
	EvictedLive    uint64
}

// Domains returns the stats of each domain that has counters or a cap, and of OtherDomains, in no order.
func (t *Table) Domains() []DomainStats {
	t.accounts.Lock() // so that no domain goes between two scrapes of what it has become
	defer t.accounts.Unlock()
	others := DomainStats{Name: OtherDomains}
	for i := range t.others {
		d := &t.others[i]
		others.Entries += d.entries.Load()
		others.Bytes += d.bytes.Load()
		others.EvictedLive += d.evicted.Load()
	}
	list := []DomainStats{others}
	for _, d := range t.accounts.byName {
		list = append(list, DomainStats{d.name, d.entries.Load(), d.bytes.Load(), d.evicted.Load()})
	}
	return list
}

// enter accounts for c, of n bytes, as a counter of the shard.
func (sh *shard) enter(c *counter, n int64) {
	t := sh.table
	d := t.refer(c.limits)
	d.entries.Add(1)
	d.bytes.Add(n)
	for _, x := range c.shadows() {
		t.refer(x.limits)
	}
}

// exit undoes enter. Limits and shadows must be those of then.
func (sh *shard) exit(c *counter, n int64) {
	t := sh.table
	for _, x := range c.shadows() {
		t.unrefer(x.limits)
	}
	// Before the last reference goes, and with it the domain's account.
	d := t.accountOf(c.limits).domain
	d.entries.Add(-1)
	d.bytes.Add(-n)
	t.unrefer(c.limits)
}

// resource is what a table has too much of.
type resource uint8

const (
	nothing resource = iota
	tooManyEntries
	tooManyBytes
	tooManySets
)

// over says which cap the table is above, if any.
func (t *Table) over() resource {
	switch {
	case t.entries.Load() > t.maxEntries:
		return tooManyEntries
	case t.bytes.Load() > t.maxBytes:
		return tooManyBytes
	case t.sets.Load() > t.maxSets:
		return tooManySets
	}
	return nothing
}

// farOver reports whether the table is further above a cap than it may be.
func (t *Table) farOver() bool {
	above := func(n, most int64) bool { return n > most && n-most > most/slack }
	return above(t.entries.Load(), t.maxEntries) || above(t.bytes.Load(), t.maxBytes) || above(t.sets.Load(), t.maxSets)
}

// largest returns the most that a domain has of r.
func (t *Table) largest(r resource) (most int64) {
	for _, d := range *t.domains.Load() {
		most = max(most, d.has(r))
	}
	return most
}

// has returns what d has of r.
func (d *domain) has(r resource) int64 {
	switch r {
	case tooManyEntries:
		return d.entries.Load()
	case tooManySets:
		return d.sets.Load()
	}
	return d.bytes.Load()
}

// crowded reports whether d has more counters than its cap allows.
func (d *domain) crowded() bool {
	n := d.maxKeys.Load()
	return n > 0 && d.entries.Load() > n
}

// fullFor reports whether a key without a counter gets none under l.
func (t *Table) fullFor(l *Limits) bool {
	if t.whenFull == DenyNew && (t.entries.Load() >= t.maxEntries || t.bytes.Load() > t.maxBytes-entryBytes) {
		return true
	}
	return t.capped.Load() && t.domainFull(l.domain)
}

// SetsFull reports whether the domain should bring no more sets of limits with its checks: it has as many as the table has
// room for beside those that there are. So half of them are the most that one domain has.
func (t *Table) SetsFull(name string) bool {
	free := t.maxSets - t.sets.Load()
	if free > t.maxSets/2 {
		return false
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	d := t.accounts.byName[name]
	if d == nil {
		d = t.shared(name)
	}
	return free <= 0 || d.sets.Load() >= free
}

// domainFull reports whether the domain gets no more counters. Where it invalidates by evicting its own, that is a quarter above
// its cap: there they are too few among those of others to be found in time.
func (t *Table) domainFull(name string) bool {
	t.accounts.Lock()
	defer t.accounts.Unlock()
	d := t.accounts.byName[name]
	if d == nil {
		return false
	}
	most := d.maxKeys.Load()
	if t.whenFull == EvictOld {
		most += most / 4
	}
	return most > 0 && d.entries.Load() >= most
}
