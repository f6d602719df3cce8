package peer

import (
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// framed is one frame each way as the two sides of a stream have it in memory.
type framed struct {
	codec         frameCodec
	request, read peerv1.Request
	reply, heard  peerv1.Reply
	records       []check.Record
	replies       []check.Reply
	decoded       []check.Record
	known         definitions
}

func newFramed(tb testing.TB, records int) *framed {
	tb.Helper()
	limits, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	f := &framed{codec: newFrameCodec(), records: make([]check.Record, records), replies: make([]check.Reply, records)}
	for i := range f.records {
		f.records[i].Request = bucket.Request{Key: bucket.Key{Hi: uint64(i) << 40, Lo: ^uint64(i)}, Limits: limits, Cost: 1}
		f.replies[i] = check.Reply{Status: check.Decided, Owner: "n1", Decision: bucket.Decision{
			Allowed: true, Limit: 10, Remaining: 9, ResetAfter: 6 * time.Second,
		}}
	}
	f.known = definitions{intern: limiter.NewInterner(defaultMaxLimits)}
	if err := f.known.define([]*peerv1.Limits{definitionOf(1, limits)}); err != nil {
		tb.Fatal(err)
	}
	return f
}

func (f *framed) encodeRequest() mem.BufferSlice {
	resetRequest(&f.request)
	for i := range f.records {
		addRecord(&f.request, &f.records[i], 1)
	}
	trimRequest(&f.request)
	return f.marshal(&f.request)
}

func (f *framed) encodeReply() mem.BufferSlice {
	resetReply(&f.reply)
	writeReply(&f.reply, "n1", f.replies)
	return f.marshal(&f.reply)
}

func (f *framed) marshal(m any) mem.BufferSlice {
	data, err := f.codec.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func (f *framed) decodeRequest(data mem.BufferSlice) {
	if err := f.codec.Unmarshal(data, &f.read); err != nil {
		panic(err)
	}
	records, err := readRequest(&f.read, &f.known, f.decoded[:0])
	if err != nil {
		panic(err)
	}
	f.decoded = records
}

func (f *framed) decodeReply(data mem.BufferSlice) {
	if err := f.codec.Unmarshal(data, &f.heard); err != nil {
		panic(err)
	}
	readReply(&f.heard, 0, "n1", f.replies)
}

// BenchmarkFrame encodes and decodes frames of 1000 records; ns/op is for a frame.
func BenchmarkFrame(b *testing.B) {
	f := newFramed(b, 1000)
	request, reply := f.encodeRequest(), f.encodeReply()
	for _, c := range []struct {
		name string
		work func()
	}{
		{"request/encode", func() { d := f.encodeRequest(); d.Free() }},
		{"request/decode", func() { f.decodeRequest(request) }},
		{"reply/encode", func() { d := f.encodeReply(); d.Free() }},
		{"reply/decode", func() { f.decodeReply(reply) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.work()
			}
		})
	}
}

// TestFramesAreDecodedInPlace wants no memory per record once a stream has seen a
// frame of that size: what is left is a few buffers' headers.
func TestFramesAreDecodedInPlace(t *testing.T) {
	f := newFramed(t, 1000)
	request, reply := f.encodeRequest(), f.encodeReply()
	for _, c := range []struct {
		name string
		work func()
	}{
		{"request", func() { f.decodeRequest(request) }},
		{"reply", func() { f.decodeReply(reply) }},
	} {
		if n := testing.AllocsPerRun(50, c.work); n > 5 {
			t.Errorf("decoding a %s of 1000 records: %v allocations", c.name, n)
		}
	}
}
