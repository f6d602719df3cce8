package peer

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	"github.com/sluicecluster/sluice/test/rawh2"
)

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) with(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// listen serves a peer port of loopback until the test ends.
func listen(t *testing.T, log *lines) (*Server, string) {
	t.Helper()
	c := (&network{}).config("b")
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := NewServer(c, handlerFunc(echo))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

func unknownPeer(t *testing.T, addr string) *rawh2.Client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r, err := rawh2.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Who has not said hello may send a hello, and no more of a frame.
func TestUnknownPeerIsNotRead(t *testing.T) {
	log := new(lines)
	s, addr := listen(t, log)
	r := unknownPeer(t, addr)
	var ids []uint32
	for range maxStreams {
		id, err := r.Open(peerv1.PeerService_Exchange_FullMethodName)
		if err == nil {
			err = r.Announce(id, maxFrameBytes)
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	piece := bytes.Repeat([]byte{0}, 16<<10)
	for range 64 { // 16 MiB in all
		for _, id := range ids {
			if r.May(id) > len(piece) {
				if err := r.Send(id, piece); err != nil {
					break // the connection was closed
				}
			}
		}
		if held := s.Stats().Unread.Held; held > maxUnknown+64<<10 {
			t.Fatalf("%d bytes are held of a client that has said nothing", held)
		}
	}
	late := time.After(time.Minute)
	for {
		ended, changed, over := r.Ended()
		if over != nil || len(ended) == len(ids) {
			for id, status := range ended {
				if status != int(codes.ResourceExhausted) {
					t.Errorf("stream %d: status %d", id, status)
				}
			}
			break
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d of %d streams have ended", len(ended), len(ids))
		}
	}
	if got := s.Stats().Unread; got.Held != 0 || got.Ended.Of("unknown") == 0 {
		t.Errorf("%+v", got)
	}
	// A node is served as ever.
	pool := open(t, func() Config { c := (&network{}).config("a"); c.Dial = nil; return c }())
	if err := ask(t.Context(), pool, addr, 4); err != nil {
		t.Error(err)
	}
}

// What others do wrong has a line of each kind, whatever they put into it.
func TestLinesOfOutsidersAreFew(t *testing.T) {
	log := new(lines)
	s, addr := listen(t, log)
	const many = 60
	for i := range many {
		r := unknownPeer(t, addr)
		id, err := r.Open(peerv1.PeerService_Control_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		c := (&network{}).config("a")
		hello := c.hello()
		hello.Placement = uint32(1000 + i)
		message, err := proto.Marshal(&peerv1.Greeting{Hello: hello})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Announce(id, len(message)); err != nil {
			t.Fatal(err)
		}
		if err := r.Send(id, message); err != nil {
			t.Fatal(err)
		}
		for {
			ended, changed, over := r.Ended()
			if len(ended) > 0 {
				break
			}
			if over != nil {
				t.Fatal(over)
			}
			<-changed
		}
	}
	if n := s.Stats().Rejected; n != many {
		t.Errorf("%d were rejected, want %d", n, many)
	}
	if n := log.with("peer rejected"); n < 1 || n > 3 { // one in 10 s
		t.Errorf("%d lines", n)
	}
}
