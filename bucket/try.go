package bucket

import "math"

// A node's table has one shard per partition. A shard is open while the node owns the partition,
// otherwise sealed. A sealed shard has a replica: only Import, Merge and Lapse write it and only
// Export reads it; nothing is decided there.

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

// Seal closes the shard: until Open, Try decides nothing there and receipts give nothing back. When Seal returns, no decision
// is in progress. New tables are open.
func (t *Table) Seal(shard int) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	sh.dropLedgersLocked()
	sh.mu.sealed = true
}

// Sealed reports whether the shard is closed.
func (t *Table) Sealed(shard int) bool {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	return sh.mu.sealed
}

// Open ends Seal. The shard's changes are numbered from seq.
func (t *Table) Open(shard int, seq uint64) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	sh.mu.sealed, sh.mu.seq = false, seq
	sh.makeLedgersLocked()
}

// Lapse ends the grants of a sealed shard whose deadline has passed at now (Unix ns), by deadline,
// as deciding does in an open one. Only the next owner may do so, before it merges other states
// into the shard: at any other node the shard may be an earlier owner's, and the later one may have
// settled or extended these grants.
func (t *Table) Lapse(now int64, shard int) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	if !sh.mu.sealed || sh.mu.store.grants == 0 {
		return
	}
	sh.mu.sealed = false // so that ledgers are kept
	sh.makeLedgersLocked()
	at := sh.atLocked(inRange(now))
	var keys []Key
	for slot := range sh.mu.store.n {
		if r := sh.mu.store.at(slot); r.ledger() != nil {
			keys = append(keys, r.key)
		}
	}
	for _, k := range keys {
		for before := math.MaxInt; ; { // until none is left that maxLapses has put off
			c := sh.getLocked(at, k)
			if c == nil || c.granted() == before {
				break
			}
			before = c.granted()
		}
	}
	sh.dropLedgersLocked()
	sh.mu.sealed = true
}

// Try is Do, and DoHeld if rc is not nil, unless the shard is sealed or its journal is behind; then d is zero and rc is empty.
// Limits that can neither deny nor count are never behind. seq is the number of the shard's last change, r's included. now is
// Unix time in ns.
//
// Do and DoHeld ignore seal and gate, but their changes are counted and recorded.
func (t *Table) Try(now int64, r *Request, rc *Receipt) (d Decision, seq uint64, v Verdict) {
	seq, v = t.decide(now, r, rc, true, &d)
	return d, seq, v
}

// Renew is Try of a Reset and then of r, in one step: nothing reads or records the counter in between. It returns what Try does besides.
func (t *Table) Renew(now int64, r *Request) (seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(r.Key)
	at, o := sh.atLocked(now), outcome{}
	if v = sh.verdictLocked(now, r.Unreplicated); v == Decided {
		if c := sh.getLocked(at, r.Key); c != nil {
			o = sh.restartLocked(c, r.Limits, c.settle(at), changed)
		}
		verb, cost := r.normal()
		o = o.and(sh.decideKnownLocked(at, r, verb, cost, nil, new(Decision)))
		sh.followLocked(now, r.Key, o, r.Unreplicated)
	}
	seq = sh.mu.seq
	sh.unlock(now, o.grown > 0)
	return seq, v
}

// verdictLocked reports whether the shard may decide at now. ungated requests ignore the gate.
func (sh *shard) verdictLocked(now int64, ungated bool) Verdict {
	switch {
	case sh.mu.sealed:
		return Sealed
	case !ungated && sh.mu.journal.behind(now):
		return Behind
	}
	return Decided
}
