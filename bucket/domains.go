package bucket

import (
	"hash/maphash"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"
)

// Key identifies one counter: a 128-bit keyed hash of a domain and a descriptor. Counters do not keep the strings.
type Key struct {
	Hi uint64 `cbor:"1,keyasint"`
	Lo uint64 `cbor:"2,keyasint"`
}

// Shard returns the shard of k, in [0, shards). A cluster uses one shard per partition, so that lock, eviction and unit of
// ownership coincide. shards must be positive.
func (k Key) Shard(shards int) int { return int(k.Lo % uint64(shards)) }

// A table accounts for its counters by domain, and for each set of limits while a counter refers to it. Counters have no field
// for either: their limits know the domain.

// OtherDomains is the name for domains beyond MaxDomains and for limits without a domain.
const OtherDomains = "(other)"

// MaxDomains is the number of domains that a table accounts for individually, besides those of SetDomains.
const MaxDomains = 256

// otherDomains is the number of accounts that the other domains share by a hash of the name. A single one would soon be the
// largest account, and then every insert of any other domain would evict from all of them.
const otherDomains = 256

// DefaultMaxSets is the default of Config.MaxSets.
const DefaultMaxSets = 65_536

// domain is the account of one domain.
type domain struct {
	name string
	// entries is the number of its counters, bytes the memory of them and of their limits.
	entries, bytes atomic.Int64
	// maxKeys caps entries; 0 means no cap.
	maxKeys atomic.Int64
	evicted atomic.Uint64
	// sets is the number of its sets of limits in use. Written under Table.accounts.
	sets atomic.Int64
	// shared: it is one of Table.others.
	shared bool
}

// account counts a table's references to one set of limits.
type account struct {
	table  *Table
	limits *Limits
	number uint32
	domain *domain
	refs   atomic.Int64
}

// setOverhead is the memory of a Limits and its account, without its lists.
const setOverhead = int64(unsafe.Sizeof(Limits{})) + int64(unsafe.Sizeof(account{})) + 64

// bytes returns the approximate memory of l.
func (l *Limits) bytes() int64 {
	return setOverhead + int64(len(l.list))*int64(unsafe.Sizeof(Limit{})+unsafe.Sizeof(plan{}))
}

// refer adds by to the references if there are more than above.
func (a *account) refer(by, above int64) bool {
	for n := a.refs.Load(); n > above; n = a.refs.Load() {
		if a.refs.CompareAndSwap(n, n+by) {
			return true
		}
	}
	return false
}

// account returns the account with a number that a record has.
func (t *Table) account(number uint32) *account { return (*t.numbers.Load())[number] }

// numberLocked gives a its number. The accounts' lock must be held.
func (t *Table) numberLocked(a *account) {
	list := *t.numbers.Load()
	if n := len(t.freed); n > 0 {
		a.number = t.freed[n-1]
		t.freed = t.freed[:n-1]
		list[a.number] = a // nobody reads this place: no record has the number
		return
	}
	if a.number = uint32(len(list)); a.number > maxSetNumber {
		panic("bucket: more sets of limits than their cap allows by far")
	}
	list = append(list, a)
	t.numbers.Store(&list)
}

// refer adds a reference to l, and returns its account.
func (t *Table) refer(l *Limits) *account {
	// The first table in the process that uses the limits finds its account without a lock.
	if a := l.account.Load(); a != nil && a.table == t && a.refer(1, 0) {
		return a
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	a := t.accounts.bySet[l]
	if a == nil {
		a = &account{table: t, limits: l, domain: t.domainLocked(l.domain)}
		t.numberLocked(a)
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
	return a
}

// unrefer removes a reference to the limits with a number.
func (t *Table) unrefer(number uint32) {
	a := t.account(number)
	l := a.limits
	if a.refer(-1, 1) {
		return // it was not the last
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	if a.refs.Add(-1) > 0 {
		return
	}
	delete(t.accounts.bySet, l)
	t.freed = append(t.freed, a.number)
	(*t.numbers.Load())[a.number] = nil // no record has the number
	l.account.CompareAndSwap(a, nil)
	a.domain.bytes.Add(-l.bytes())
	t.bytes.Add(-l.bytes())
	t.setBytes.Add(-l.bytes())
	t.sets.Add(-1)
	if a.domain.sets.Add(-1) == 0 {
		t.dropDomainLocked(a.domain)
	}
}

// domainLocked returns the account of a domain. The accounts' lock must be held.
func (t *Table) domainLocked(name string) *domain {
	if d := t.knownLocked(name); d != nil {
		return d
	}
	return t.addDomainLocked(name)
}

// knownLocked returns the account of a domain, nil if it will get one of its own.
func (t *Table) knownLocked(name string) *domain {
	d := t.accounts.byName[name]
	if d == nil && (name == "" || t.crowdedLocked() || strings.HasPrefix(name, OtherDomains)) {
		d = t.shared(name)
	}
	return d
}

// crowdedLocked reports whether further domains share accounts.
func (t *Table) crowdedLocked() bool {
	return len(t.accounts.byName)-len(t.accounts.named) >= MaxDomains
}

// shared returns the shared account of a domain, or that which has the name.
func (t *Table) shared(name string) *domain {
	if number, ok := strings.CutPrefix(name, OtherDomains); ok {
		if i, err := strconv.ParseUint(number, 10, 8); err == nil {
			return &t.others[i]
		}
	}
	return &t.others[maphash.String(t.seed, name)%otherDomains]
}

// Account returns the name that limits should have as their domain if their counters are of the
// domain: another one than its own if it shares an account, so that the account's domains share
// sets of limits as well.
func (t *Table) Account(name string) string {
	if !t.sharing.Load() {
		return name
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	if d := t.knownLocked(name); d != nil {
		return d.name
	}
	return name
}

func (t *Table) addDomainLocked(name string) *domain {
	d := &domain{name: name}
	t.accounts.byName[name] = d
	t.listDomainsLocked()
	return d
}

// dropDomainLocked removes d, which has no counters, from the list, which makes room for another domain.
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
	t.sharing.Store(t.crowdedLocked())
}

// SetDomains sets the domains that are always accounted for individually and the caps of their counters, replacing earlier
// ones. 0 means no cap. Config.WhenFull decides above a cap.
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
	t.sharing.Store(t.crowdedLocked())
}

// DomainStats is the use of a table by one domain.
type DomainStats struct {
	Name           string
	Entries, Bytes int64
	EvictedLive    uint64
}

// Domains returns the stats of each domain that has counters or a cap, and of OtherDomains, in no order.
func (t *Table) Domains() []DomainStats {
	t.accounts.Lock() // so that no domain becomes another account between two scrapes
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
	a := t.refer(c.limits)
	a.domain.entries.Add(1)
	a.domain.bytes.Add(n)
	c.set = a.number
	list := c.shadows()
	for i := range list {
		list[i].set = t.refer(list[i].limits).number
	}
}

// exit undoes enter, and returns the bytes of c. Limits and shadows must not have changed since.
func (sh *shard) exit(c *counter) (n int64) {
	t := sh.table
	for _, x := range c.shadows() {
		t.unrefer(x.set)
	}
	// Before the last reference is removed, and the domain's account with it.
	n = sh.mu.store.at(c.slot).bytes()
	d := t.account(c.set).domain
	d.entries.Add(-1)
	d.bytes.Add(-n)
	t.unrefer(c.set)
	return n
}

type resource uint8

const (
	nothing resource = iota
	tooManyEntries
	tooManyBytes
	tooManySets
)

// over returns the resource whose cap the table exceeds, if any.
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

// farOver reports whether the table exceeds a cap by more than the tolerated part.
func (t *Table) farOver() bool {
	above := func(n, most int64) bool { return n > most && n-most > most/slack }
	return above(t.entries.Load(), t.maxEntries) || above(t.bytes.Load(), t.maxBytes) || above(t.sets.Load(), t.maxSets)
}

// largest returns the largest use of r by a domain.
func (t *Table) largest(r resource) (most int64) {
	for _, d := range *t.domains.Load() {
		most = max(most, d.has(r))
	}
	return most
}

func (d *domain) has(r resource) int64 {
	switch r {
	case tooManyEntries:
		return d.entries.Load()
	case tooManySets:
		return d.sets.Load()
	}
	return d.bytes.Load()
}

// crowded reports whether d exceeds its own cap.
func (d *domain) crowded() bool {
	n := d.maxKeys.Load()
	return n > 0 && d.entries.Load() > n
}

// fullFor reports whether a new key gets no counter under l. With EvictOld a domain may exceed its cap by a quarter, because its
// counters may be too few among others to be found for eviction in time.
func (t *Table) fullFor(l *Limits) bool {
	if t.whenFull == DenyNew && (t.entries.Load() >= t.maxEntries || t.bytes.Load() > t.maxBytes-LeastBytes) {
		return true
	}
	if !t.capped.Load() {
		return false
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	d := t.accounts.byName[l.domain]
	if d == nil {
		return false
	}
	most := d.maxKeys.Load()
	if t.whenFull == EvictOld {
		most += most / 4
	}
	return most > 0 && d.entries.Load() >= most
}

// SetsFull reports whether an account should get no more sets of limits from checks: it has its
// fair share of them, and as many as the table has free, so at most half. Domains without an
// account of their own evict each other's instead: one of them cannot use up what others need.
func (t *Table) SetsFull(name string) bool {
	free := t.maxSets - t.sets.Load()
	if free > t.maxSets/2 {
		return false
	}
	t.accounts.Lock()
	defer t.accounts.Unlock()
	d := t.accounts.byName[name]
	return d != nil && d.sets.Load() >= max(free, t.maxSets/int64(len(*t.domains.Load())), 1)
}
