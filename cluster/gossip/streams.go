package gossip

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// What others' streams to the gossip port may take. A stream carries one message; the largest that is
// gossip has some 700 bytes for each member.
const (
	maxStreams      = 256     // at once
	maxStreamsOfOne = 64      // of them from one address
	maxStreamBytes  = 2 << 20 // of each
	maxStreamNodes  = 8192    // that a message may announce: room is made for them before they come
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

// streamGate lets streams and packets in. memberlist reads what they announce, and bounds neither how many
// there are nor, in clear, much of what one can make it hold.
type streamGate struct {
	encrypted bool
	out       chan net.Conn
	packets   chan *memberlist.Packet
	leaving   chan struct{} // closed when packets are dropped: memberlist may not take them any more
	stopped   chan struct{}
	wg        sync.WaitGroup
	leave     sync.Once
	end       sync.Once
	rejected  atomic.Uint64

	mu struct {
		sync.Mutex
		open int
		by   map[string]int
	}
}

func newStreamGate(encrypted bool) *streamGate {
	g := &streamGate{encrypted: encrypted, out: make(chan net.Conn), packets: make(chan *memberlist.Packet), leaving: make(chan struct{}), stopped: make(chan struct{})}
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
	from := hostOf(c.RemoteAddr())
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

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// boundedStream is a stream of which so many bytes can be read, and nothing if its head is not
// that of gossip. One goroutine reads.
type boundedStream struct {
	net.Conn
	gate    *streamGate
	from    string
	closing sync.Once

	left   int
	judged bool
	head   []byte // judged, and not read yet
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

// judge reads the head and rejects what is no gossip.
func (s *boundedStream) judge() error {
	head := make([]byte, 0, maxStreamHead)
	for {
		n, err := s.Conn.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		enough, fault := judgeHead(head, s.gate.encrypted)
		if fault != nil {
			return fault
		}
		if enough {
			s.judged, s.head, s.left = true, head, s.left-len(head)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// judgeHead says whether the bytes that a stream began with are enough to judge it, and what is
// wrong with them. Errors contain what memberlist's log lines about noise do.
func judgeHead(head []byte, encrypted bool) (enough bool, err error) {
	switch {
	case len(head) == 0:
		return false, nil
	case encrypted:
		if head[0] != encryptMessage {
			return false, errors.New("not encrypted")
		}
		return true, nil
	case head[0] == pingMessage:
		return true, nil
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

// certain is how many rejections in a row are believed: one alone may be of a process that was just stopping.
const certain = 2

// judge notes whether a join target has answered that this node is none of its cluster.
func (j *joiner) judge(a *attempt, err error) {
	why := ""
	if err != nil {
		why = rejection(err.Error())
	}
	if why == "" {
		a.rejections = 0
	} else {
		a.rejections++
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if a.rejections < certain {
		delete(j.mu.rejected, a.address)
		return
	}
	text := fmt.Sprintf("%s (--join %s): %s", a.address, a.target, why)
	j.mu.rejected[a.address] = text
	if j.quiet.Allow(time.Now(), text) {
		j.log.Error("rejected by a join target: this node is not part of that cluster, and is not ready until this is cured", "address", a.address,
			"target", a.target, "reason", why)
	}
}

// forgetRejected drops the addresses that are not tried any more.
func (j *joiner) forgetRejected(attempts map[string]*attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for address := range j.mu.rejected {
		if attempts[address] == nil {
			delete(j.mu.rejected, address)
		}
	}
}

// Rejected says which join targets answer and do not take this node, and why: what differs and what to do. The keys are
// their addresses.
func (g *Gossip) Rejected() map[string]string {
	j := g.joiner
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.mu.rejected)
}

// LongestRejoin is how long it takes at most until members that miss this node's address have tried it.
func (g *Gossip) LongestRejoin() time.Duration {
	return 2*g.config.Timing.RejoinInterval + g.config.Timing.ProbeTimeout
}

// Failures says which join targets do not answer, and why.
func (g *Gossip) Failures() []string { return g.joiner.failures() }

// rejection says what the error of an exchange with a peer means that has answered, and what to do; "" if it did not answer. memberlist's
// errors are texts.
func rejection(text string) string {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case has("dial ", "resolve", "lookup ", "timeout", "deadline exceeded", "use of closed"):
		return ""
	case has("placement is"):
		return text[max(0, strings.Index(text, "its ")):]
	case has("encrypt", "decrypt"):
		return "secret or keyring differs: give all nodes the same --secret-file and --gossip-keyring (" + text + ")"
	case has("msgType", "unsupported", "msgpack", "missing message type"):
		return "it is no gossip port: give the gossip port in --join, 7463 by default (" + text + ")"
	case has("EOF", "reset by peer", "broken pipe"):
		return "it closes the connection: secret or keyring differs (give all nodes the same --secret-file and --gossip-keyring), or it is no gossip port (" + text + ")"
	}
	return text
}
