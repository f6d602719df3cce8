package peer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Settings of connections, for both sides.
const (
	streamWindow     = 4 << 20
	connWindow       = 8 << 20
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// quotaBytes is how much may be unanswered on a stream for a send to be certain not
// to block: gRPC lets a stream have 64 KiB that are not yet on the wire before it
// makes the sender wait.
const quotaBytes = 32 << 10

// session is one stream to a peer that has been greeted. Whoever sets sending, with
// link.mu held, owns the sending half until it clears it; the goroutine in receive
// owns the receiving half.
type session struct {
	connection
	link   *link
	stream grpc.BidiStreamingClient[peerv1.Request, peerv1.Reply]
	wake   chan struct{} // to the pump
	next   *time.Timer   // wakes it when another frame may follow; link.mu guards setting it

	// Of whoever sends.
	request peerv1.Request
	limits  numbering
	merger  merger
	seq     uint64

	decoded []check.Reply // of the goroutine in receive

	// Guarded by link.mu.
	sending bool
	lost    bool
	flying  []*frame      // sent and unanswered, the oldest first
	records int           // in flying
	took    time.Duration // of the last answer
}

// frame is what the answer to it needs.
type frame struct {
	seq     uint64
	calls   []*call
	checks  int // of the calls
	records int // fewer where checks were merged
	limits  int // of the records
	bytes   int // at most this many
	sent    time.Time
	// places says where the reply to each check is, and times how many checks each record has. Both are empty unless some were merged.
	places []place
	times  []int64
}

// place is one of the checks of a record, of which before came earlier.
type place struct{ record, before int32 }

var frames = sync.Pool{New: func() any { return new(frame) }}

func (f *frame) release() {
	clear(f.calls)
	*f = frame{calls: f.calls[:0], places: f.places[:0], times: f.times[:0]}
	frames.Put(f)
}

// leadLocked makes the requester the one who sends, if there is something to send, it
// may leave now, and nobody else is at it. A caller must not be made to wait longer
// than its context, so it leads only where sending cannot block; else the pump is
// woken.
func (s *session) leadLocked(caller bool) bool {
	if s.sending || s.lost || s.link.mu.waiting.first == nil {
		return false
	}
	if n := len(s.flying); n >= maxFlying {
		left := min(max(s.took/(framesPerTrip*s.link.trips), pace), longestPace) - time.Since(s.flying[n-1].sent)
		if n >= mostFlying || s.records >= s.link.pool.cfg.MaxQueue {
			return false
		}
		if caller || left > 0 {
			s.next.Reset(max(left, 0))
			return false
		}
	}
	if caller && len(s.flying) > 0 && s.flying[0].bytes > quotaBytes {
		s.nudge()
		return false
	}
	s.sending = true
	return true
}

// nudge wakes the pump.
func (s *session) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// pump sends what callers could not. It is a goroutine of the pool.
func (s *session) pump() {
	l := s.link
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		l.mu.Lock()
		lead := s.leadLocked(false)
		l.mu.Unlock()
		if lead {
			s.send()
		}
	}
}

// send sends frames while something waits and may leave, and clears sending.
func (s *session) send() {
	l := s.link
	for {
		f := frames.Get().(*frame)
		s.begin(f)
		for s.gather(f) {
		}
		s.seal(f)
		f.sent = time.Now()

		l.mu.Lock()
		if s.lost {
			s.sending = false
			why := l.unsent(errLost)
			l.mu.Unlock()
			for _, c := range f.calls {
				c.finish(why, nil)
			}
			return
		}
		if f.records > 0 {
			s.flying = append(s.flying, f)
			s.records += f.records
		}
		l.mu.Unlock()
		if f.records > 0 {
			l.pool.stats.frames.Add(1)
			l.pool.stats.records.Add(uint64(f.records))
			l.pool.stats.merged.Add(uint64(f.checks - f.records))
			// io.EOF says that the stream is over; receive learns why.
			if err := s.stream.Send(&s.request); err != nil {
				s.cancel()
			}
		}

		l.mu.Lock()
		s.sending = false
		again := s.leadLocked(true)
		l.mu.Unlock()
		if !again {
			return
		}
	}
}

var errLost = errors.New("the connection was lost")

// begin begins to encode f.
func (s *session) begin(f *frame) {
	s.seq++
	cutRequest(&s.request)
	s.limits.begin()
	s.merger.slots, s.merger.traced = s.merger.slots[:0], s.merger.traced[:0]
	s.request.Seq, f.seq = s.seq, s.seq
}

// gather encodes calls that wait into f, as many as surely fit. It reports whether there may be room for more, because checks were merged.
func (s *session) gather(f *frame) bool {
	l, first := s.link, len(f.calls)
	l.mu.Lock()
	f.calls = l.mu.waiting.take(f.calls, maxGather-f.records, maxFrameLimits-f.limits)
	more := l.mu.waiting.first != nil
	l.mu.Unlock()
	checks := f.checks
	for _, c := range f.calls[first:] {
		checks += len(c.records)
	}
	if checks > 1 {
		s.merger.grow(&s.request, checks)
	}
	kept := f.calls[:first]
	for _, c := range f.calls[first:] {
		c.mu.Lock()
		if !c.mu.abandoned {
			c.mu.sent = true
			for i := range c.records {
				s.add(f, &c.records[i])
			}
			kept = append(kept, c)
		}
		c.mu.Unlock()
	}
	taken := len(f.calls) - first
	clear(f.calls[len(kept):])
	f.calls = kept
	return more && taken > 0 && f.records < f.checks && f.checks < l.pool.cfg.MaxQueue
}

// add encodes a check into f: as a record, or as one more of an equal record before it.
func (s *session) add(f *frame, r *check.Record) {
	m, at := &s.request, place{record: int32(f.records)}
	var id uint32
	if r.Limits != nil {
		var fresh bool
		if id, fresh = s.limits.number(r.Limits); fresh {
			m.Define = append(m.Define, definitionOf(id, r.Limits))
			f.bytes += bytesPerLimit * r.Limits.Len()
		}
	}
	merged := false
	if len(s.merger.slots) > 0 {
		slot := s.merger.slot(m, r.Key)
		last := int(*slot) - 1
		if merged = last >= 0 && mergeable(r) && equal(m, last, r, id); merged {
			before := max(1, m.Times[last])
			at = place{int32(last), int32(before)}
			m.Times[last] = before + max(1, r.Times)
			f.merged()
		} else {
			*slot = at.record + 1
		}
	}
	f.checks++
	if len(f.places) > 0 {
		f.places = append(f.places, at)
	}
	if !merged {
		addRecord(m, r, id)
		f.records++
		f.bytes += bytesPerRecord
		if r.Limits != nil {
			f.limits += r.Limits.Len()
		}
	}
	if r.Trace != nil && s.merger.trace(at.record) && addTrace(m, uint32(at.record), r.Trace) {
		f.bytes += bytesPerTrace
	}
}

// seal ends what begin began.
func (s *session) seal(f *frame) {
	if len(f.places) > 0 {
		f.times = append(f.times, s.request.Times...)
	}
	sealRequest(&s.request)
}

// merged says that a check will be merged: from now on f has places.
func (f *frame) merged() {
	if len(f.places) > 0 {
		return
	}
	for i := range f.checks {
		f.places = append(f.places, place{record: int32(i)})
	}
}

// What a record and a limit take on the wire at most, roughly.
const (
	bytesPerRecord = 104
	bytesPerLimit  = 128
	bytesPerTrace  = 48
)

// receive hands answers to their calls until the stream ends, and then cleans up.
func (s *session) receive() {
	l := s.link
	var reply peerv1.Reply
	for {
		err := s.stream.RecvMsg(&reply)
		if err == nil {
			err = s.answer(&reply)
		}
		if err != nil {
			s.lose(err)
			s.close()
			return
		}
		l.mu.Lock()
		waiting := l.mu.waiting.first != nil
		l.mu.Unlock()
		if waiting {
			s.nudge()
		}
	}
}

// answer fills in the replies of the oldest frame from m.
func (s *session) answer(m *peerv1.Reply) error {
	l := s.link
	l.mu.Lock()
	if len(s.flying) == 0 {
		l.mu.Unlock()
		return errors.New("an answer to nothing")
	}
	f := s.flying[0]
	if err := checkReply(m, f.seq, f.records); err != nil {
		l.mu.Unlock()
		return fmt.Errorf("malformed answer: %w", err)
	}
	s.flying = append(s.flying[:0], s.flying[1:]...)
	s.records -= f.records
	s.took = time.Since(f.sent)
	l.mu.Unlock()

	if len(f.places) > 0 {
		s.decoded = slices.Grow(s.decoded[:0], f.records)[:f.records]
		readReply(m, 0, s.peer, s.decoded)
	}
	first := 0
	initialSync := func(c *call) {
		if len(f.places) == 0 {
			readReply(m, first, s.peer, c.replies)
			return
		}
		for i := range c.replies {
			at := f.places[first+i]
			c.replies[i] = s.decoded[at.record]
			if rec := &c.records[i]; f.times[at.record] > max(1, rec.Times) {
				c.replies[i] = part(&c.replies[i], rec, int64(at.before), max(1, rec.Times))
			}
		}
	}
	for _, c := range f.calls {
		n := len(c.records)
		c.finish(nil, initialSync)
		first += n
	}
	clear(s.decoded)
	f.release()
	return nil
}

// stalledLocked reports whether the oldest frame has waited too long for its answer.
func (s *session) stalledLocked(now time.Time) bool {
	return len(s.flying) > 0 && now.Sub(s.flying[0].sent) > s.link.pool.stallAfter(s.link.addr)
}

// lose gives the session up: unanswered calls are ambiguous, waiting ones unsent.
// receive then ends. Only the first call does anything.
func (s *session) lose(why error) {
	l := s.link
	l.mu.Lock()
	if s.lost {
		l.mu.Unlock()
		return
	}
	s.lost = true
	s.next.Stop()
	l.mu.session = nil
	flying := s.flying
	s.flying = nil
	waiting := l.mu.waiting.take(nil, math.MaxInt, math.MaxInt)
	closed := l.mu.closed != nil
	l.mu.Unlock()

	s.cancel()
	if !closed {
		l.pool.stats.broken.Add(1)
		l.pool.warn("peer connection lost", l.addr, "name", s.peer, "error", why)
	}
	ambiguous, unsent := l.ambiguous(why), l.unsent(why)
	for _, f := range flying {
		for _, c := range f.calls {
			c.finish(ambiguous, nil)
		}
	}
	for _, c := range waiting {
		c.finish(unsent, nil)
	}
}
