package peer

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// bulk is a transfer batch of so many parts of three counters each.
func bulk(parts int) *message.TransferBatch {
	const counters, bytes = 3, 3 * 56
	boot := "18a4f3c2d1e0b7a6-5f3a9c1e"
	p := &message.TransferBatch{N: 12345, Image: bucket.Image{Limits: []*bucket.Limits{tenAMinute, hundred}}}
	for i := range parts {
		p.Parts = append(p.Parts, message.Part{
			Partition: i * 7, Kind: message.InitialSync, Epoch: message.Epoch{Gen: 3<<message.Handoffs + 1, Boot: boot}, InitialSync: 1, Seq: uint64(100_000 + i),
			Start:    message.Mark{Epoch: message.Epoch{Gen: 3 << message.Handoffs, Boot: "17" + boot[2:]}, Seq: uint64(5000 + i)},
			Counters: counters, Bytes: bytes, End: i%10 == 0, Sum: uint64(i%10) << 40,
		})
	}
	p.Image.Data, p.Image.Counters = make([]byte, parts*bytes), parts*counters
	return p
}

// BenchmarkControlMessage encodes and decodes frames of one control message.
func BenchmarkControlMessage(b *testing.B) {
	set := message.Set{ID: "18a4f3c2d1e0b7a6-5f3a9c1e", Version: 9, Members: []string{"sluice-0", "sluice-1", "sluice-2", "sluice-3", "sluice-4"}}
	to := message.Peer{Name: "sluice-3", Boot: "18a4f3c2d1e0b7a6-00000001"}
	for _, c := range []struct {
		name string
		body message.Body
	}{
		{"transfer batch", bulk(100)},
		{"heartbeat", &message.Heartbeat{Sent: 1 << 60, Set: set, Seen: 7}},
		{"ack", &message.Ack{Sent: 1 << 60, OK: true, Set: set}},
		{"receipt", &message.Receipt{N: 12345}},
	} {
		e := message.Envelope{To: to, ClusterID: set.ID, Body: c.body}
		codec := newFrameCodec()
		w, r := newControlWriter(defaultMaxLimits), newReader()
		encode := func() mem.BufferSlice {
			data, err := codec.Marshal(controlFrame(b, w, e))
			if err != nil {
				b.Fatal(err)
			}
			return data
		}
		var post peerv1.MessageFrame
		var got []message.Envelope
		decode := func(data mem.BufferSlice) {
			if err := codec.Unmarshal(data, &post); err != nil {
				b.Fatal(err)
			}
			var err error
			if got, _, err = r.read(&post, got[:0]); err != nil || len(got) != 1 {
				b.Fatal(err)
			}
		}
		decode(encode()) // the definitions
		data := encode()
		b.Run(c.name+"/encode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d := encode()
				d.Free()
			}
			b.ReportMetric(float64(data.Len()), "wire-bytes")
		})
		b.Run(c.name+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				decode(data)
			}
		})
	}
}

// answering is a queue of control messages that answers heartbeats with acks and transfer batches with receipts.
type answering struct {
	pool          *Pool
	addr          string
	acked         chan int64
	transferBatch func()
}

func (a *answering) Deliver(e message.Envelope) {
	switch m := e.Body.(type) {
	case *message.Heartbeat:
		a.pool.Post(a.addr, message.Envelope{Body: &message.Ack{Sent: m.Sent, OK: true}})
	case *message.Ack:
		a.acked <- m.Sent
	case *message.TransferBatch:
		a.pool.Post(a.addr, message.Envelope{Body: &message.Receipt{N: m.N}})
	case *message.Receipt:
		a.transferBatch()
	}
}

// BenchmarkHeartbeat is the way of a heartbeat and its ack between two nodes over
// loopback TCP, while so many transfer batches of 50 KiB are always on their way.
func BenchmarkHeartbeat(b *testing.B) {
	for _, inFlight := range []int{0, 4, 64} {
		b.Run(fmt.Sprintf("transfer batches=%d", inFlight), func(b *testing.B) {
			var nodes [2]answering
			var addrs [2]string
			for i := range nodes {
				c := (&network{}).config(string(rune('a' + i)))
				c.Dial = nil
				pool, err := Open(c)
				if err != nil {
					b.Fatal(err)
				}
				defer pool.Close()
				nodes[i] = answering{pool: pool, acked: make(chan int64, 1024)}
				c.ControlQueue = &nodes[i]
				server, err := NewServer(c, handlerFunc(echo))
				if err != nil {
					b.Fatal(err)
				}
				addr, stop := serveTCP(b, server.Serve, server.Close)
				defer stop()
				addrs[i] = addr
			}
			var mu sync.Mutex
			sent, stopped := 0, false
			load := message.Envelope{Body: bulk(300)}
			send := func() {
				mu.Lock()
				defer mu.Unlock()
				if !stopped {
					sent++
					nodes[0].pool.Post(addrs[1], load)
				}
			}
			nodes[0].addr, nodes[1].addr = addrs[1], addrs[0]
			nodes[0].transferBatch = send
			beat := func() time.Duration {
				start := time.Now()
				nodes[0].pool.Post(addrs[1], message.Envelope{Body: &message.Heartbeat{Sent: start.UnixNano()}})
				<-nodes[0].acked
				return time.Since(start)
			}
			beat()
			for range inFlight {
				send()
			}
			began, before := time.Now(), sent
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				took = append(took, beat())
			}
			mu.Lock()
			stopped = true
			transferBatches := float64(sent-before) / time.Since(began).Seconds()
			mu.Unlock()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(transferBatches, "transfer batches/s")
		})
	}
}
