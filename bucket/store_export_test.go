package bucket

// failer is the part of testing.TB and of *rapid.T that checks need.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustLimits(t failer, list ...Limit) *Limits {
	t.Helper()
	return limitsIn(t, "", list...)
}

func limitsIn(t failer, domain string, list ...Limit) *Limits {
	t.Helper()
	l, err := NewLimitsIn(domain, list...)
	if err != nil {
		t.Fatalf("NewLimits(%+v): %v", list, err)
	}
	return l
}

func mustTable(t failer, c Config) *Table {
	t.Helper()
	table, err := NewTable(c)
	if err != nil {
		t.Fatalf("NewTable(%+v): %v", c, err)
	}
	return table
}

// hand exports keys of a shard of from, and imports them into to.
func hand(t failer, from, to *Table, now int64, shard int, keys []KeyAt, merge bool) {
	t.Helper()
	var im Image
	from.Export(now, shard, keys, &im)
	if err := to.Import(now, shard, &im, im.Data, im.Counters, merge); err != nil {
		t.Fatalf("importing what was exported: %v", err)
	}
}

// counterOf returns a copy of the counter of key in its shard, nil if there is none.
func (t *Table) counterOf(key Key) *counter {
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	c := sh.getLocked(never+1, key)
	if c == nil {
		return nil
	}
	made := c.copyTo(new(more))
	made.unshare()
	return &made
}

// At returns keys for Export, which has to find their counters.
func At(keys ...Key) []KeyAt {
	list := make([]KeyAt, len(keys))
	for i, k := range keys {
		list[i].Key = k
	}
	return list
}

// countersOf returns copies of the counters and grants of a shard.
func (t *Table) countersOf(shard int) (list []*counter) {
	for slot := range t.shards[shard].mu.store.n {
		list = append(list, t.counterOf(t.shards[shard].mu.store.at(slot).key))
	}
	return list
}

// accountOf returns the account of l, nil if no counter refers to l.
func (t *Table) accountOf(l *Limits) *account {
	t.accounts.Lock()
	defer t.accounts.Unlock()
	return t.accounts.bySet[l]
}

// bytes returns the memory of the index.
func (x *index) bytes() int64 { return 64 * int64(len(x.lines)+len(x.old)) }

// bytes returns the memory that c needs in a table.
func (c *counter) bytes() int64 {
	if c.fits() {
		return LeastBytes
	}
	n := LeastBytes + blockBytes(c.sideBytes())
	if l := c.ledger(); l != nil {
		n += blockBytes(ledgerBytes(int(l.most)))
	}
	for i := range c.states() {
		if s := c.at(i); s.log != nil {
			n += blockBytes(ringBytes(len(s.log.ring)))
		}
	}
	return n
}
