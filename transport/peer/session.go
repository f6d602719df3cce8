package peer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// Settings of connections, for both sides.
const (
	streamWindow     = 4 << 20
	connWindow       = 8 << 20
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// nonBlockingBytes is the size of unanswered frames up to which a send cannot block: gRPC blocks a sender only when its stream has
// more than 64 KiB to write.
const nonBlockingBytes = 32 << 10

// session is one stream to a peer, after the hellos. The goroutine that sets sending, with link.mu held, owns the sending half
// until it clears it; the goroutine in receive owns the receiving half.
type session struct {
	connection
	link   *link
	stream grpc.BidiStreamingClient[peerv1.Request, peerv1.Reply]
	wake   chan struct{} // to sendLoop
	next   *time.Timer   // wakes it when another frame may follow; link.mu guards setting it

	// Of the goroutine that sends.
	request peerv1.Request
	limits  numbering
	merger  merger
	seq     uint64

	decoded []check.Reply // of the goroutine in receive

	// Guarded by link.mu.
	sending  bool
	lost     bool
	inFlight []*frame      // sent and unanswered, the oldest first
	records  int           // in inFlight
	lastTook time.Duration // of the last answer
}

// frame has the state of a frame until its answer.
type frame struct {
	seq     uint64
	calls   []*call
	checks  int // of the calls
	records int // fewer where checks were merged
	limits  int // of the records
	bytes   int // at most this many
	sent    time.Time
	// positions says which record decides each check, and times how many checks each record has. Both are empty unless checks
	// were merged.
	positions []position
	times     []int64
}

// position is the place of a check in a record; before is the number of the record's checks before it.
type position struct{ record, before int32 }

var frames = sync.Pool{New: func() any { return new(frame) }}

func (f *frame) release() {
	clear(f.calls)
	*f = frame{calls: f.calls[:0], positions: f.positions[:0], times: f.times[:0]}
	frames.Put(f)
}

// maySendLocked makes the calling goroutine the sender, if records wait, a frame may follow now, and no other goroutine sends. A
// caller may not outwait its context, so it sends only where that cannot block; otherwise maySendLocked wakes sendLoop.
func (s *session) maySendLocked(caller bool) bool {
	if s.sending || s.lost || s.link.mu.waiting.first == nil {
		return false
	}
	if n := len(s.inFlight); n >= freeInFlight {
		left := min(max(s.lastTook/(framesPerTrip*s.link.trips), minFrameInterval), maxFrameInterval) - time.Since(s.inFlight[n-1].sent)
		if n >= maxInFlight || s.records >= s.link.pool.cfg.MaxQueue {
			return false
		}
		if caller || left > 0 {
			s.next.Reset(max(left, 0))
			return false
		}
	}
	if caller && len(s.inFlight) > 0 && s.inFlight[0].bytes > nonBlockingBytes {
		signal(s.wake)
		return false
	}
	s.sending = true
	return true
}

// sendLoop sends the frames that callers must not send. It is a goroutine of the pool.
func (s *session) sendLoop() {
	l := s.link
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		l.mu.Lock()
		lead := s.maySendLocked(false)
		l.mu.Unlock()
		if lead {
			s.send()
		}
	}
}

// send sends frames while records wait and a frame may follow, and then clears sending.
func (s *session) send() {
	l := s.link
	for {
		f := frames.Get().(*frame)
		s.beginFrame(f)
		for s.gather(f) {
		}
		s.finishFrame(f)
		f.sent = time.Now()

		l.mu.Lock()
		if s.lost {
			s.sending = false
			l.mu.Unlock()
			finishAll(f.calls, l.failure(check.ErrUnsent, errLost))
			return
		}
		if f.records > 0 {
			s.inFlight = append(s.inFlight, f)
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
		again := s.maySendLocked(true)
		l.mu.Unlock()
		if !again {
			return
		}
	}
}

var errLost = errors.New("the connection was lost")

// beginFrame starts the encoding of f.
func (s *session) beginFrame(f *frame) {
	s.seq++
	resetRequest(&s.request)
	s.limits.begin()
	s.merger.slots, s.merger.traced = s.merger.slots[:0], s.merger.traced[:0]
	s.request.Seq, f.seq = s.seq, s.seq
}

// gather encodes as many waiting calls into f as fit even if no checks are merged. It reports whether more may fit, because some
// were merged.
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

// add encodes a check into f: as a new record, or as one more check of an earlier equal record.
func (s *session) add(f *frame, r *check.Record) {
	m, at := &s.request, position{record: int32(f.records)}
	limits := 0
	if r.Limits != nil {
		limits = r.Limits.Len()
	}
	id, fresh := s.limits.number(r.Limits)
	if fresh {
		m.Define = append(m.Define, definitionOf(id, r.Limits))
		f.bytes += bytesPerLimit * limits
	}
	merged := false
	if len(s.merger.slots) > 0 {
		slot := s.merger.slot(m, r.Key)
		last := int(*slot) - 1
		if merged = last >= 0 && mergeable(r) && equal(m, last, r, id); merged {
			before := max(1, m.Times[last])
			at = position{int32(last), int32(before)}
			m.Times[last] = before + max(1, r.Times)
			if len(f.positions) == 0 { // the first merged check of f
				for i := range f.checks {
					f.positions = append(f.positions, position{record: int32(i)})
				}
			}
		} else {
			*slot = at.record + 1
		}
	}
	f.checks++
	if len(f.positions) > 0 {
		f.positions = append(f.positions, at)
	}
	if !merged {
		addRecord(m, r, id)
		f.records++
		f.bytes += bytesPerRecord
		f.limits += limits
	}
	if r.Trace != nil && s.merger.trace(at.record) && addTrace(m, uint32(at.record), r.Trace) {
		f.bytes += bytesPerTrace
	}
}

// finishFrame ends the encoding of f.
func (s *session) finishFrame(f *frame) {
	if len(f.positions) > 0 {
		f.times = append(f.times, s.request.Times...)
	}
	trimRequest(&s.request)
}

// Approximate upper bounds of the bytes on the wire.
const (
	bytesPerRecord = 104
	bytesPerLimit  = 128
	bytesPerTrace  = 48
)

// receive hands replies to their calls until the stream ends, and then cleans up.
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
			signal(s.wake)
		}
	}
}

// answer fills in the replies of the oldest frame from m.
func (s *session) answer(m *peerv1.Reply) error {
	l := s.link
	l.mu.Lock()
	if len(s.inFlight) == 0 {
		l.mu.Unlock()
		return errors.New("an answer without a frame in flight")
	}
	f := s.inFlight[0]
	if err := checkReply(m, f.seq, f.records); err != nil {
		l.mu.Unlock()
		return fmt.Errorf("malformed answer: %w", err)
	}
	s.inFlight = append(s.inFlight[:0], s.inFlight[1:]...)
	s.records -= f.records
	s.lastTook = time.Since(f.sent)
	l.mu.Unlock()

	if len(f.positions) > 0 {
		s.decoded = slices.Grow(s.decoded[:0], f.records)[:f.records]
		readReply(m, 0, s.peer, s.decoded)
	}
	first := 0
	write := func(c *call) {
		if len(f.positions) == 0 {
			readReply(m, first, s.peer, c.replies)
			return
		}
		for i := range c.replies {
			at := f.positions[first+i]
			c.replies[i] = s.decoded[at.record]
			if rec := &c.records[i]; f.times[at.record] > max(1, rec.Times) {
				c.replies[i] = splitReply(&c.replies[i], rec, int64(at.before), max(1, rec.Times))
			}
		}
	}
	for _, c := range f.calls {
		n := len(c.records)
		c.finish(nil, write)
		first += n
	}
	clear(s.decoded)
	f.release()
	return nil
}

// lose ends the session: unanswered calls are ambiguous, waiting ones unsent. Only the first call has an effect.
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
	inFlight := s.inFlight
	s.inFlight = nil
	waiting := l.mu.waiting.takeAll()
	closed := l.mu.closed != nil
	l.mu.Unlock()

	s.cancel()
	if !closed {
		l.pool.stats.broken.Add(1)
		l.pool.warn("peer connection lost", l.addr, "name", s.peer, "error", why)
	}
	ambiguous := l.failure(check.ErrAmbiguous, why)
	for _, f := range inFlight {
		finishAll(f.calls, ambiguous)
	}
	finishAll(waiting, l.failure(check.ErrUnsent, why))
}
