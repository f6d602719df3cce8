package peer

import (
	"errors"
	"fmt"
	"math"
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
	seq     uint64

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
	parts   []part
	records int
	bytes   int // at most this many
	sent    time.Time
}

var frames = sync.Pool{New: func() any { return new(frame) }}

func (f *frame) release() {
	clear(f.parts)
	*f = frame{parts: f.parts[:0]}
	frames.Put(f)
}

// leadLocked makes the asker the one who sends, if there is something to send, it
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
		l.mu.Lock()
		f.parts = l.mu.waiting.take(f.parts, maxGather, maxFrameLimits)
		l.mu.Unlock()
		s.fill(f)
		f.sent = time.Now()

		l.mu.Lock()
		if s.lost {
			s.sending = false
			why := l.unsent(errLost)
			l.mu.Unlock()
			for _, p := range f.parts {
				p.call.finish(why, nil)
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

// fill encodes the calls of f that were not abandoned; f.parts is left with these.
func (s *session) fill(f *frame) {
	s.seq++
	m := &s.request
	cutRequest(m)
	s.limits.begin()
	m.Seq, f.seq = s.seq, s.seq
	kept := f.parts[:0]
	for _, p := range f.parts {
		c := p.call
		c.mu.Lock()
		if c.mu.abandoned {
			c.mu.Unlock()
			continue
		}
		c.mu.sent = true
		for i := range c.records {
			r := &c.records[i]
			var id uint32
			if r.Limits != nil {
				var fresh bool
				if id, fresh = s.limits.number(r.Limits); fresh {
					m.Define = append(m.Define, definitionOf(id, r.Limits))
					f.bytes += bytesPerLimit * r.Limits.Len()
				}
			}
			addRecord(m, r, id)
			if r.Trace != nil && addTrace(m, r.Trace) {
				f.bytes += bytesPerTrace
			}
		}
		c.mu.Unlock()
		kept = append(kept, p)
		f.records += p.records
	}
	f.parts = kept
	f.bytes += bytesPerRecord * f.records
	sealRequest(m)
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

// answer fills the replies of the oldest frame from m.
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

	first := 0
	fill := func(replies []check.Reply) { readReply(m, first, s.peer, replies) }
	for _, p := range f.parts {
		p.call.finish(nil, fill)
		first += p.records
	}
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
		for _, p := range f.parts {
			p.call.finish(ambiguous, nil)
		}
	}
	for _, p := range waiting {
		p.call.finish(unsent, nil)
	}
}
