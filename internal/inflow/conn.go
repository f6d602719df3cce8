package inflow

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Of HTTP/2, RFC 9113.
const (
	prefaceSize = 24
	headSize    = 9
	dataFrame   = 0
	headerFrame = 1
	endStream   = 1 // a flag of both
)

const (
	readBuffer = 32 << 10
	// patience is how long a connection that holds too much is not read before a call is ended, and wholePatience while it holds
	// complete messages: their handlers wait only for a processor.
	patience      = 20 * time.Millisecond
	wholePatience = time.Second
	// strayBytes is how much a connection may send to ended calls while it reads nothing. Clients that respect the window of
	// their connection send less.
	strayBytes = 10 << 20
	// smallMessage is the most bytes of a message that is not counted when it comes as one last frame: it is complete, so it is
	// held only until its handler begins.
	smallMessage = 4 << 10
)

// costOf is the memory of a DATA frame of n bytes: gRPC's buffers have fixed sizes, and a record each.
func costOf(n int) int64 {
	const record = 96
	switch {
	case n <= 1<<10:
		return int64(n) + record
	case n <= 4<<10:
		return 4<<10 + record
	}
	return int64(max(n, 16<<10)) + record
}

// conn follows the frames that gRPC reads. It is gRPC's read buffer, so gRPC handles each frame before it reads the next.
type conn struct {
	net.Conn
	budget *Budget
	opened time.Time
	reader *bufio.Reader
	stray  atomic.Int64
	room   chan struct{} // a call has given back what it held, while patient
	// decoded is what its decoded messages may still take.
	decoded pool

	// Of the goroutine that reads.
	preface int // bytes of it that have been read
	head    [headSize]byte
	have    int    // bytes of head
	left    int    // bytes of the frame after head
	id      uint32 // of the last frame with headers
	// last is the last call if its client is known, until it is registered or its message was small. So most calls take no lock.
	last  *call
	known bool // it has had a call of a known client

	mu struct {
		sync.Mutex
		closed  bool
		patient bool
		held    int64
		unknown int
		calls   []*call
		timer   *time.Timer
		armed   bool
	}
}

// call holds bytes of messages. It is the call's context.
type call struct {
	context.Context
	conn  *conn
	id    uint32
	timed bool // the deadline is for it
	done  bool // of the handler of a unary call: it is released
	// registered: it is in conn.mu.calls, or was. Set before a handler has its message.
	registered bool
	why        atomic.Pointer[status.Status] // it was ended
	stream     atomic.Value                  // its handler has begun: grpc.ServerTransportStream
	message    Message                       // of a unary call

	// Guarded by conn.mu.
	began    time.Time
	known    bool
	free     bool // not counted
	over     bool // ended
	whole    bool // the client sends no more
	released bool
	bytes    int
	cost     int64
}

type callKey struct{}

// Value implements context.Context.
func (k *call) Value(key any) any {
	if key == (callKey{}) {
		return k
	}
	return k.Context.Value(key)
}

func newConn(inner net.Conn, b *Budget) *conn {
	b.open.Add(1)
	return &conn{Conn: inner, budget: b, opened: time.Now(), reader: bufio.NewReaderSize(inner, readBuffer), room: make(chan struct{}, 1),
		decoded: newPool(mostDecoded)}
}

func (c *conn) Read(p []byte) (int, error) {
	if c.reader.Buffered() == 0 {
		c.register() // its message may take time
	}
	n, err := c.reader.Read(p)
	c.follow(p[:n])
	return n, err
}

// Write implements net.Conn. A client that reads gets to know that calls have ended.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil && c.stray.Load() != 0 {
		c.stray.Store(0)
	}
	return n, err
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return err
	}
	c.mu.closed = true
	c.budget.open.Add(-1)
	c.budget.held.Add(-c.mu.held)
	c.mu.calls, c.mu.held = nil, 0
	if c.mu.timer != nil {
		c.mu.timer.Stop()
	}
	return err
}

// follow parses the bytes that were read.
func (c *conn) follow(p []byte) {
	for len(p) > 0 {
		if c.preface < prefaceSize {
			n := min(len(p), prefaceSize-c.preface)
			c.preface += n
			p = p[n:]
			continue
		}
		if c.left > 0 {
			n := min(len(p), c.left)
			c.left -= n
			p = p[n:]
			continue
		}
		n := copy(c.head[c.have:], p)
		p = p[n:]
		if c.have += n; c.have < headSize {
			return
		}
		c.have = 0
		c.left = int(c.head[0])<<16 | int(c.head[1])<<8 | int(c.head[2])
		last := c.head[4]&endStream != 0
		switch id := binary.BigEndian.Uint32(c.head[5:]) &^ (1 << 31); c.head[3] {
		case headerFrame:
			c.register()
			c.id = id
		case dataFrame:
			if k := c.last; k != nil && k.id == id && last && c.left <= smallMessage {
				c.last = nil
				continue
			}
			c.register()
			c.data(id, c.left, last)
		}
	}
}

// data counts a DATA frame of n bytes, before gRPC allocates it. last says that it is the call's last.
func (c *conn) data(id uint32, n int, last bool) {
	b, cost := c.budget, costOf(n)
	c.mu.Lock()
	k := c.findLocked(id)
	if k == nil || k.over {
		c.mu.Unlock()
		if c.stray.Add(int64(n)) > strayBytes {
			b.note(stray, c)
			c.Conn.Close()
		}
		return
	}
	if k.free {
		c.mu.Unlock()
		return
	}
	k.bytes += n
	k.cost += cost
	k.whole = last
	c.mu.held += cost
	held := c.mu.held
	long := !k.known && (k.bytes > b.config.Unknown || k.cost > 8*int64(b.config.Unknown))
	c.mu.Unlock()
	all := b.held.Add(cost)
	switch {
	case long:
		c.end(k, unknown)
	case held > int64(b.config.Connection) || all > int64(b.config.Process):
		c.relieve(k)
	}
}

// tooMuchLocked returns the reason to end a call of c, if any.
func (c *conn) tooMuchLocked() (reason int, yes bool) {
	b := c.budget
	if c.mu.held > int64(b.config.Connection) {
		return connection, true
	}
	share := max(leastShare, int64(b.config.Process)/max(1, b.open.Load()))
	return process, c.mu.held > share && b.held.Load() > int64(b.config.Process)
}

// relieve waits until c holds no more than it may, and ends its largest calls when that takes too long, those with incomplete
// messages first. A frame of the call current is being read.
func (c *conn) relieve(current *call) {
	began := time.Now()
	for {
		c.mu.Lock()
		reason, yes := c.tooMuchLocked()
		c.mu.patient = yes
		if !yes || c.mu.closed {
			c.mu.Unlock()
			return
		}
		var part, whole *call // the largest
		for _, k := range c.mu.calls {
			switch {
			case k.over:
			case k.whole && k != current:
				whole = larger(whole, k)
			default:
				part = larger(part, k)
			}
		}
		c.mu.Unlock()
		wait := patience
		if whole != nil {
			wait = wholePatience
		}
		select {
		case <-c.room:
			continue
		case <-time.After(wait - time.Since(began)):
		}
		if part == nil {
			part = whole
		}
		if part == nil {
			return
		}
		c.end(part, reason)
	}
}

// larger returns the call that holds more. a may be nil.
func larger(a, b *call) *call {
	if a == nil || b.cost > a.cost {
		return b
	}
	return a
}

// begin adds k, unless there are too many calls of unknown clients.
func (c *conn) begin(k *call, known bool) bool {
	k.known, k.free = known, known && c.budget.config.TrustKnown
	c.register()
	if known {
		c.last, c.known = k, true
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.unknown >= c.budget.config.UnknownCalls {
		return false
	}
	c.mu.unknown++
	c.registerLocked(k)
	return true
}

// register counts the last call from now on.
func (c *conn) register() {
	k := c.last
	if k == nil {
		return
	}
	c.last = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registerLocked(k)
}

func (c *conn) registerLocked(k *call) {
	if c.mu.closed || k.released { // gRPC ends the calls of a closed connection
		return
	}
	k.registered, k.began = true, time.Now()
	c.mu.calls = append(c.mu.calls, k)
	if k.timed && !c.mu.armed {
		c.armLocked(c.budget.config.Deadline)
	}
}

// serve records that the handler of k has begun, with ctx. The error is for the client if k was ended before.
func (k *call) serve(ctx context.Context) error {
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil {
		k.stream.Store(stream)
	}
	return k.why.Load().Err()
}

// end ends k.
func (c *conn) end(k *call, reason int) {
	c.mu.Lock()
	if k.over || c.findLocked(k.id) != k {
		c.mu.Unlock()
		return
	}
	k.over = true
	c.giveBackLocked(k, k.cost)
	c.mu.Unlock()
	k.why.Store(statuses[reason]) // before it loads stream: serve does it in the reverse order, so one of them sees the other
	c.budget.note(reason, c)
	// This method of gRPC's internal stream ends it; TestMessageDeadline of transport/grpcapi relies on it.
	if w, ok := k.stream.Load().(interface{ WriteStatus(*status.Status) error }); ok {
		// The client gets the status, and the handler an error.
		_ = w.WriteStatus(statuses[reason])
	}
}

// know is Known.
func (c *conn) know(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.known {
		return
	}
	k.known = true
	c.mu.unknown--
	if c.budget.config.TrustKnown {
		k.free, k.timed = true, false
		c.giveBackLocked(k, k.cost)
	}
}

// credit releases the bytes of a message of n bytes of k.
func (c *conn) credit(k *call, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.timed = false
	before := k.bytes
	k.bytes = max(0, before-n-5) // with gRPC's own five
	if before == 0 || k.over {
		return
	}
	c.giveBackLocked(k, k.cost-k.cost*int64(k.bytes)/int64(before))
}

// decoded releases k once, after its message was decoded with err.
func (k *call) decoded(err error) {
	if k.done {
		return
	}
	k.done = true
	if err != nil || k.registered {
		k.conn.release(k)
	}
}

// release forgets k.
func (c *conn) release(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.released = true
	i := slices.Index(c.mu.calls, k)
	if i < 0 {
		return
	}
	last := len(c.mu.calls) - 1
	c.mu.calls[i], c.mu.calls[last] = c.mu.calls[last], nil
	c.mu.calls = c.mu.calls[:last]
	if !k.known {
		c.mu.unknown--
	}
	c.giveBackLocked(k, k.cost)
}

func (c *conn) giveBackLocked(k *call, cost int64) {
	if cost == 0 || c.mu.closed {
		return
	}
	k.cost -= cost
	c.mu.held -= cost
	c.budget.held.Add(-cost)
	if c.mu.patient {
		select {
		case c.room <- struct{}{}:
		default:
		}
	}
}

func (c *conn) findLocked(id uint32) *call {
	for _, k := range slices.Backward(c.mu.calls) { // the last ones are still receiving
		if k.id == id {
			return k
		}
	}
	return nil
}

func (c *conn) armLocked(d time.Duration) {
	c.mu.armed = true
	if c.mu.timer == nil {
		c.mu.timer = time.AfterFunc(d, c.look)
		return
	}
	c.mu.timer.Reset(d)
}

// look ends calls whose message takes too long, and releases those that ended without a handler.
func (c *conn) look() {
	deadline, now := c.budget.config.Deadline, time.Now()
	next := time.Duration(0)
	var overdue, gone []*call
	c.mu.Lock()
	c.mu.armed = false
	for _, k := range c.mu.calls {
		left := deadline - now.Sub(k.began)
		switch {
		case !k.timed || k.whole: // one that is complete waits for a processor, or for memory
		case left > 0:
			if next == 0 || left < next {
				next = left
			}
		case k.stream.Load() == nil && k.Err() != nil:
			gone = append(gone, k)
		case !k.over:
			overdue = append(overdue, k)
		}
	}
	if next > 0 && !c.mu.closed {
		c.armLocked(next)
	}
	c.mu.Unlock()
	for _, k := range gone {
		c.release(k)
	}
	for _, k := range overdue {
		c.end(k, late)
	}
}
