package inflow

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// script is a connection that says what is in it.
type script struct {
	net.Conn
	io.Reader
	wrote  int
	closed bool
}

func (s *script) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s *script) Write(p []byte) (int, error) { s.wrote += len(p); return len(p), nil }
func (s *script) Close() error                { s.closed = true; return nil }
func (s *script) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func newBudget(t testing.TB, c Config) *Budget {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var wide = Config{Port: "test", Connection: 1 << 30, Process: 1 << 30, Unknown: 1 << 30, UnknownCalls: 1 << 30, Deadline: time.Minute}

func frame(kind byte, id uint32, payload int) []byte { return flagged(kind, 0, id, payload) }

func flagged(kind, flags byte, id uint32, payload int) []byte {
	b := []byte{byte(payload >> 16), byte(payload >> 8), byte(payload), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, id), make([]byte, payload)...)
}

// opened is a call of c with that id, whose message has not come.
func opened(c *conn, id uint32) *call {
	k := begun(c, id)
	c.register()
	return k
}

// begun is a call of c with that id, of which no more than headers was read.
func begun(c *conn, id uint32) *call {
	k := &call{Context: context.Background(), conn: c, id: id}
	c.begin(k, true)
	return k
}

func TestFrames(t *testing.T) {
	said := slices.Concat(make([]byte, prefaceSize),
		frame(4, 0, 6), frame(headerFrame, 1, 30), frame(dataFrame, 1, 100), frame(dataFrame, 1, 5000),
		frame(headerFrame, 3, 0), frame(dataFrame, 3, 0), frame(dataFrame, 3, 2000), frame(dataFrame, 5, 77))
	want := 100 + 96 + 16<<10 + 96 + 96 + 4<<10 + 96
	for _, piece := range []int{1, 7, headSize, 1 << 20} {
		b := newBudget(t, wide)
		c := newConn(&script{Reader: bytes.NewReader(said)}, b)
		one, three := opened(c, 1), opened(c, 3)
		for buf := make([]byte, piece); ; {
			if _, err := c.Read(buf); err != nil {
				break
			}
		}
		if got := b.Stats().Held; got != int64(want) || one.bytes != 5100 || three.bytes != 2000 || c.id != 3 || c.stray.Load() != 77 {
			t.Errorf("in pieces of %d: %d held, want %d; calls have %d and %d; last %d; stray %d", piece, got, want, one.bytes, three.bytes, c.id, c.stray.Load())
		}
		c.credit(one, 5095) // all of it, with gRPC's five
		c.release(three)
		if got := b.Stats().Held; got != 0 {
			t.Errorf("%d are held of what was read", got)
		}
		c.release(one)
		c.Close()
		if b.open.Load() != 0 || len(c.mu.calls) != 0 {
			t.Errorf("%d connections are left", b.open.Load())
		}
	}
}

// TestSmallMessages: a small message that comes in one frame behind its headers is not counted. All others are, before more is read.
func TestSmallMessages(t *testing.T) {
	whole := flagged(dataFrame, endStream, 1, 100)
	for _, c := range []struct {
		name   string
		behind [][]byte // each read by itself
		want   int64
	}{
		{"whole", [][]byte{whole}, 0},
		{"without an end", [][]byte{frame(dataFrame, 1, 100)}, costOf(100)},
		{"large", [][]byte{flagged(dataFrame, endStream, 1, smallMessage+1)}, costOf(smallMessage + 1)},
		{"in two frames", [][]byte{slices.Concat(frame(dataFrame, 1, 100), whole)}, 2 * costOf(100)},
		{"later", [][]byte{nil, whole}, costOf(100)},
		{"behind other headers", [][]byte{slices.Concat(frame(headerFrame, 3, 0), whole)}, costOf(100)},
		{"of another call", [][]byte{flagged(dataFrame, endStream, 3, 100)}, 0},
	} {
		b := newBudget(t, wide)
		s := &script{Reader: bytes.NewReader(slices.Concat(make([]byte, prefaceSize), frame(headerFrame, 1, 8), c.behind[0]))}
		one := newConn(s, b)
		buf := make([]byte, prefaceSize+headSize+8)
		if _, err := io.ReadFull(one, buf); err != nil {
			t.Fatal(c.name, err)
		}
		k := begun(one, 1)
		for _, piece := range c.behind {
			if s.Reader = bytes.NewReader(piece); len(piece) == 0 || one.reader.Buffered() == 0 {
				_, _ = one.Read(buf)
			}
			for one.reader.Buffered() > 0 {
				if _, err := one.Read(buf); err != nil {
					t.Fatal(c.name, err)
				}
			}
		}
		if got := b.Stats().Held; got != c.want || k.registered == (c.name == "whole") {
			t.Errorf("%s: %d held, want %d; registered %v", c.name, got, c.want, k.registered)
		}
		if k.decoded(nil); b.Stats().Held != 0 || len(one.mu.calls) != 0 {
			t.Errorf("%s: decoded, %d are held of %d calls", c.name, b.Stats().Held, len(one.mu.calls))
		}
		k = begun(one, 5)
		k.decoded(io.EOF)
		if one.register(); len(one.mu.calls) != 0 {
			t.Errorf("%s: a call is registered after its end", c.name)
		}
	}
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wide
		c.Connection, c.Process, c.Unknown, c.UnknownCalls, c.Deadline = 100_000, 150_000, 1000, 2, time.Second
		b := newBudget(t, c)
		one, other := newConn(&script{}, b), newConn(&script{}, b)
		small, large := opened(one, 1), opened(one, 3)
		one.data(1, 20<<10, false)
		one.data(3, 60<<10, false)
		if one.data(3, 30<<10, false); !large.over || small.over || b.Stats().Ended.Of("connection") != 1 {
			t.Errorf("over the bound of a connection: %+v", b.Stats())
		}
		// Above the bound of all, each has its share.
		a, z := opened(other, 1), opened(other, 3)
		other.data(1, 90<<10, false)
		if other.data(3, 4<<10, false); a.over || z.over {
			t.Errorf("a share was taken: %+v", b.Stats())
		}
		if one.data(1, 60<<10, false); !small.over || b.Stats().Ended.Of("process") != 1 {
			t.Errorf("over the bound of all: %+v", b.Stats())
		}
		if got := b.Stats().Held; got != costOf(90<<10)+costOf(4<<10) {
			t.Errorf("%d are held", got)
		}
		// Unknown clients.
		for id := range uint32(3) {
			k := &call{Context: context.Background(), conn: one, id: 11 + 2*id, timed: true}
			if took := one.begin(k, false); took != (id < 2) {
				t.Errorf("call %d of an unknown client: %v", id, took)
			}
		}
		if one.data(11, 1001, false); b.Stats().Ended.Of("unknown") != 1 {
			t.Errorf("a long message of an unknown client: %+v", b.Stats())
		}
		one.know(one.mu.calls[slices.IndexFunc(one.mu.calls, func(k *call) bool { return k.id == 13 })])
		if one.data(13, 1001, false); b.Stats().Ended.Of("unknown") != 1 {
			t.Errorf("a long message of a known client: %+v", b.Stats())
		}
		time.Sleep(c.Deadline + time.Millisecond)
		synctest.Wait()
		if b.Stats().Ended.Of("deadline") != 1 {
			t.Errorf("after the deadline: %+v", b.Stats())
		}
		// What goes on sending to ended calls, and does not read, is closed.
		one.data(3, strayBytes, false)
		if _, err := one.Write(make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		if one.data(3, strayBytes, false); one.Conn.(*script).closed {
			t.Error("it reads, and was closed")
		}
		if one.data(3, 1, false); !one.Conn.(*script).closed || b.Stats().Ended.Of("stray") != 1 {
			t.Errorf("it was not closed: %+v", b.Stats())
		}
		one.Close()
		other.Close()
		if b.Stats().Held != 0 {
			t.Errorf("%d are held without a connection", b.Stats().Held)
		}
	})
}

// A connection that holds too much is not read until its handlers have caught up.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wide
		c.Connection = 50_000
		b := newBudget(t, c)
		one := newConn(&script{}, b)
		first, second := opened(one, 1), opened(one, 3)
		one.data(1, 30<<10, false)
		go func() {
			time.Sleep(patience / 2)
			one.release(first)
		}()
		began := time.Now()
		one.data(3, 30<<10, false)
		if second.over || time.Since(began) != patience/2 || b.Stats().Held != costOf(30<<10) {
			t.Errorf("after %v: %+v", time.Since(began), b.Stats())
		}
		one.Close()
	})
}

// TestWholeMessages: messages that are complete are waited for longer, and what is ended is another.
func TestWholeMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wide
		c.Connection = 100_000
		b := newBudget(t, c)
		one := newConn(&script{}, b)
		large, first, second := opened(one, 1), opened(one, 3), opened(one, 5)
		one.data(1, 60<<10, true)
		one.data(3, 20<<10, false)
		go func() {
			time.Sleep(wholePatience / 2)
			one.release(large)
		}()
		began := time.Now()
		one.data(5, 40<<10, true)
		if first.over || second.over || time.Since(began) != wholePatience/2 {
			t.Errorf("a complete message whose handlers made room after %v: %+v", time.Since(began), b.Stats())
		}
		began = time.Now()
		one.data(3, 50<<10, false)
		if !first.over || second.over || time.Since(began) != wholePatience {
			t.Errorf("a complete message that no handler takes, after %v: %+v", time.Since(began), b.Stats())
		}
		one.data(7, 50<<10, true) // of no call
		third := opened(one, 9)
		began = time.Now()
		one.data(9, 90<<10, true)
		if !third.over || time.Since(began) != wholePatience {
			t.Errorf("what is being read was taken for complete, after %v: %+v", time.Since(began), b.Stats())
		}
		one.Close()
	})
}

// Whatever is said, and in whatever pieces it comes, the same is held, and nothing once the connection is over.
func FuzzFrames(f *testing.F) {
	f.Add(slices.Concat(frame(headerFrame, 1, 3), frame(dataFrame, 1, 20), frame(dataFrame, 2, 1)), uint8(3))
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 1}, uint8(1))
	f.Fuzz(func(t *testing.T, said []byte, piece uint8) {
		said = append(make([]byte, prefaceSize), said...)
		read := func(piece int) (held, stray int64, last uint32) {
			b := newBudget(t, wide)
			s := &script{Reader: bytes.NewReader(said)}
			c := newConn(s, b)
			for id := range uint32(4) {
				opened(c, id)
			}
			for buf := make([]byte, piece); ; {
				if _, err := c.Read(buf); err != nil {
					break
				}
			}
			held, stray, last = b.Stats().Held, c.stray.Load(), c.id
			c.Close()
			if b.Stats().Held != 0 {
				t.Errorf("%d are held of a connection that is over", b.Stats().Held)
			}
			return held, stray, last
		}
		held, stray, last := read(1 << 16)
		if h, s, l := read(1 + int(piece)); h != held || s != stray || l != last {
			t.Errorf("%d, %d, %d in one piece, and %d, %d, %d in pieces of %d", held, stray, last, h, s, l, 1+int(piece))
		}
	})
}
