package peer

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestReuse: a message that was used before decodes as a new one does, and does not
// grow by what it cannot understand.
func TestReuse(t *testing.T) {
	codec := newFrameCodec()
	used := new(peerv1.Request)
	frames := []*peerv1.Request{
		{Hello: &peerv1.Hello{Major: 1, Nonce: []byte{1}}},
		{Seq: 1, KeyHi: []uint64{1, 2, 3}, KeyLo: []uint64{4, 5, 6}, Cost: []int64{-1, 0, math.MaxInt64}, Verb: []byte{1, 2, 3}, Flags: []byte{1, 2, 3}, Id: []uint64{1, 2, 3}, Reserve: []int64{0, 4, -1}, Times: []int64{5, 0, 1024}, Want: []int64{1, 2, 3}, Rate: []int64{4, 5, 6}, ForNs: []int64{7, 8, 9},
			Limits: []uint32{1, 1, 1}, Define: []*peerv1.Limits{{Id: 1, Limits: []*sluicev1.Limit{{Count: 1}}}}},
		{Seq: 2, KeyLo: []uint64{7}, Traces: []*peerv1.Trace{{First: 0, Records: 1, Id: make([]byte, 16), Span: make([]byte, 8)}}},
		{},
		{Seq: 3, KeyLo: []uint64{8, 9}, Cost: []int64{1, 2}},
	}
	for i, m := range slices.Concat(frames, frames) {
		data, err := codec.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		unknown := protowire.AppendTag(nil, 999, protowire.BytesType)
		unknown = protowire.AppendBytes(unknown, make([]byte, 100))
		data = append(data, mem.SliceBuffer(unknown))
		if err := codec.Unmarshal(data, used); err != nil {
			t.Fatal(err)
		}
		if n := len(used.ProtoReflect().GetUnknown()); n != 0 {
			t.Errorf("frame %d: %d unknown bytes were kept", i, n)
		}
		if !proto.Equal(used, m) {
			t.Errorf("frame %d decodes as %v, want %v", i, used, m)
		}
	}
}

// TestFrameSize: the bounds that the sender counts with hold for the largest of
// everything.
func TestFrameSize(t *testing.T) {
	m := new(peerv1.Request)
	const n = 100
	for range n {
		addRecord(m, &check.Record{
			Request:  bucket.Request{Key: bucket.Key{Hi: math.MaxUint64, Lo: math.MaxUint64}, Cost: math.MaxInt64, Verb: bucket.Reset, Reserve: math.MaxInt64},
			Undoable: true, ID: math.MaxUint64, Times: math.MaxInt64, Want: math.MaxInt64, Rate: math.MaxInt64, For: math.MaxInt64,
		}, maxLimitIDs)
	}
	trimRequest(m)
	if size := proto.Size(m); size > n*bytesPerRecord {
		t.Errorf("%d records take %d bytes, more than %d each", n, size, bytesPerRecord)
	}
	m = new(peerv1.Request)
	const century = 100 * 365 * 24 * time.Hour
	m.Define = append(m.Define, definitionOf(maxLimitIDs, mustLimits(slices.Repeat([]bucket.Limit{{
		Algorithm: bucket.TokenBucket, Count: math.MaxInt64, Period: century, Burst: math.MaxInt64, Cost: math.MaxInt64,
		Refill: bucket.RefillInterval, Align: bucket.AlignCalendar, Unit: bucket.Year, Zone: "America/Argentina/ComodRivadavia",
		BlockFor: century, Soft: 1000, CountDenied: true,
	}}, bucket.MaxLimits)...)))
	if size := proto.Size(m); size > bucket.MaxLimits*bytesPerLimit {
		t.Errorf("%d limits take %d bytes, more than %d each", bucket.MaxLimits, size, bytesPerLimit)
	}
}

// FuzzRequest: whatever comes, a frame is rejected or answered record by record.
func FuzzRequest(f *testing.F) {
	for _, m := range []*peerv1.Request{
		{}, {Seq: 1, KeyLo: []uint64{1}}, {KeyLo: []uint64{1, 2}, Cost: []int64{1}},
		{Define: []*peerv1.Limits{{Id: 1, Limits: []*sluicev1.Limit{{Count: 1, PeriodNs: 1e9}}}}, KeyHi: []uint64{1}, KeyLo: []uint64{1}, Limits: []uint32{1}, Flags: []byte{3}, Verb: []byte{9}, Cost: []int64{-5}, Id: []uint64{1}},
		{KeyLo: []uint64{1, 2, 3}, Times: []int64{3, 0, -1}}, {KeyLo: []uint64{1, 2}, Times: []int64{3}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	codec := newFrameCodec()
	server, err := NewServer((&network{}).config("b"), handlerFunc(func(_ string, records []check.Record, replies []check.Reply) {
		for i, r := range records {
			replies[i] = check.Reply{Status: check.NotOwner, Owner: []string{"", "b", "c"}[r.Key.Lo%3]}
			replies[i].Remaining, replies[i].Allowed, replies[i].Admitted = r.Cost, r.Undoable, r.Times
			replies[i].LeasedOut, replies[i].Grant, replies[i].For = r.Return, r.ID, r.For
			if r.Times > 1 {
				replies[i].Denial = &bucket.Decision{Index: 1, Limit: 2, Remaining: r.Times, ResetAfter: 4, RetryAfter: 5}
			}
		}
	}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x := exchange{server: server, definitions: &definitions{intern: server.intern}}
		for range 2 { // the second time into used memory
			if codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &x.request) != nil || x.read() != nil {
				continue
			}
			x.serve()
			n := len(x.request.KeyLo)
			if err := checkReply(&x.reply, x.request.Seq, n); err != nil {
				t.Fatalf("a malformed answer: %v", err)
			}
			back := make([]check.Reply, n)
			readReply(&x.reply, 0, "b", back)
			if n > 0 && !reflect.DeepEqual(back, x.replies) {
				t.Fatalf("answers\n%+v\ntravel as\n%+v", x.replies, back)
			}
		}
	})
}

// FuzzReply: whatever comes, an answer is rejected or read without harm.
func FuzzReply(f *testing.F) {
	for _, m := range []*peerv1.Reply{
		{}, {Seq: 1, Status: []byte{1, 2, 3}},
		{Status: []byte{1, 1, 1}, Flags: []byte{5, 1, 4}, Granted: []int64{1, 0, 2}, Denials: []*peerv1.Denial{{RetryAfterNs: 5}, {Index: 300}}},
		{Status: []byte{1, 1}, Flags: []byte{5, 5}, Denials: []*peerv1.Denial{{}}},
		{Seq: 1, Status: []byte{2}, Names: []string{"x"}, Owner: []uint32{1}, DelayNs: []int64{int64(time.Second)}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	codec := newFrameCodec()
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(peerv1.Reply)
		if codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m) != nil {
			return
		}
		n := len(m.Status)
		if checkReply(m, m.Seq, n) != nil {
			return
		}
		for first := range n {
			readReply(m, first, "b", make([]check.Reply, n-first))
		}
	})
}
