package peer

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// Bits of Request.flags.
const (
	flagUndoable     = 1 << 0
	flagGiveBack     = 1 << 1
	flagSync         = 1 << 2
	flagUnreplicated = 1 << 3
	flagDrain        = 1 << 4
	flagNoDelay      = 1 << 5
	flagGrant        = 1 << 6
	flagReturn       = 1 << 7
)

// Bits of a verb for a record that is to be relayed, and for a report; the column flags has no bit left. A node that does not know one
// answers that it does not know the verb.
const (
	verbRelay  = 1 << 7
	verbReport = 1 << 6
)

// Bits of Request.lost.
const (
	denyLost = 1 << 0
	release  = 1 << 1
	leased   = 1 << 2
	hold     = 1 << 3
	fresh    = 1 << 4
	homeAuto = 1 << 5
)

// addRecord appends r to the columns of m. limits is the number that the stream gave to r.Limits, 0 for none.
func addRecord(m *peerv1.Request, r *check.Record, limits uint32) {
	m.KeyHi = append(m.KeyHi, r.Key.Hi)
	m.KeyLo = append(m.KeyLo, r.Key.Lo)
	m.Limits = append(m.Limits, limits)
	m.Cost = append(m.Cost, r.Cost)
	m.Verb = append(m.Verb, verbOf(r))
	m.Flags = append(m.Flags, flagsOf(r))
	id, want, rate, life, lost := r.ID, r.Want, r.Rate, r.For, bit(r.DenyLost, denyLost)
	if x := r.Reservation; x != nil {
		id, want, rate, life, lost = x.ID, x.Least, x.MaxOpen, x.For, lost|bit(x.Release, release)|bit(x.Lease, leased)|bit(x.Hold, hold)|bit(x.Fresh, fresh)|bit(r.Home() == bucket.HomeAuto, homeAuto)
		if r.Verb == bucket.Extend {
			want = x.Most
		}
	}
	m.Id = append(m.Id, id)
	m.Times = append(m.Times, r.Times)
	m.Want = append(m.Want, want)
	m.Rate = append(m.Rate, rate)
	m.ForNs = append(m.ForNs, int64(life))
	m.Reserve = append(m.Reserve, r.Reserve)
	m.Lost = append(m.Lost, lost)
	m.Once = append(m.Once, r.Once)
}

// verbOf returns r's value in the column verb.
func verbOf(r *check.Record) byte {
	return byte(r.Verb) | bit(r.Relay, verbRelay) | bit(r.Report, verbReport)
}

// flagsOf returns r's value in the column flags.
func flagsOf(r *check.Record) (flags byte) {
	return bit(r.Undoable, flagUndoable) | bit(r.GiveBack, flagGiveBack) | bit(r.Sync, flagSync) | bit(r.Unreplicated, flagUnreplicated) |
		bit(r.Drain, flagDrain) | bit(r.NoDelay, flagNoDelay) | bit(r.Grant, flagGrant) | bit(r.Return, flagReturn)
}

// trimRequest empties the columns of zeros. key_lo stays: its length is the number of records.
func trimRequest(m *peerv1.Request) {
	trim(&m.KeyHi, &m.Id, &m.Once)
	trim(&m.Limits)
	trim(&m.Cost, &m.Times, &m.Want, &m.Rate, &m.ForNs, &m.Reserve)
	trim(&m.Verb, &m.Flags, &m.Lost)
}

// readRequest appends m's records to records and checks m's form. definitions resolves the numbers of limits.
func readRequest(m *peerv1.Request, definitions *definitions, records []check.Record) ([]check.Record, error) {
	n := len(m.KeyLo)
	if n > MaxRecords {
		return nil, fmt.Errorf("frame %d has %d records; want at most %d", m.Seq, n, MaxRecords)
	}
	if err := checkColumns(m.Seq, n,
		column{"key_hi", len(m.KeyHi)}, column{"limits", len(m.Limits)}, column{"cost", len(m.Cost)},
		column{"verb", len(m.Verb)}, column{"flags", len(m.Flags)}, column{"id", len(m.Id)}, column{"times", len(m.Times)},
		column{"want", len(m.Want)}, column{"rate", len(m.Rate)}, column{"for_ns", len(m.ForNs)},
		column{"reserve", len(m.Reserve)}, column{"lost", len(m.Lost)}, column{"once", len(m.Once)},
	); err != nil {
		return nil, err
	}
	first := len(records)
	records = slices.Grow(records, n)[:first+n]
	for i := range n {
		r := &records[first+i]
		*r = check.Record{ID: at(m.Id, i)} // another frame's record may be here
		r.Key = bucket.Key{Hi: at(m.KeyHi, i), Lo: m.KeyLo[i]}
		r.Cost = at(m.Cost, i)
		r.Times = at(m.Times, i)
		r.Want = at(m.Want, i)
		r.Rate = at(m.Rate, i)
		r.For = time.Duration(at(m.ForNs, i))
		r.Reserve = at(m.Reserve, i)
		r.Once = at(m.Once, i)
		r.DenyLost = at(m.Lost, i)&denyLost != 0
		verb := at(m.Verb, i)
		r.Verb, r.Relay, r.Report = bucket.Verb(verb&^(verbRelay|verbReport)), verb&verbRelay != 0, verb&verbReport != 0
		if r.Verb >= bucket.Reserve {
			r.Reservation = &bucket.Reservation{
				ID: r.ID, Least: r.Want, Most: r.Want, MaxOpen: r.Rate, For: r.For, Release: at(m.Lost, i)&release != 0,
				Lease: at(m.Lost, i)&leased != 0, Hold: at(m.Lost, i)&hold != 0, Fresh: at(m.Lost, i)&fresh != 0,
			}
			if at(m.Lost, i)&homeAuto != 0 { // any other home is known to the sender, who asks there
				r.Reservation.Home = bucket.HomeAuto
			}
		}
		flags := at(m.Flags, i)
		r.Undoable = flags&flagUndoable != 0
		r.GiveBack = flags&flagGiveBack != 0
		r.Sync = flags&flagSync != 0
		r.Unreplicated = flags&flagUnreplicated != 0
		r.Drain = flags&flagDrain != 0
		r.NoDelay = flags&flagNoDelay != 0
		r.Grant = flags&flagGrant != 0
		r.Return = flags&flagReturn != 0
		var err error
		if r.Limits, err = definitions.get(at(m.Limits, i)); err != nil {
			return nil, fmt.Errorf("frame %d, record %d: %w", m.Seq, i, err)
		}
	}
	return records, nil
}
