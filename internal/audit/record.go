package audit

import (
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// outcome is what became of a check.
type outcome uint8

const (
	failed outcome = iota // no answer
	admitted
	denied
)

var outcomeNames = [...]string{failed: "error", admitted: "allowed", denied: "denied"}

// record is one check, kept until the end: 32 bytes, because there may be
// many millions. Times are Unix ns of the audit's clock, which never steps.
type record struct {
	// first is when it was sent first, sent when the call that brought the answer was.
	first, sent, answered int64
	key                   int32
	outcome               outcome
	source                uint8 // sluicev1.Source
	// ambiguous counts the attempts that may have been charged without an answer.
	ambiguous uint8
}

// held reports whether a holder of the key decided, be it by what it has lent.
func (r *record) held() bool { return r.outcome != failed && isHolder(r.source) }

// lent reports whether it was decided by what the holder has lent.
func (r *record) lent() bool { return r.source == uint8(sluicev1.Source_SOURCE_LEASE) }

func isHolder(source uint8) bool {
	switch sluicev1.Source(source) {
	case sluicev1.Source_SOURCE_HELD, sluicev1.Source_SOURCE_FORWARDED, sluicev1.Source_SOURCE_LEASE:
		return true
	}
	return false
}

// byKey are the records of a run, sorted by key.
type byKey struct {
	records []record
	// from is where the records of each key begin, and where the last end.
	from []int
}

// group sorts the parts' records by key. It empties the parts.
func group(keys int, parts [][]record) *byKey {
	g := &byKey{from: make([]int, keys+1)}
	for _, p := range parts {
		for i := range p {
			g.from[p[i].key+1]++
		}
	}
	for i := range keys {
		g.from[i+1] += g.from[i]
	}
	g.records = make([]record, g.from[keys])
	next := append([]int(nil), g.from[:keys]...)
	for j, p := range parts {
		for i := range p {
			at := &next[p[i].key]
			g.records[*at] = p[i]
			*at++
		}
		parts[j] = nil
	}
	return g
}

func (g *byKey) of(key int) []record { return g.records[g.from[key]:g.from[key+1]] }
