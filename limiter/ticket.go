package limiter

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// ticket is what the ID of a reservation says to every node. The text is base64 of:
//
//	version, id, rule, units, maxTTL, most, number of cells; each cell's flags, key and place of its domain;
//	number of domains; each domain's length and name; a keyed hash of all that
type ticket struct {
	// id is that of the reservation in all its counters: timed with random bits or those of a hash of its idempotency key, or such a hash
	// alone.
	id uint64
	// rule is the hash of the first check's, whose estimate learns from what of the units is used.
	rule  uint64
	units int64
	// maxTTL and most bound Extend.
	maxTTL  time.Duration
	most    int64
	cells   []cell
	domains []string
}

// cell is one counter of a reservation.
type cell struct {
	key                       bucket.Key
	sync, unreplicated, apart bool
	domain                    int
}

const (
	ticketVersion = 2

	cellSync         = 1 << 0
	cellUnreplicated = 1 << 1
	cellApart        = 1 << 2 // see reserving.apart
)

// ticketText is the form of the text. It is strict, so that there is one text of an ID.
var ticketText = base64.RawURLEncoding.Strict()

// newReservationID returns the ID of the reservation that b asks for.
func (l *Limiter) newReservationID(b *Batch) uint64 {
	if b.IdempotencyKey == "" {
		return timedID(time.Now(), rand.Uint64()) // #nosec G404 -- the ticket is sealed
	}
	var id uint64
	for i := range b.Checks {
		id ^= l.once(b, i)
	}
	id ^= uint64(b.reserving.Units) * 0x9e3779b97f4a7c15
	if at, ok := uuidTime(b.IdempotencyKey); ok {
		return timedID(at, id)
	}
	return max(1, id&^idTimed)
}

const (
	// idTimed: an ID has idTimeBits of when it was made, in idStep, above those that tell it from others. So it tells six days at most.
	idTimed    = 1 << 63
	idTimeBits = 19
	idStep     = 1 << 10 // ms
	idRestBits = 63 - idTimeBits
)

// timedID returns an ID of a reservation made at that time.
func timedID(at time.Time, rest uint64) uint64 {
	return idTimed | uint64(at.UnixMilli()/idStep)%(1<<idTimeBits)<<idRestBits | rest%(1<<idRestBits)
}

// sinceID returns how long before now the reservation id was made, 0 if that is not known.
func sinceID(id uint64, now time.Time) time.Duration {
	made := int64(id &^ idTimed >> idRestBits)
	ms := (now.UnixMilli() - made*idStep) % (idStep << idTimeBits)
	if id&idTimed == 0 {
		return 0
	}
	return time.Duration(ms+1) * time.Millisecond
}

// uuidTime returns the time of s if that is a UUID of version 7.
func uuidTime(s string) (time.Time, bool) {
	if len(s) != 36 || s[14] != '7' || s[8] != '-' || s[13] != '-' {
		return time.Time{}, false
	}
	ms, err := strconv.ParseUint(s[:8]+s[9:13], 16, 48)
	return time.UnixMilli(int64(ms)), err == nil
}

// idOf returns the ID of what b has reserved.
func (l *Limiter) idOf(b *Batch) string {
	x := b.reserving
	t := ticket{id: x.id, units: x.units, maxTTL: x.maxTTL, most: x.most}
	if r := b.Results[b.places[0]].Rule; r != nil {
		t.rule = ruleName{r.Domain, r.Name}.hash()
	}
	for j, i := range b.places {
		if x.cells[j].Reserved.Units == 0 {
			continue // in shadow mode
		}
		q, domain := &b.queued.Requests[j], b.Checks[i].Domain
		at := slices.Index(t.domains, domain)
		if at < 0 {
			at, t.domains = len(t.domains), append(t.domains, domain)
		}
		t.cells = append(t.cells, cell{q.Key, q.Sync, q.Unreplicated, x.apart(), at})
	}
	return ticketText.EncodeToString(l.config.Hasher.seal(t.append(nil)))
}

func (t *ticket) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, ticketVersion), t.id)
	b = binary.AppendUvarint(binary.LittleEndian.AppendUint64(b, t.rule), uint64(t.units))
	b = binary.AppendUvarint(b, uint64(t.maxTTL))
	b = binary.AppendUvarint(b, uint64(t.most))
	b = append(b, byte(len(t.cells)))
	for _, c := range t.cells {
		var flags byte
		if c.sync {
			flags |= cellSync
		}
		if c.unreplicated {
			flags |= cellUnreplicated
		}
		if c.apart {
			flags |= cellApart
		}
		b = binary.LittleEndian.AppendUint64(append(b, flags), c.key.Hi)
		b = append(binary.LittleEndian.AppendUint64(b, c.key.Lo), byte(c.domain))
	}
	b = append(b, byte(len(t.domains)))
	for _, d := range t.domains {
		b = append(binary.AppendUvarint(b, uint64(len(d))), d...)
	}
	return b
}

var errTicket = &Error{
	Code: Invalid, Field: "reservation", Message: "no node of this cluster has made it, or not with this secret; give the reservation of a response",
}

// ticketOf reads the ID of a reservation that a node with the same secret has made.
func (l *Limiter) ticketOf(id string) (*ticket, *Error) {
	if len(id) > MaxReservationID {
		return nil, errTicket
	}
	b, err := ticketText.DecodeString(id)
	if err != nil {
		return nil, errTicket
	}
	b, ok := l.config.Hasher.unseal(b)
	if !ok || b[0] != ticketVersion {
		return nil, errTicket
	}
	return readTicket(b[1:]), nil
}

// readTicket reads what ticket.append has written, after the version.
func readTicket(b []byte) *ticket {
	uint := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	t := &ticket{id: binary.LittleEndian.Uint64(b), rule: binary.LittleEndian.Uint64(b[8:])}
	b = b[16:]
	t.units, t.maxTTL, t.most = int64(uint()), time.Duration(uint()), int64(uint())
	t.cells = make([]cell, b[0])
	b = b[1:]
	for i := range t.cells {
		t.cells[i] = cell{
			key:  bucket.Key{Hi: binary.LittleEndian.Uint64(b[1:]), Lo: binary.LittleEndian.Uint64(b[9:])},
			sync: b[0]&cellSync != 0, unreplicated: b[0]&cellUnreplicated != 0, apart: b[0]&cellApart != 0,
			domain: int(b[17]),
		}
		b = b[18:]
	}
	t.domains = make([]string, b[0])
	b = b[1:]
	for i := range t.domains {
		n := uint()
		t.domains[i], b = string(b[:n]), b[n:]
	}
	return t
}

// ReservationDomains implements Service.
func (l *Limiter) ReservationDomains(id string) ([]string, error) {
	t, err := l.ticketOf(id)
	if err != nil {
		return nil, l.reject(err)
	}
	return t.domains, nil
}
