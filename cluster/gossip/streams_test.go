package gossip

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// announcing is the head of a message with the members that a node knows.
func announcing(t testing.TB, nodes, userState int) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteByte(pushPullMessage)
	head := struct {
		Nodes, UserStateLen int
		Join                bool
	}{nodes, userState, true}
	must(t, codec.NewEncoder(&b, &codec.MsgpackHandle{}).Encode(&head))
	return b.Bytes()
}

func TestStreamHeads(t *testing.T) {
	for _, c := range []struct {
		name      string
		head      []byte
		encrypted bool
		want      string // in the error
	}{
		{"a ping", []byte{pingMessage}, false, ""},
		{"members", announcing(t, 3, 40), false, ""},
		{"many members", announcing(t, maxStreamNodes, 40), false, ""},
		{"too many members", announcing(t, maxStreamNodes+1, 40), false, "8193 nodes"},
		{"fewer than none", announcing(t, -1, 40), false, "-1 nodes"},
		{"a long state", announcing(t, 1, maxUserState+1), false, "1025 bytes of state"},
		{"compressed", []byte{9, 1, 2, 3}, false, "begins with 9"},
		{"a user's message", []byte{8, 1, 2, 3}, false, "begins with 8"},
		{"encrypted, and this node has no key", []byte{10, 1, 2, 3}, false, "is encrypted"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), false, "begins with 71"},
		{"a key without end", append([]byte{pushPullMessage, 0x81, 0xdb, 0x7f, 0xff, 0xff, 0xff}, make([]byte, maxStreamHead-7)...), false, "no state"},
		{"encrypted", []byte{encryptMessage, 0, 0, 0, 1}, true, ""},
		{"in clear, where it is not wanted", announcing(t, 3, 40), true, "not encrypted"},
	} {
		enough, err := judgeHead(c.head, c.encrypted)
		switch {
		case c.want == "" && (err != nil || !enough):
			t.Errorf("%s: %v, %v", c.name, enough, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		// It comes in pieces as well.
		if c.want == "" && !c.encrypted && len(c.head) > 1 {
			if early, err := judgeHead(c.head[:2], false); early || err != nil {
				t.Errorf("%s: two bytes: %v, %v", c.name, early, err)
			}
		}
	}
}

// from is a connection that comes from an address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.addr)
	if err != nil {
		panic(err)
	}
	return a
}

func TestStreamGate(t *testing.T) {
	in := make(chan net.Conn)
	g := newStreamGate(false)
	g.wg.Go(func() { g.run(in) })
	defer g.stop()
	come := func(addr string) (theirs, ours net.Conn) {
		theirs, ours = net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		in <- from{ours, addr}
		return theirs, ours
	}
	enter := func(addr string) (theirs, ours net.Conn) {
		t.Helper()
		theirs, _ = come(addr)
		select {
		case ours = <-g.out:
			return theirs, ours
		case <-time.After(time.Minute):
			t.Fatalf("a stream from %s is not let in", addr)
			return nil, nil
		}
	}
	turnedAway := func(addr string) {
		t.Helper()
		theirs, _ := come(addr)
		theirs.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a stream from %s: %v; want it closed", addr, err)
		}
	}
	var inside []net.Conn
	for range maxStreamsOfOne {
		_, ours := enter("192.0.2.1:1")
		inside = append(inside, ours)
	}
	turnedAway("192.0.2.1:2")
	for i := len(inside); i < maxStreams; i++ {
		_, ours := enter("192.0.2." + string(rune('2'+i/maxStreamsOfOne)) + ":1")
		inside = append(inside, ours)
	}
	turnedAway("192.0.2.9:1")
	for _, c := range inside {
		c.Close()
		c.Close()
	}
	if g.mu.open != 0 || len(g.mu.by) != 0 {
		t.Errorf("%d streams are left, of %v", g.mu.open, g.mu.by)
	}

	theirs, ours := enter("192.0.2.1:1")
	said := append(announcing(t, 3, 40), "and the rest"...)
	go func(theirs net.Conn) {
		for i := range said { // in pieces
			if _, err := theirs.Write(said[i : i+1]); err != nil {
				return
			}
		}
		theirs.Close()
	}(theirs)
	if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, said) {
		t.Errorf("read %q, %v", got, err)
	}
	ours.Close()

	theirs, ours = enter("192.0.2.1:1")
	go func(theirs net.Conn) {
		block := make([]byte, 64<<10) // pings
		for {
			if _, err := theirs.Write(block); err != nil {
				return
			}
		}
	}(theirs)
	if got, err := io.Copy(io.Discard, ours); got != maxStreamBytes || !errors.Is(err, errStreamTooLong) {
		t.Errorf("read %d bytes, %v", got, err)
	}
	ours.Close()

	theirs, ours = enter("192.0.2.1:1")
	go theirs.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	if _, err := ours.Read(make([]byte, 1)); err == nil {
		t.Error("HTTP was let in")
	}
	ours.Close()
	if n := g.rejected.Load(); n != 3 {
		t.Errorf("%d were counted, want 3", n)
	}
}

func FuzzStreamHead(f *testing.F) {
	f.Add(announcing(f, 3, 40))
	f.Add([]byte{pushPullMessage, 0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{pushPullMessage, 0xc9, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, head []byte) {
		head = head[:min(len(head), maxStreamHead)]
		if enough, err := judgeHead(head, false); enough && err != nil {
			t.Errorf("enough, and %v", err)
		}
	})
}
