package sluice

import (
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// Field numbers of sluice.v1.
const (
	sessionAcquire, sessionRelease, sessionResume, sessionHeartbeat = 1, 2, 3, 4
	slotNumber, slotCheck, slotUnits, slotWait                      = 1, 2, 3, 4
	slotTenant, slotWeight, slotWaited, slotAlso                    = 5, 6, 7, 8

	sessionSlots, sessionAnswered, sessionExpires, sessionNotRenewed = 1, 2, 3, 4
)

// encode returns the fields of r that all attempts share, and its key.
func (r *AcquireRequest) encode() (body []byte, key counterKey, err error) {
	if !utf8.ValidString(r.Tenant) {
		return nil, key, limit.Invalid("tenant", "not valid UTF-8")
	}
	for i := range 1 + len(r.With) {
		field, k := protowire.Number(slotCheck), &r.Key
		if i > 0 {
			field, k = slotAlso, &r.With[i-1]
		}
		var memory [256]byte // for most of them
		counter, err := appendBudget(memory[:0], k)
		if err != nil {
			return nil, key, within(err, i)
		}
		if i == 0 {
			key = keyOf(counter)
			body = make([]byte, 0, (1+len(r.With))*(len(counter)+4)+32+len(r.Tenant))
		}
		body = protowire.AppendBytes(protowire.AppendTag(body, field, protowire.BytesType), counter)
	}
	body = appendBool(appendNumber(body, slotUnits, r.Units), slotWait, r.MaxWait >= 0)
	return appendNumber(appendString(body, slotTenant, r.Tenant), slotWeight, r.Weight), key, nil
}

// sessionRequest is what a session has to send.
type sessionRequest struct {
	acquire, release []uint64 // by number
	resume           []*Slot
}

// encode returns it as a message that is sent now, and empties it. Requests that are not among asked have been given up.
func (r *sessionRequest) encode(now time.Time, heartbeat uint64, asked map[uint64]*asked) *frame {
	f := &frame{out: mem.DefaultBufferPool().Get(maxFrameBytes)}
	b := (*f.out)[:0]
	for _, number := range r.acquire {
		q := asked[number]
		if q == nil {
			continue
		}
		var waited int64
		if q.sent = now; !q.began.IsZero() {
			waited = int64(now.Sub(q.began))
		}
		var head [24]byte // the fields before q.body
		h := appendNumber(appendNumber(head[:0], slotNumber, int64(number)), slotWaited, waited)
		b = protowire.AppendVarint(protowire.AppendTag(b, sessionAcquire, protowire.BytesType), uint64(len(h)+len(q.body)))
		b = append(append(b, h...), q.body...)
	}
	for _, number := range r.release {
		b = appendNumber(b, sessionRelease, int64(number))
	}
	for _, x := range r.resume {
		held := appendString(appendNumber(nil, 1, int64(x.number)), 2, x.ID)
		b = protowire.AppendBytes(protowire.AppendTag(b, sessionResume, protowire.BytesType), held)
	}
	*f.out = appendNumber(b, sessionHeartbeat, int64(heartbeat))
	clear(r.resume)
	r.acquire, r.release, r.resume = r.acquire[:0], r.release[:0], r.resume[:0]
	return f
}

// readFields calls f with the fields of b: v of numbers, value of all others.
func readFields(b []byte, f func(num protowire.Number, v uint64, value []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var v uint64
		var value []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
			num = 0 // no field of ours
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := f(num, v, value); err != nil {
			return err
		}
	}
	return nil
}

// heartbeatAnswer is a SessionResponse without its slots.
type heartbeatAnswer struct {
	heartbeat uint64
	expires   int64
	lost      map[uint64]bool
}

func (m *heartbeatAnswer) field(num protowire.Number, v uint64, value []byte) error {
	switch num {
	case sessionAnswered:
		m.heartbeat = v
	case sessionExpires:
		m.expires = int64(v)
	case sessionNotRenewed: // packed or not
		if m.lost == nil {
			m.lost = map[uint64]bool{}
		}
		if value == nil {
			m.lost[v] = true
		}
		for len(value) > 0 {
			v, n := protowire.ConsumeVarint(value)
			if n < 0 {
				return errMalformed
			}
			m.lost[v], value = true, value[n:]
		}
	}
	return nil
}

// slotResponse is a SlotResponse.
type slotResponse struct {
	number, fence, heartbeat uint64
	decision                 answer
	id, owner                string
	expires                  int64
	failure                  *sluicev1.Error
	moved, waited            bool
	names                    *names
}

func (m *slotResponse) field(num protowire.Number, v uint64, value []byte) (err error) {
	switch num {
	case 1:
		m.number = v
	case 2:
		var failure *sluicev1.Error
		if failure, err = readDecision(value, &m.decision, m.names); failure != nil {
			m.failure = failure
		}
	case 3:
		m.id = string(value)
	case 4:
		m.fence = v
	case 5:
		m.expires = int64(v)
	case 6:
		m.heartbeat = v
	case 7:
		m.failure = new(sluicev1.Error)
		err = proto.Unmarshal(value, m.failure)
	case 8:
		m.moved = v != 0
	case 9:
		m.owner = string(value)
	case 10:
		m.waited = v != 0
	}
	if err != nil {
		return errMalformed
	}
	return nil
}
