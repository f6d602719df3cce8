package limiter

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// ticket is what the ID of a reservation says to every node. The text is base64 of:
//
//	spaceSeal, version, id, rule, units, maxTTL, most, number of cells; each cell's flags, key and home's length and name;
//	each domain's length and name;
//	a keyed hash of all that
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
	one     [1]cell // the memory of cells for a single one
	domains []byte
}

// cell is one counter of a reservation.
type cell struct {
	key bucket.Key
	// apart is as reserving.apart. They are the first three flags.
	sync, unreplicated, apart bool
	home                      string // of its limits; written only with the fourth flag
	lease                     bool   // of a client; the fifth flag
}

const (
	ticketVersion = 3
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

// idOf returns the ID of what b has reserved, "" if all of it is spent.
func (l *Limiter) idOf(b *Batch) string {
	x := b.reserving
	t := &ticket{id: x.id, units: x.units, maxTTL: x.maxTTL, most: x.most, domains: b.key[:0]}
	t.cells = t.one[:0]
	if r := b.Results[b.places[0]].Rule; r != nil {
		t.rule = ruleName{r.Domain, r.Name}.hash()
	}
	last := 0
	for j, i := range b.places {
		q, domain := &b.queued.Requests[j], b.Checks[i].Domain
		if x.cells[j].Reserved.Units == 0 || x.Slots && !q.Limits.Slots() {
			continue // in shadow mode, or spent
		}
		if len(t.cells) == 0 || domain != b.Checks[last].Domain {
			t.domains = append(binary.AppendUvarint(t.domains, uint64(len(domain))), domain...)
		}
		last = i
		t.cells = append(t.cells, cell{q.Key, q.Sync, q.Unreplicated, x.apart(), q.Home(), x.Lease})
	}
	if len(t.cells) == 0 {
		return ""
	}
	var sealed, text [256]byte
	id := string(ticketText.AppendEncode(text[:0], l.config.Hasher.seal(t.append(sealed[:0]))))
	t.domains = nil // the batch's
	x.ticket = t
	return id
}

// add adds requests of verb to b, about all counters of t. cells has room for as many reservations.
func (t *ticket) add(b *check.Batch, verb bucket.Verb, cost int64, once uint64, ttl time.Duration, cells []bucket.Reservation) {
	for i, c := range t.cells {
		cells[i] = bucket.Reservation{ID: t.id, For: ttl, Most: t.most, Home: c.home, Lease: c.lease}
		b.Requests = append(b.Requests, check.Request{Sync: c.sync, Request: bucket.Request{
			Key: c.key, Verb: verb, Cost: cost, Once: once, Unreplicated: c.unreplicated, Reservation: &cells[i],
		}})
	}
	b.Answers = append(b.Answers, make([]check.Answer, len(t.cells))...)
}

func (t *ticket) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, spaceSeal, ticketVersion), t.id)
	b = binary.AppendUvarint(binary.LittleEndian.AppendUint64(b, t.rule), uint64(t.units))
	b = binary.AppendUvarint(b, uint64(t.maxTTL))
	b = binary.AppendUvarint(b, uint64(t.most))
	b = append(b, byte(len(t.cells)))
	for _, c := range t.cells {
		var flags byte
		for i, set := range [...]bool{c.sync, c.unreplicated, c.apart, c.home != "", c.lease} {
			if set {
				flags |= 1 << i
			}
		}
		b = binary.LittleEndian.AppendUint64(append(b, flags), c.key.Hi)
		b = binary.LittleEndian.AppendUint64(b, c.key.Lo)
		if c.home != "" {
			b = append(binary.AppendUvarint(b, uint64(len(c.home))), c.home...)
		}
	}
	return append(b, t.domains...)
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
	if !ok || b[0] != spaceSeal || b[1] != ticketVersion {
		return nil, errTicket
	}
	return readTicket(b[2:]), nil
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
			sync: b[0]&1 != 0, unreplicated: b[0]&2 != 0, apart: b[0]&4 != 0, lease: b[0]&16 != 0,
		}
		homed := b[0]&8 != 0
		if b = b[17:]; homed {
			n := uint()
			t.cells[i].home, b = string(b[:n]), b[n:]
		}
	}
	t.domains = b
	return t
}

// ReservationDomains implements Service.
func (l *Limiter) ReservationDomains(id string) ([]string, error) {
	t, err := l.ticketOf(id)
	if err != nil {
		return nil, l.reject(err)
	}
	var domains []string
	for b := t.domains; len(b) > 0; {
		n, size := binary.Uvarint(b)
		domains, b = append(domains, string(b[size:][:n])), b[size:][n:]
	}
	return domains, nil
}
