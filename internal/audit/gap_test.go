package audit

import (
	"testing"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestLongestGap(t *testing.T) {
	const byOwners, share = sluicev1.Source_SOURCE_FORWARDED, sluicev1.Source_SOURCE_SHARE
	by := func(source sluicev1.Source, first, answered int64) record {
		return record{first: first, sent: first, answered: answered, outcome: denied, source: uint8(source)}
	}
	lost := func(first, answered int64) record {
		return record{first: first, sent: first, answered: answered, outcome: failed}
	}
	for _, c := range []struct {
		name    string
		records []record
		want    span
	}{
		{"nothing", nil, span{}},
		{"one answer", []record{by(byOwners, 3, 5)}, span{3, 5, true}},
		{"the slowest", []record{by(byOwners, 3, 5), by(byOwners, 4, 10), by(byOwners, 11, 12)}, span{4, 10, true}},
		{"no check for long", []record{by(byOwners, 3, 5), by(byOwners, 100, 101)}, span{3, 5, true}},
		{"an error, and then no check", []record{lost(3, 9), by(byOwners, 100, 101)}, span{3, 9, false}},
		{"an error, and others that waited", []record{lost(3, 9), by(byOwners, 8, 20)}, span{3, 20, true}},
		{"shares are no answer", []record{by(share, 3, 4), by(share, 10, 11), by(share, 20, 21), by(byOwners, 20, 22)}, span{3, 22, true}},
		{"shares to the end", []record{by(byOwners, 1, 2), by(share, 3, 4), by(share, 10, 11)}, span{3, 11, false}},
		{"answers between shares", []record{by(share, 3, 4), by(byOwners, 5, 6), by(share, 7, 8)}, span{3, 4, false}},
		{"in the order of answers", []record{by(byOwners, 20, 30), by(byOwners, 0, 5)}, span{20, 30, true}},
	} {
		if got := longestGap(c.records); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
