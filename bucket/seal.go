package bucket

// A table of a node that shares partitions with others has one shard for each of them. A shard
// is open while this node holds its partition and sealed else. What is in a sealed shard is
// a copy: it is written by Import and read by Export, and by nothing that decides.

// Verdict says whether Try decided.
type Verdict uint8

const (
	// Decided: the decision counts.
	Decided Verdict = iota
	// Sealed: the shard is sealed. Nothing was read or charged.
	Sealed
	// Behind: the oldest unconfirmed change of the shard's journal is too old. Nothing was charged.
	Behind
)

// Seal closes the shard: Try decides nothing there until Open, and receipts give nothing back.
// When Seal returns, no decision is under way. New tables are open.
func (t *Table) Seal(shard int) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.sealed = true
}

// Open ends Seal. The shard's changes are numbered on from seq.
func (t *Table) Open(shard int, seq uint64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.sealed, sh.mu.seq = false, seq
}

// Try is Do, and DoHeld if rc is not nil, unless the shard is sealed or its journal is behind; then
// d is zero and rc is empty. Limits that can neither deny nor count are never behind. seq is the number of the
// shard's last change, with what r has changed. now is Unix time in ns.
//
// Do and DoHeld ask for no seal and no gate, but what they change is counted and recorded all the same.
func (t *Table) Try(now int64, r *Request, rc *Receipt) (d Decision, seq uint64, v Verdict) {
	if rc != nil {
		rc.counter = nil
	}
	seq, v = t.try(now, r, rc, &d)
	return d, seq, v
}

// try is Try, with its answer in d, which is zero; rc is empty or nil.
func (t *Table) try(now int64, r *Request, rc *Receipt, d *Decision) (seq uint64, v Verdict) {
	verb, cost := r.normal()
	now = inRange(now)
	own := r.Key.Shard(len(t.shards))
	sh := &t.shards[own]
	idle := r.Limits.unlimited && verb != Reset
	sh.mu.Lock()
	if v = sh.verdictLocked(now, r.Transient || idle); v != Decided || idle {
		seq = sh.mu.seq
		sh.mu.Unlock()
		if v == Decided {
			*d = unlimitedDecision()
		}
		return seq, v
	}
	o := sh.decideLocked(sh.atLocked(now), r, verb, cost, rc, d)
	t.followLocked(sh, own, now, r.Key, o, r.Transient && verb != Reset)
	seq = sh.mu.seq
	sh.mu.Unlock()
	if d.Lost {
		t.deniedLost.Add(1)
	}
	if o.grown > 0 && t.over() != nothing {
		t.evictElsewhere(now, own)
	}
	return seq, Decided
}

// verdictLocked says whether the shard may decide at now. ungated requests do not mind the gate.
func (sh *shard) verdictLocked(now int64, ungated bool) Verdict {
	switch {
	case sh.mu.sealed:
		return Sealed
	case !ungated && sh.mu.journal.behind(now):
		return Behind
	}
	return Decided
}
