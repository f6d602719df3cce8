package peer

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// Control messages, requests and responses travel in frames of peer.v1 MessageFrame: definitions of limits, and pairs of a header and a
// body of package message, both CBOR.

// kinds are the bodies by the number in their header. A number is never reused for another body.
var kinds = [...]message.Body{
	1:  (*message.Heartbeat)(nil),
	2:  (*message.Ack)(nil),
	3:  (*message.Prepare)(nil),
	4:  (*message.Promise)(nil),
	5:  (*message.Accept)(nil),
	6:  (*message.Accepted)(nil),
	7:  (*message.OwnedPartitions)(nil),
	8:  (*message.PendingGrants)(nil),
	9:  (*message.Claim)(nil),
	10: (*message.ClaimResponse)(nil),
	11: (*message.Fetch)(nil),
	12: (*message.TransferBatch)(nil),
	13: (*message.Receipt)(nil),
	14: (*message.DenialInvalidation)(nil),
	15: (*message.Load)(nil),
	16: (*message.Report)(nil),
	17: (*message.Account)(nil),
	18: (*message.AcceptLoss)(nil),
	19: (*message.TopRequest)(nil),
	20: (*message.TopResponse)(nil),
	21: (*message.FactsRequest)(nil),
	22: (*message.FactsResponse)(nil),
	23: (*message.KeyRequest)(nil),
	24: (*message.KeyResponse)(nil),
	25: (*message.TurnRequest)(nil),
	26: (*message.TurnResponse)(nil),
	27: (*message.RegionRequest)(nil),
	28: (*message.RegionResponse)(nil),
	29: (*message.RegionMessages)(nil),
	30: (*message.RolesRequest)(nil),
	31: (*message.RolesResponse)(nil),
	32: (*message.PassRequest)(nil),
	33: (*message.PassResponse)(nil),
}

var kindOf = func() map[reflect.Type]uint8 {
	m := make(map[reflect.Type]uint8, len(kinds))
	for i, b := range kinds {
		if b != nil {
			m[reflect.TypeOf(b)] = uint8(i)
		}
	}
	return m
}()

// header precedes each body. A receiver skips messages of unknown kinds.
type header struct {
	Kind      uint8        `cbor:"1,keyasint"`
	To        message.Peer `cbor:"2,keyasint,omitzero"`
	ClusterID string       `cbor:"3,keyasint,omitempty"`
	// Limits are the numbers, on this stream, of the sets of limits of the body, 0 for none.
	Limits []uint32 `cbor:"4,keyasint,omitempty"`
}

var (
	encodeMode = must(cbor.EncOptions{IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden}.UserBufferEncMode())
	decodeMode = must(cbor.DecOptions{
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, MaxNestedLevels: 8, UTF8: cbor.UTF8DecodeInvalid,
	}.DecMode())
)

func must[M any](mode M, err error) M {
	if err != nil {
		panic(err) // the options contradict each other
	}
	return mode
}

// controlMessage is a message that waits for its frame.
type controlMessage struct {
	header // without Limits
	limits []*bucket.Limits
	body   []byte
}

// encode encodes e for a frame. An error means that no receiver could decode it.
func encode(e *message.Envelope) (m controlMessage, err error) {
	if err := message.Validate(e.Body); err != nil {
		return m, fmt.Errorf("%T: %w", e.Body, err)
	}
	m.Kind, m.To, m.ClusterID = kindOf[reflect.TypeOf(e.Body)], e.To, e.ClusterID
	if m.Kind == 0 {
		return m, fmt.Errorf("%T: no message between nodes", e.Body)
	}
	for _, l := range limitsOf(e.Body) {
		m.limits = append(m.limits, *l)
	}
	if len(m.limits) > maxGather {
		return m, fmt.Errorf("%T: %d sets of limits; want at most %d", e.Body, len(m.limits), maxGather)
	}
	if m.body, err = encodeMode.Marshal(e.Body); err != nil {
		return m, fmt.Errorf("%T: %w", e.Body, err)
	}
	return m, nil
}

// limitsOf returns a body's references to sets of limits. Those of a transfer batch must have been allocated.
func limitsOf(b message.Body) (refs []**bucket.Limits) {
	switch b := b.(type) {
	case *message.TransferBatch:
		for i := range b.Image.Limits {
			refs = append(refs, &b.Image.Limits[i])
		}
	case *message.RegionMessages:
		if b.Counters != nil {
			return limitsOf(&b.Counters.Batch)
		}
	case *message.Report:
		for i := range b.Lines {
			refs = append(refs, &b.Lines[i].Limits)
		}
	case *message.KeyRequest:
		refs = append(refs, &b.Limits)
	}
	return refs
}

// Bounds of control messages.
const (
	// maxControlMessages is the most control messages that a Server takes in one frame.
	maxControlMessages = 4096
	// maxWaiting and maxWaitingBytes bound each of an outbox's two queues.
	maxWaiting      = 1024
	maxWaitingBytes = 8 << 20
	// maxControlBytes is about how much goes into one frame, definitions of limits aside. A larger message has its own frame.
	maxControlBytes = 256 << 10
)

// size is about how many bytes m takes in its frame, definitions of limits aside.
func (m *controlMessage) size() int {
	return 16 + len(m.To.Name) + len(m.To.Boot) + len(m.ClusterID) + 5*len(m.limits) + len(m.body)
}

// controlMessages is a queue of messages, the oldest first.
type controlMessages struct {
	list  []controlMessage
	bytes int
}

// push adds m if there is room, or if q is empty.
func (q *controlMessages) push(m controlMessage) bool {
	bytes := m.size()
	if n := len(q.list); n >= maxWaiting || n > 0 && q.bytes+bytes > maxWaitingBytes {
		return false
	}
	q.list = append(q.list, m)
	q.bytes += bytes
	return true
}

// takeFrame moves the messages of one frame to batch, from the first queue first.
func takeFrame(batch []controlMessage, queues ...*controlMessages) []controlMessage {
	bytes, limits := 0, 0
	for _, q := range queues {
		n := 0
		for i := range q.list {
			m := &q.list[i]
			limits += len(m.limits)
			// With more limits, numbers might be reused within the frame.
			if len(batch) > 0 && (bytes+m.size() > maxControlBytes || limits > maxGather) {
				break
			}
			bytes += m.size()
			q.bytes -= m.size()
			batch = append(batch, *m)
			n++
		}
		left := n < len(q.list)
		q.list = slices.Delete(q.list, 0, n)
		if left {
			break
		}
	}
	return batch
}

// bulky reports whether messages like b may be many and long: then no heartbeat may wait behind them.
func bulky(b message.Body) bool {
	switch b := b.(type) {
	case *message.TransferBatch, *message.Report, *message.Account:
		return true
	case *message.RegionMessages:
		return b.Counters != nil
	}
	return false
}

// controlWriter makes the frames of one stream.
type controlWriter struct {
	post   peerv1.MessageFrame
	limits numbering
	buf    bytes.Buffer // of post.Messages
}

func newControlWriter(maxLimits int) *controlWriter {
	return &controlWriter{limits: numbering{maxLimits: maxLimits}}
}

// frame returns a frame of batch, which is valid until the next call.
func (w *controlWriter) frame(batch []controlMessage) (*peerv1.MessageFrame, error) {
	resetMessages(&w.post)
	w.limits.begin()
	w.buf.Reset()
	for i := range batch {
		m := &batch[i]
		h := m.header
		for _, l := range m.limits {
			id, fresh := w.limits.number(l)
			if fresh {
				w.post.Define = append(w.post.Define, definitionOf(id, l))
			}
			h.Limits = append(h.Limits, id)
		}
		if err := encodeMode.MarshalToBuffer(h, &w.buf); err != nil {
			return nil, err
		}
		w.buf.Write(m.body)
	}
	w.post.Messages = w.buf.Bytes()
	return &w.post, nil
}

// controlReader decodes the frames of one stream. Its messages share no memory with a frame.
type controlReader struct {
	from        message.Peer
	definitions definitions
}

// read appends the messages of m to out, in order. skipped is the number of messages that this node does not know.
func (r *controlReader) read(m *peerv1.MessageFrame, out []message.Envelope) (_ []message.Envelope, skipped int, err error) {
	if m.Hello != nil {
		return out, 0, errSecondHello
	}
	if err := r.definitions.define(m.Define); err != nil {
		return out, 0, fmt.Errorf("control: %w", err)
	}
	n := 0
	for rest := m.Messages; len(rest) > 0; n++ {
		if n == maxControlMessages {
			return out, skipped, fmt.Errorf("a frame of more than %d control messages", maxControlMessages)
		}
		var body message.Body
		var h header
		if rest, err = decodeMode.UnmarshalFirst(rest, &h); err == nil {
			body, rest, err = r.body(&h, rest)
		}
		switch {
		case errors.Is(err, message.ErrUnknown):
			skipped++
		case err != nil:
			return out, skipped, fmt.Errorf("control message %d: %w", n, err)
		default:
			out = append(out, message.Envelope{From: r.from, To: h.To, ClusterID: h.ClusterID, Body: body})
		}
	}
	return out, skipped, nil
}

// body reads the body that data begins with.
func (r *controlReader) body(h *header, data []byte) (body message.Body, rest []byte, err error) {
	if int(h.Kind) >= len(kinds) || kinds[h.Kind] == nil {
		var unknown cbor.RawMessage
		if rest, err = decodeMode.UnmarshalFirst(data, &unknown); err == nil {
			err = message.ErrUnknown
		}
		return nil, rest, err
	}
	body = reflect.New(reflect.TypeOf(kinds[h.Kind]).Elem()).Interface().(message.Body)
	if rest, err = decodeMode.UnmarshalFirst(data, body); err == nil {
		err = r.complete(body, h.Limits)
	}
	if err != nil {
		return nil, rest, fmt.Errorf("%T: %w", body, err)
	}
	return body, rest, nil
}

// complete sets the limits of a body by their numbers, and validates it.
func (r *controlReader) complete(body message.Body, limits []uint32) (err error) {
	batch, ok := body.(*message.TransferBatch)
	if m, is := body.(*message.RegionMessages); is && m.Counters != nil {
		batch, ok = &m.Counters.Batch, true
	}
	if ok {
		batch.Image.Limits = slices.Grow([]*bucket.Limits(nil), len(limits))[:len(limits)]
	}
	refs := limitsOf(body)
	if len(refs) != len(limits) {
		return fmt.Errorf("%d sets of limits; want %d", len(limits), len(refs))
	}
	for i, id := range limits {
		if *refs[i], err = r.definitions.get(id); err != nil {
			return err
		}
	}
	if err := message.Validate(body); err != nil || !ok {
		return err
	}
	for i := range batch.Parts {
		batch.Image.Counters += batch.Parts[i].Counters
	}
	return nil
}
