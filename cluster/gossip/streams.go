package gossip

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// Bounds of incoming streams. A stream carries one message, of at most some 700 bytes for each member.
const (
	maxStreams      = 256     // at once
	maxStreamsOfOne = 64      // of them from one address
	maxStreamBytes  = 2 << 20 // of each
	maxStreamNodes  = 8192    // that a message may announce: memberlist allocates them in advance
	maxUserState    = 1 << 10 // bytes that it may announce
	maxStreamHead   = 256     // bytes that announce both
)

// Kinds of messages that begin a stream, as memberlist numbers them.
const (
	pingMessage     = 0
	pushPullMessage = 6
	encryptMessage  = 10
)

var errStreamTooLong = fmt.Errorf("more than %d bytes", maxStreamBytes)

// streamGate lets streams and packets in. memberlist bounds neither the number of streams nor, unencrypted, the memory that one
// can make it allocate.
type streamGate struct {
	encrypted bool
	out       chan net.Conn
	packets   chan *memberlist.Packet
	leaving   chan struct{} // closed when packets are dropped: memberlist may no longer take them
	stopped   chan struct{}
	wg        sync.WaitGroup
	shutdown  sync.Once
	rejected  atomic.Uint64

	mu struct {
		sync.Mutex
		open int
		by   map[string]int
	}
}

func newStreamGate(encrypted bool) *streamGate {
	g := &streamGate{
		encrypted: encrypted, out: make(chan net.Conn), packets: make(chan *memberlist.Packet),
		leaving: make(chan struct{}), stopped: make(chan struct{}),
	}
	g.mu.by = make(map[string]int)
	return g
}

// run passes streams on from in until stop.
func (g *streamGate) run(in <-chan net.Conn) {
	for {
		select {
		case c := <-in:
			g.pass(c)
		case <-g.stopped:
			return
		}
	}
}

// pass hands c to memberlist, or closes it.
func (g *streamGate) pass(c net.Conn) {
	from, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		from = c.RemoteAddr().String()
	}
	g.mu.Lock()
	ok := g.mu.open < maxStreams && g.mu.by[from] < maxStreamsOfOne
	if ok {
		g.mu.open++
		g.mu.by[from]++
	}
	g.mu.Unlock()
	if !ok {
		g.rejected.Add(1)
		_ = c.Close()
		return
	}
	s := &boundedStream{Conn: c, gate: g, from: from, left: maxStreamBytes}
	select {
	case g.out <- s:
	case <-g.stopped:
		_ = s.Close()
	}
}

func (g *streamGate) release(from string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.open--
	if g.mu.by[from]--; g.mu.by[from] == 0 {
		delete(g.mu.by, from)
	}
}

// stop ends run and runPackets and waits for them.
func (g *streamGate) stop() {
	close(g.stopped)
	g.wg.Wait()
}

// boundedStream is a stream of which at most maxStreamBytes can be read, and nothing if its head is not that of gossip. One
// goroutine reads.
type boundedStream struct {
	net.Conn
	gate    *streamGate
	from    string
	closing sync.Once

	left   int
	judged bool
	head   []byte // not read yet
}

func (s *boundedStream) Close() error {
	err := s.Conn.Close()
	s.closing.Do(func() { s.gate.release(s.from) })
	return err
}

func (s *boundedStream) Read(p []byte) (int, error) {
	if !s.judged {
		if err := s.judge(); err != nil {
			s.gate.rejected.Add(1)
			return 0, err
		}
	}
	if len(s.head) > 0 {
		n := copy(p, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	if s.left == 0 {
		return 0, errStreamTooLong
	}
	n, err := s.Conn.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// judge reads the head and rejects what is not gossip.
func (s *boundedStream) judge() error {
	head := make([]byte, 0, maxStreamHead)
	for {
		n, err := s.Conn.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		enough, invalid := judgeHead(head, s.gate.encrypted)
		switch {
		case invalid != nil:
			return invalid
		case enough:
			s.judged, s.head, s.left = true, head, s.left-len(head)
			return nil
		case err != nil:
			return err
		}
	}
}

// judgeHead reports whether the first bytes of a stream are enough to judge it, and returns why it is rejected. Its errors
// contain texts of noise and undecrypted.
func judgeHead(head []byte, encrypted bool) (enough bool, err error) {
	switch {
	case len(head) == 0:
		return false, nil
	case encrypted && head[0] != encryptMessage:
		return false, errors.New("not encrypted")
	case encrypted || head[0] == pingMessage:
		return true, nil
	case head[0] == encryptMessage:
		return false, errors.New("the stream is encrypted, and this node has no secret or keyring")
	case head[0] != pushPullMessage:
		return false, fmt.Errorf("a stream that begins with %d", head[0])
	}
	var announced struct {
		Nodes, UserStateLen int
		Join                bool
	}
	err = codec.NewDecoderBytes(head[1:], &codec.MsgpackHandle{}).Decode(&announced)
	switch {
	case (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && len(head) < maxStreamHead:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("no state: %w", err)
	case announced.Nodes < 0 || announced.Nodes > maxStreamNodes:
		return false, fmt.Errorf("%d nodes announced", announced.Nodes)
	case announced.UserStateLen < 0 || announced.UserStateLen > maxUserState:
		return false, fmt.Errorf("%d bytes of state announced", announced.UserStateLen)
	}
	return true, nil
}
