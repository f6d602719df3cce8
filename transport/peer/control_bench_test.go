package peer

import (
	"testing"

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
