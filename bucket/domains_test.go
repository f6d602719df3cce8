package bucket

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func hourly(count int64) Limit {
	return Limit{Algorithm: FixedWindow, Count: count, Period: time.Hour}
}

const anHour = int64(time.Hour)

// use checks units of a key at anHour.
func use(table *Table, key Key, limits *Limits, units int64) Decision {
	return table.Do(anHour, &Request{Key: key, Limits: limits, Cost: units})
}

// A domain that floods the table with keys evicts its own counters: the keys that another domain has spent stay denied,
// whatever the caps count, and though nothing uses them meanwhile.
func TestFloodOfOneDomainLeavesOthers(t *testing.T) {
	for name, c := range map[string]Config{
		"entries, one shard": {Shards: 1, MaxEntries: 1000},
		"entries":            {Shards: 61, MaxEntries: 5000},
		"bytes":              {Shards: 61, MaxBytes: 1 << 20},
		"deny":               {Shards: 61, MaxEntries: 5000, WhenFull: DenyNew},
	} {
		t.Run(name, func(t *testing.T) {
			const victims = 300
			table, shop, zzz := mustTable(t, c), limitsIn(t, "shop", hourly(5)), limitsIn(t, "zzz", hourly(1))
			for i := range victims {
				use(table, spreadKey(i), shop, 5)
			}
			for i := range 50_000 {
				if use(table, spreadKey(1_000_000+i), zzz, 1); table.farOver() {
					t.Fatalf("after %d keys the table is above its caps: %+v", i, table.Stats())
				}
			}
			for i := range victims {
				if table.Do(anHour, &Request{Key: spreadKey(i), Limits: shop, Verb: Read}).Allowed {
					t.Fatalf("key %d of the other domain was allowed again", i)
				}
			}
			denies := c.WhenFull == DenyNew
			for _, d := range table.Domains() {
				if d.Name == "shop" && (d.Entries != victims || d.EvictedLive != 0) || d.Name == "zzz" && (d.EvictedLive == 0) != denies {
					t.Errorf("%+v", d)
				}
			}
			if denied := table.Stats().DeniedFull; (denied > 0) != denies {
				t.Errorf("%d checks were denied because the table was full", denied)
			}
		})
	}
}

// Of one domain's keys those that are spent go last, those that were used once go before those that were used again, and one that is used
// again and again stays.
func TestKeysThatMatterGoLast(t *testing.T) {
	table, limits, constant := mustTable(t, Config{Shards: 1, MaxEntries: 400}), limitsIn(t, "shop", hourly(5)), limitsIn(t, "shop", hourly(1000))
	for i := range uint64(100) {
		use(table, Key{Hi: i}, limits, 5) // spent
		for range 2 {
			use(table, Key{Hi: 100 + i}, limits, 1) // used again
		}
		use(table, Key{Hi: 200 + i}, limits, 1)  // used once
		use(table, Key{Hi: 1000 + i}, limits, 1) // the first of the flood
	}
	count := func(from uint64) (n int) {
		for i := range uint64(100) {
			if table.Has(Key{Hi: from + i}) {
				n++
			}
		}
		return n
	}
	for i := range uint64(200) {
		use(table, Key{Hi: 2000 + i}, limits, 1)
	}
	if s, a, o := count(0), count(100), count(200); s != 100 || a != 100 || o != 0 {
		t.Errorf("after 200 new keys there are %d that were spent, %d that were used again, %d that were used once; want 100, 100, 0", s, a, o)
	}
	for i := range uint64(4000) {
		if use(table, Key{Hi: 10_000 + i}, limits, 1); i%25 == 0 {
			if d, uses := use(table, Key{Hi: 1 << 32}, constant, 1), int64(i/25+1); d.Limit-d.Remaining != uses {
				t.Fatalf("after %d keys the one in constant use has spent %d, want %d", i, d.Limit-d.Remaining, uses)
			}
		}
	}
	if s, a := count(0), count(100); s != 100 || a != 0 {
		t.Errorf("after 4,000 more there are %d that were spent, %d that were used again; want 100, 0", s, a)
	}
}

// A domain with a cap has no more counters than that, a quarter more at most where they have to be looked for among those of
// others, and no other domain has fewer by it.
func TestMaxKeysOfDomain(t *testing.T) {
	for whenFull, most := range map[WhenFull]int64{EvictOld: 250, DenyNew: 200} {
		table := mustTable(t, Config{Shards: 61, WhenFull: whenFull})
		table.SetDomains(map[string]int64{"small": 200})
		small, large := limitsIn(t, "small", hourly(5)), limitsIn(t, "large", hourly(5))
		for i := range uint64(20_000) {
			use(table, Key{Hi: 1, Lo: i}, small, 1)
			use(table, Key{Hi: 2, Lo: i}, large, 1)
		}
		for _, d := range table.Domains() {
			if d.Name == "small" && (d.Entries < 200 || d.Entries > most) || d.Name == "large" && d.Entries != 20_000 {
				t.Errorf("when full %d: %+v", whenFull, d)
			}
		}
	}
}

// Domains beyond MaxDomains share an account, named ones and those of the first that came have their own. What has no counters
// gives its place away, and its count of evictions goes to the others'.
func TestAccountsOfDomainsAreBounded(t *testing.T) {
	table := mustTable(t, Config{Shards: 3})
	table.SetDomains(map[string]int64{"named": 0, "capped": 10})
	for i := range uint64(2 * MaxDomains) {
		use(table, Key{Lo: i}, limitsIn(t, fmt.Sprint("d", i), hourly(5)), 1)
	}
	use(table, Key{Hi: 1}, limitsIn(t, "named", hourly(5)), 1)
	list := table.Domains()
	if len(list) != MaxDomains+3 {
		t.Errorf("%d accounts, want %d", len(list), MaxDomains+3)
	}
	for _, d := range list {
		if want := map[string]int64{OtherDomains: MaxDomains, "capped": 0}; d.Entries != want[d.Name] && (d.Entries != 1 || want[d.Name] != 0) {
			t.Errorf("%+v", d)
		}
	}
	for i := range 3 {
		table.Sweep(3*anHour, i)
	}
	table.SetDomains(nil)
	if list := table.Domains(); len(list) != 1 || list[0].Name != OtherDomains || list[0].Bytes != 0 {
		t.Errorf("when all have gone there are %+v", list)
	}
}

// A domain that came after MaxDomains others keeps what it asks for again and again, as long as it has no more than they have.
func TestDomainBeyondMaxDomainsKeepsItsCounters(t *testing.T) {
	const domains, most = MaxDomains + 144, 20_000
	table := mustTable(t, Config{Shards: 61, MaxEntries: most})
	var limits []*Limits
	for i := range domains {
		limits = append(limits, limitsIn(t, fmt.Sprint("d", i), hourly(100)))
	}
	now, victim := anHour, limitsIn(t, "victim", hourly(30))
	admitted := 0
	for i := range uint64(5 * most) {
		table.Do(now+int64(i), &Request{Key: Key{Lo: i * 7919, Hi: i}, Limits: limits[i%domains], Cost: 1})
		if i >= domains && i%1000 == 0 && table.Do(now+int64(i), &Request{Key: Key{Hi: 1 << 60}, Limits: victim, Cost: 1}).Allowed {
			admitted++
		}
	}
	if admitted != 30 || table.Stats().EvictedLive < most {
		t.Errorf("%d of 30 admitted, %d evicted", admitted, table.Stats().EvictedLive)
	}
}

// The bytes of limits count as long as counters refer to them, and only once. Beyond MaxSets they go, with their counters.
func TestSetsOfLimitsCount(t *testing.T) {
	const most = 64
	table := mustTable(t, Config{Shards: 7, MaxSets: most})
	set := func(domain string, i uint64) *Limits {
		list := make([]Limit, MaxLimits)
		for j := range list {
			list[j] = hourly(int64(100*i) + int64(j) + 1)
		}
		return limitsIn(t, domain, list...)
	}
	twoKeys := func(i uint64, l *Limits) {
		for j := range uint64(2) {
			use(table, Key{Hi: j, Lo: i}, l, 1)
		}
	}
	shop, want := set("shop", 1), int64(0)
	want += shop.bytes()
	twoKeys(1, shop)
	for i := range uint64(most - 1) {
		l := set("zzz", i)
		want += l.bytes()
		if full := table.SetsFull("zzz"); full != (i >= most/2) {
			t.Errorf("with %d sets of the domain it is told to bring no more: %v", i, full)
		}
		twoKeys(2+i, l)
	}
	if s := table.Stats(); s.Sets != most || s.SetBytes != want || s.SetBytes < most*MaxLimits*150 || s.EvictedLive != 0 {
		t.Errorf("%+v, want %d sets of %d bytes", s, most, want)
	}
	if table.SetsFull("other") || table.SetsFull("shop") {
		t.Error("a domain with few sets is told to bring no more")
	}
	for i := range uint64(1000) {
		use(table, Key{Hi: 9, Lo: i}, set("zzz", 1000+i), 1)
		if s := table.Stats(); s.Sets > most+most/slack {
			t.Fatalf("%+v", s)
		}
	}
	if !table.Has(Key{Lo: 1}) {
		t.Error("the counters of a set that others do not have too many of are gone")
	}
	for i := range 7 {
		table.Sweep(3*anHour, i)
	}
	if s := table.Stats(); s.Sets != 0 || s.SetBytes != 0 || s.Bytes != 0 {
		t.Errorf("when all counters have gone: %+v", s)
	}
}

// Whatever is done to a table, its accounts are those of its counters.
func TestAccountsAreThoseOfCounters(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := Config{Shards: 3, MaxEntries: 60, MaxBytes: 100_000}
	tables := []*Table{mustTable(t, c), mustTable(t, c)}
	var sets []*Limits
	for _, domain := range []string{"", "a", "b"} {
		sets = append(sets,
			limitsIn(t, domain, hourly(3)), limitsIn(t, domain, hourly(3), Limit{Algorithm: SlidingLog, Count: 9, Period: time.Minute}),
			limitsIn(t, domain, Limit{Algorithm: TokenBucket, Count: 4, Period: time.Second}), limitsIn(t, domain, hourly(3)))
	}
	now := anHour
	for step := range 20_000 {
		now += random.Int64N(int64(time.Second))
		table := tables[random.IntN(2)]
		key := Key{Lo: uint64(random.IntN(90))}
		l := sets[random.IntN(len(sets))]
		switch random.IntN(12) {
		case 0:
			table.Grant(now, &LeaseRequest{Key: key, Limits: l, Want: 1, Part: 1, Whole: 1, For: 20 * time.Millisecond})
		case 1, 2:
			shard := random.IntN(3)
			hand(t, table, tables[random.IntN(2)], now, shard, table.Keys(shard, nil), random.IntN(2) == 0)
		case 3:
			table.Sweep(now, random.IntN(3))
		case 4:
			if step%97 == 0 {
				table.DropShard(random.IntN(3))
			}
		case 5:
			if l.Len() == 1 {
				table.Leave(now, key, l, []int64{1})
			}
		default:
			table.Do(now, &Request{Key: key, Limits: l, Cost: 1, Verb: Verb(random.IntN(int(Reset) + 1))})
		}
		if step%20 == 0 {
			for _, table := range tables {
				table.judgeAccounts(t, step)
			}
		}
	}
}

// title is the name of d in Table.Domains.
func (d *domain) title() string {
	if d.shared {
		return OtherDomains
	}
	return d.name
}

func (t *Table) judgeAccounts(test *testing.T, step int) {
	test.Helper()
	entries, bytes := make(map[string]int64), make(map[string]int64)
	refs := make(map[*Limits]int64)
	var all int64
	for i := range t.shards {
		for _, c := range t.countersOf(i) {
			d := t.accountOf(c.limits).domain.title()
			entries[d]++
			bytes[d] += c.bytes()
			all += c.bytes()
			refs[c.limits]++
			for _, x := range c.shadows() {
				refs[x.limits]++
			}
		}
	}
	for l, n := range refs {
		bytes[t.accountOf(l).domain.title()] += l.bytes()
		all += l.bytes()
		if got := t.accountOf(l).refs.Load(); got != n {
			test.Fatalf("step %d: %d references to a set, %d are accounted for", step, n, got)
		}
	}
	if s := t.Stats(); s.Sets != int64(len(refs)) || s.Bytes != all {
		test.Fatalf("step %d: %+v; there are %d sets and %d bytes", step, s, len(refs), all)
	}
	for _, d := range t.Domains() {
		if d.Entries != entries[d.Name] || d.Bytes != bytes[d.Name] {
			test.Fatalf("step %d: %+v; there are %d counters of %d bytes", step, d, entries[d.Name], bytes[d.Name])
		}
	}
}

// A counter stays in the account that it was made in while its limits are equal.
func TestCountersStayInTheirAccount(t *testing.T) {
	table := mustTable(t, Config{Shards: 1})
	for i, c := range []struct {
		in   string
		list Limit
		want string
	}{{"", hourly(5), OtherDomains}, {"shop", hourly(5), "shop"}, {"(caller) eve", hourly(5), "shop"}, {"shop", hourly(5), "shop"}, {"(caller) eve", hourly(6), "(caller) eve"}} {
		d := use(table, Key{}, limitsIn(t, c.in, c.list), 1)
		if c := table.countersOf(0)[0]; d.Limit-d.Remaining != int64(i+1) || table.accountOf(c.limits).domain.name == "" {
			t.Errorf("step %d: %+v", i, d)
		}
		for _, d := range table.Domains() {
			if want := d.Name == c.want; (d.Entries == 1) != want {
				t.Errorf("step %d: %+v", i, d)
			}
		}
	}
}

// TestSpentKeysStayFarAboveTheCap: a table that is far above its cap, as transfers can make it, and of which few counters may go, evicts none that
// is completely spent while there are others: it never has to take the only one that it has looked at.
func TestSpentKeysStayFarAboveTheCap(t *testing.T) {
	const spent, domains = 400, 20
	quiet := limitsIn(t, "quiet", hourly(1))
	var others []*Limits
	for i := range domains {
		others = append(others, limitsIn(t, fmt.Sprint("other-", i), hourly(1000)))
	}
	for seed := range uint64(10) {
		table := mustTable(t, Config{Shards: 1, MaxEntries: 4000})
		random := rand.New(rand.NewPCG(1, seed))
		keys := slices.Repeat([]*Limits{quiet}, spent)
		keys = append(keys, slices.Repeat(others[:1], 1500)...) // so many more than others have that these alone may go
		keys = append(keys, slices.Repeat(others[1:], 100)...)
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		var standing []Key
		for i, l := range keys {
			k := Key{Hi: 1, Lo: uint64(i)}
			use(table, k, l, 1)
			if l == quiet {
				standing = append(standing, k)
			}
		}
		table.maxEntries = 3000
		for i := uint64(0); table.farOver(); i++ {
			use(table, Key{Hi: 2, Lo: i}, others[random.IntN(domains)], 1)
		}
		for _, k := range standing {
			if !table.Has(k) {
				t.Fatalf("seed %d: of %d spent keys one was evicted", seed, spent)
			}
		}
	}
}

// TestManyDomainsShareSets: domains that share an account share its sets of limits too, so that
// many domains with equal limits do not use up the sets.
func TestManyDomainsShareSets(t *testing.T) {
	table := mustTable(t, Config{Shards: 7})
	sets := map[string]*Limits{}
	for i := range uint64(20_000) {
		name := table.Account(fmt.Sprint("d", i))
		if sets[name] == nil {
			sets[name] = limitsIn(t, name, hourly(1))
		}
		use(table, Key{Hi: i, Lo: i}, sets[name], 1)
	}
	s := table.Stats()
	if s.Entries != 20_000 || s.Sets > MaxDomains+otherDomains || s.Sets < MaxDomains+otherDomains/2 {
		t.Errorf("%d counters of as many domains have %d sets", s.Entries, s.Sets)
	}
	if got := table.Account("d7"); got != "d7" {
		t.Errorf("the account of a domain that has its own is %q", got)
	}
	table.SetDomains(map[string]int64{"d19999": 0})
	if got := table.Account("d19999"); got != "d19999" {
		t.Errorf("the account of a domain that has got its own is %q", got)
	}
	if n := len(table.Domains()); n != MaxDomains+2 {
		t.Errorf("%d accounts are listed, want %d", n, MaxDomains+2)
	}
}

// TestSetsOfOthersShutNobodyOut: where other domains have used up the sets of limits, a domain can
// bring a fair share of them, and keeps what it has spent under these.
func TestSetsOfOthersShutNobodyOut(t *testing.T) {
	const most = 16 * (MaxDomains + otherDomains)
	table := mustTable(t, Config{Shards: 7, MaxSets: most})
	table.SetDomains(map[string]int64{"shop": 0})
	sent := uint64(0)
	flood := func() {
		for range 3 * most {
			sent++
			name := table.Account(fmt.Sprint("d", sent))
			if table.SetsFull(name) {
				continue
			}
			l := limitsIn(t, name, hourly(int64(sent)))
			use(table, Key{Hi: sent, Lo: sent}, l, int64(sent))
			if s := table.Stats(); s.Sets > most+most/slack {
				t.Fatalf("%+v", s)
			}
		}
	}
	flood()
	if s := table.Stats(); s.Sets < most {
		t.Fatalf("%d sets, want %d", s.Sets, most)
	}
	const fair = 8 // half of what each account would have
	var kept []*Limits
	for i := range uint64(fair) {
		if table.SetsFull("shop") || table.SetsFull(table.Account("late")) {
			t.Fatalf("after %d sets a domain is told to bring no more", i)
		}
		l := limitsIn(t, "shop", hourly(int64(2+i)))
		kept = append(kept, l)
		use(table, Key{Lo: i}, l, int64(2+i))
	}
	flood()
	for i, l := range kept {
		if use(table, Key{Lo: uint64(i)}, l, 1).Allowed {
			t.Errorf("the flood has evicted what the domain has spent under set %d", i)
		}
	}
}
