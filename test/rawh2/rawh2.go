// Package rawh2 sends single HTTP/2 frames to gRPC servers. Tests use it to imitate hostile and faulty clients.
package rawh2

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Client can begin messages and not finish them. It keeps to the windows of streams, not to the connection's. Make it
// with New; it ends with its connection.
type Client struct {
	framer *http2.Framer
	next   uint32
	block  bytes.Buffer
	packed *hpack.Encoder

	mu struct {
		sync.Mutex
		window  int // that streams begin with
		granted map[uint32]int
		sent    map[uint32]int
		ended   map[uint32]int // gRPC's status, -1 for a reset
		over    error          // of the connection
		changed chan struct{}
	}
}

// New begins a conversation on c, whose closing is the caller's.
func New(c net.Conn) (*Client, error) {
	r := &Client{framer: http2.NewFramer(c, c), next: 1}
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.packed = hpack.NewEncoder(&r.block)
	r.mu.window, r.mu.granted, r.mu.sent, r.mu.ended = 65535, map[uint32]int{}, map[uint32]int{}, map[uint32]int{}
	r.mu.changed = make(chan struct{})
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	if err := r.framer.WriteSettings(); err != nil {
		return nil, err
	}
	go r.read()
	return r, nil
}

func (r *Client) read() {
	for {
		f, err := r.framer.ReadFrame()
		r.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if w, ok := f.Value(http2.SettingInitialWindowSize); ok {
				r.mu.window = int(w)
			}
		case *http2.WindowUpdateFrame:
			r.mu.granted[f.StreamID] += int(f.Increment)
		case *http2.RSTStreamFrame:
			if _, ok := r.mu.ended[f.StreamID]; !ok {
				r.mu.ended[f.StreamID] = -1
			}
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == "grpc-status" {
					r.mu.ended[f.StreamID], _ = strconv.Atoi(h.Value)
				}
			}
		}
		r.mu.over = err
		close(r.mu.changed)
		r.mu.changed = make(chan struct{})
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Open begins a call of method with that metadata, names and values in turn.
func (r *Client) Open(method string, metadata ...string) (id uint32, err error) {
	r.block.Reset()
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "raw", "content-type", "application/grpc", "te", "trailers"}, metadata...)
	for i := 0; i < len(fields); i += 2 {
		if err := r.packed.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, err
		}
	}
	id = r.next
	r.next += 2
	return id, r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.block.Bytes(), EndHeaders: true})
}

// Announce says that a message of so many bytes follows.
func (r *Client) Announce(id uint32, size int) error {
	return r.Send(id, binary.BigEndian.AppendUint32([]byte{0}, uint32(size)))
}

// Send sends a piece of a message.
func (r *Client) Send(id uint32, piece []byte) error {
	r.mu.Lock()
	r.mu.sent[id] += len(piece)
	r.mu.Unlock()
	return r.framer.WriteData(id, false, piece)
}

// May is how many bytes a call may send now.
func (r *Client) May(id uint32) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, over := r.mu.ended[id]; over {
		return 0
	}
	return r.mu.window + r.mu.granted[id] - r.mu.sent[id]
}

// Ended returns the status of calls that have ended, -1 for those without one, what is closed when that changes, and the error of the connection, if it is over.
func (r *Client) Ended() (all map[uint32]int, changed <-chan struct{}, over error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = make(map[uint32]int, len(r.mu.ended))
	for id, s := range r.mu.ended {
		all[id] = s
	}
	return all, r.mu.changed, r.mu.over
}

// Flood begins so many messages of that size in calls of method, and sends as much of each as it may but the last byte. It returns when ctx or the
// connection has ended, or no more may be sent for a while.
func (r *Client) Flood(ctx context.Context, calls, size int, method string) {
	var ids []uint32
	for range calls {
		id, err := r.Open(method)
		if err == nil {
			err = r.Announce(id, size)
		}
		if err != nil {
			return
		}
		ids = append(ids, id)
	}
	sent, piece := make(map[uint32]int, calls), make([]byte, 16<<10)
	for idle := 0; idle < 20 && ctx.Err() == nil; {
		moved := false
		for _, id := range ids {
			n := min(len(piece), size-1-sent[id], r.May(id))
			if n <= 0 {
				continue
			}
			if err := r.Send(id, piece[:n]); err != nil {
				return
			}
			sent[id] += n
			moved = true
		}
		if moved {
			idle = 0
			continue
		}
		idle++
		_, changed, over := r.Ended()
		if over != nil {
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
}
