package wire

import (
	"bytes"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

var (
	checks = &sluicev1.CheckRequest{
		Checks: []*sluicev1.Check{
			{Domain: "d", Descriptor_: []*sluicev1.Entry{{Key: "k", Value: "v"}, {}}, Limits: []*sluicev1.Limit{{Count: 1 << 40}, {}, {}}},
			{Cost: new(int64(3))},
		},
		Traceparent: "abc", Requires: []string{"x", "yz"},
	}
	own = map[protoreflect.FullName]Own{
		"sluice.v1.Check": {Bytes: 1000}, "sluice.v1.Entry": {Bytes: 100, Most: 1}, "sluice.v1.Limit": {Bytes: 10},
	}
)

func descriptorOf(m proto.Message) protoreflect.MessageDescriptor {
	return m.ProtoReflect().Descriptor()
}

// split is data in pieces of random lengths, as it comes from the network.
func split(random *rand.Rand, data []byte) (pieces mem.BufferSlice) {
	for len(data) > 0 {
		n := min(len(data), random.IntN(4))
		pieces, data = append(pieces, mem.SliceBuffer(data[:n])), data[n:]
	}
	return pieces
}

func TestCost(t *testing.T) {
	s := ShapeOf(descriptorOf(checks), own)
	data, err := proto.Marshal(checks)
	if err != nil {
		t.Fatal(err)
	}
	// Two checks; one entry, as the second is skipped; a list of three limits has room for four;
	// texts, and the bytes of what has no lists.
	want := int64(len(data)) + s.each + 2*1000 + 100 + 4*10 + int64(len("d"+"abc"+"x"+"yz")) + 2*stringHead + 6 + 7
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		if got, field := s.Cost(split(random, data), math.MaxInt64); got != want || field != "" {
			t.Fatalf("%d %q, want %d", got, field, want)
		}
	}
	for _, c := range []struct {
		data  []byte
		field string
	}{
		{bytes.Repeat([]byte{0x0a, 0}, 1<<20), "checks[1048]"},
		{append([]byte{0x0a, 0, 0x0a, 0x80, 0x80, 0x40}, bytes.Repeat([]byte{0x2a, 0}, 1<<19)...), "checks[1].limits[104640]"},
		{bytes.Repeat([]byte{0x32, 0}, 1<<20), ""},
	} {
		const most = 1 << 20
		got, field := s.Cost(mem.BufferSlice{mem.SliceBuffer(c.data)}, most+int64(len(c.data)))
		if got <= most || field != c.field {
			t.Errorf("%x…: %d at %q, want more than %d at %q", c.data[:6], got, field, most, c.field)
		}
	}
}

// Generated types take at least what Cost says of their lists, and at most a few times as much.
func TestShapeOfGeneratedTypes(t *testing.T) {
	var many sluicev1.ReserveRequest
	for range 1000 {
		many.Checks = append(many.Checks, &sluicev1.Check{Limits: make([]*sluicev1.Limit, 0)})
	}
	data, err := proto.Marshal(&many)
	if err != nil {
		t.Fatal(err)
	}
	const times = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		if err := proto.Unmarshal(data, new(sluicev1.ReserveRequest)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	cost, _ := shapeFor(&many).Cost(mem.BufferSlice{mem.SliceBuffer(data)}, math.MaxInt64)
	if took := int64(after.TotalAlloc-before.TotalAlloc) / times; cost < took*2/3 || cost > took*2 {
		t.Errorf("Cost says %d bytes, decoding has taken %d", cost, took)
	}
}

// Cost ends on every input, and of messages that can be read it says the same however they are
// split.
func FuzzCost(f *testing.F) {
	data, err := proto.Marshal(checks)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, int64(math.MaxInt64))
	f.Add(data[:len(data)-1], int64(1000))
	f.Add([]byte{0x0b, 0x0a, 0x00, 0x0c}, int64(math.MaxInt64)) // a group
	s := ShapeOf(descriptorOf(checks), own)
	f.Fuzz(func(t *testing.T, data []byte, most int64) {
		whole, field := s.Cost(mem.BufferSlice{mem.SliceBuffer(data)}, most)
		pieces, at := s.costOfPieces(split(rand.New(rand.NewPCG(1, uint64(len(data)))), data), most)
		if proto.Unmarshal(data, new(sluicev1.CheckRequest)) == nil && (whole != pieces || field != at) {
			t.Errorf("in one piece %d %q, in several %d %q", whole, field, pieces, at)
		}
	})
}

func BenchmarkCost(b *testing.B) {
	var many sluicev1.CheckRequest
	for range 1000 {
		many.Checks = append(many.Checks, &sluicev1.Check{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "0000000001"}}})
	}
	data, err := proto.Marshal(&many)
	if err != nil {
		b.Fatal(err)
	}
	s := ShapeOf(descriptorOf(&many), own)
	b.ReportAllocs()
	for b.Loop() {
		s.Cost(mem.BufferSlice{mem.SliceBuffer(data)}, math.MaxInt64)
	}
}
