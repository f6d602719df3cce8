package peer

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// rawControl is raw for control messages, after the hellos.
func rawControl(t *testing.T, network *network, addr string) grpc.BidiStreamingClient[peerv1.Post, peerv1.Greeting] {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(network.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := peerv1.NewPeerServiceClient(conn).Control(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := network.config("x")
	if _, err := c.greet(stream); err != nil {
		t.Fatal(err)
	}
	return stream
}

func control(bodies ...*peerv1.ControlMessage) *peerv1.Post {
	return &peerv1.Post{ControlMessages: bodies}
}

func transferBatchControlMessage(m *peerv1.TransferBatch) *peerv1.ControlMessage {
	return &peerv1.ControlMessage{Body: &peerv1.ControlMessage_TransferBatch{TransferBatch: m}}
}

// TestMalformedControl: a frame that makes no sense ends its stream with the reason,
// and nothing of it is delivered.
func TestMalformedControl(t *testing.T) {
	heartbeat := &peerv1.ControlMessage{Body: &peerv1.ControlMessage_Heartbeat{Heartbeat: &peerv1.Heartbeat{}}}
	c := (&network{}).config("x")
	two := []uint32{1, 2}
	for _, m := range []struct {
		name string
		post *peerv1.Post
		want string
	}{
		{"second hello", &peerv1.Post{Hello: c.hello()}, "second hello"},
		{"too many control messages", control(slices.Repeat([]*peerv1.ControlMessage{{}}, maxControlMessages+1)...), "control messages of 4097 control messages"},
		{"cluster_id", control(heartbeat, &peerv1.ControlMessage{ClusterId: 1, Body: heartbeat.Body}), "control message 1: text 1 of 0"},
		{"receiver", control(&peerv1.ControlMessage{To: &peerv1.Process{Boot: math.MaxUint32}}), "text 4294967295 of 0"},
		{"members", &peerv1.Post{Texts: [][]byte{{'a'}}, ControlMessages: []*peerv1.ControlMessage{{Body: &peerv1.ControlMessage_Ack{Ack: &peerv1.Ack{Set: &peerv1.VoterSet{Members: []uint32{1, 2}}}}}}}, "text 2 of 1"},
		{"partition", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Fetch{Fetch: &peerv1.Fetch{Partition: 1 << 31}}}), "number 2147483648"},
		{"room", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Room{Room: &peerv1.Room{KeyHi: []uint64{1}, KeyLo: []uint64{1, 2}}}}), "key_hi has 1 values and key_lo 2"},
		{"report", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Report{Report: &peerv1.Report{KeyHi: []uint64{1}}}}), "report: key_hi has 1 values and key_lo 0"},
		{"report's sums", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Report{Report: &peerv1.Report{KeyHi: []uint64{1}, KeyLo: []uint64{1}, Sum: []int64{1, 2}}}}), "column sum has 2 values for 1 keys"},
		{"report's limits", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Report{Report: &peerv1.Report{KeyHi: []uint64{1}, KeyLo: []uint64{1}, Limits: []uint32{9}}}}), "limits 9 were not defined"},
		{"account", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Account{Account: &peerv1.Account{KeyHi: []uint64{1}, KeyLo: []uint64{1}, Known: []int64{1, 2}}}}), "column known has 2 values for 1 keys"},
		{"account's reporters", control(&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Account{Account: &peerv1.Account{KeyHi: []uint64{1}, KeyLo: []uint64{1}, Reporters: []uint32{1 << 31}}}}), "number 2147483648"},
		{"definition of 0", &peerv1.Post{Define: []*peerv1.Limits{{}}}, "definition of limits 0"},
		{"undefined limits", control(transferBatchControlMessage(&peerv1.TransferBatch{Limits: []uint32{9}})), "limits 9 were not defined"},
		{"short column", control(transferBatchControlMessage(&peerv1.TransferBatch{Partition: two, Kind: []byte{1}})), "column kind has 1 values for 2 parts"},
		{"no partitions", control(transferBatchControlMessage(&peerv1.TransferBatch{Sum: []uint64{1}})), "column sum has 1 values for 0 parts"},
		{"too little data", control(transferBatchControlMessage(&peerv1.TransferBatch{Partition: two, Kind: []byte{1, 1}, Size: []uint32{2, 3}, Data: []byte("four")})), "parts of 5 bytes in all, data of 4"},
		{"too much data", control(transferBatchControlMessage(&peerv1.TransferBatch{Data: []byte("four")})), "parts of 0 bytes in all, data of 4"},
		{"an age that is none", control(transferBatchControlMessage(&peerv1.TransferBatch{AgeNs: math.MaxInt64 + 1})), "age_ns 9223372036854775808"},
		{"too many counters", control(transferBatchControlMessage(&peerv1.TransferBatch{Partition: two, Kind: []byte{1, 1}, Counters: []uint32{math.MaxInt32, 1}})), "2147483648 counters"},
	} {
		t.Run(m.name, func(t *testing.T) {
			network, box := newNetwork(), newInbox()
			server, stop := network.serveControl(t, "b:1", box)
			stream := rawControl(t, network, "b:1")
			if err := stream.Send(m.post); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_, err := stream.Recv()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), m.want) {
				t.Errorf("got %v, want %v with %q", err, codes.InvalidArgument, m.want)
			}
			stop()
			if s := server.Stats(); s.Malformed != 1 || s.Delivered != 0 || len(box) != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestStrangeControl: what a newer minor may say is passed over, and the rest arrives.
func TestStrangeControl(t *testing.T) {
	network, box := newNetwork(), newInbox()
	server, stop := network.serveControl(t, "b:1", box)
	newer := new(peerv1.ControlMessage)
	newer.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	m := control(
		newer,
		&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Heartbeat{Heartbeat: &peerv1.Heartbeat{Wish: 3}}},
		&peerv1.ControlMessage{Body: &peerv1.ControlMessage_Grant{Grant: &peerv1.Grant{Parts: []*peerv1.GrantPart{{Has: 256}}}}},
		transferBatchControlMessage(&peerv1.TransferBatch{Partition: []uint32{1}, Kind: []byte{6}}),
		transferBatchControlMessage(&peerv1.TransferBatch{Partition: []uint32{1}}),
		transferBatchControlMessage(&peerv1.TransferBatch{N: 7, Limits: []uint32{2, 1}}),
	)
	m.Define = []*peerv1.Limits{
		{Id: 1, Limits: []*sluicev1.Limit{{Count: 1, PeriodNs: 1e9}}},
		{Id: 2, Limits: []*sluicev1.Limit{{Algorithm: 200, Count: 1, PeriodNs: 1e9}}},
	}
	if err := rawControl(t, network, "b:1").Send(m); err != nil {
		t.Fatal(err)
	}
	e := <-box
	stop()
	p, ok := e.Body.(*message.TransferBatch)
	if !ok || p.N != 7 || len(p.Image.Limits) != 2 || p.Image.Limits[0] != nil || p.Image.Limits[1] == nil {
		t.Errorf("got %+v", e.Body)
	}
	if s := server.Stats(); s.Skipped != 5 || s.Delivered != 1 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestUnfitControl: what no receiver could take is not sent, and what is beside it is.
func TestUnfitControl(t *testing.T) {
	w := newControlMessageWriter(usualMaxLimits)
	for _, c := range []struct {
		body message.Body
		want string
	}{
		{nil, "no message"},
		{&message.Fetch{Partition: -1}, "number -1"},
		{&message.TransferBatch{Parts: []message.Part{{Bytes: 1}}}, "parts of 1 bytes in all, data of 0"},
		{&message.TransferBatch{Image: bucket.Image{Limits: make([]*bucket.Limits, maxGather+1)}}, "4097 sets of limits"},
	} {
		if err := w.add(&message.Envelope{Body: c.body}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %q", c.body, err, c.want)
		}
	}
	if err := w.add(&message.Envelope{Body: &message.Ack{}}); err != nil || len(w.post.ControlMessages) != 1 {
		t.Errorf("%v, %d control messages", err, len(w.post.ControlMessages))
	}
}

// TestWeights: what the bounds count with is no less than what travels.
func TestWeights(t *testing.T) {
	times := func(b message.Body) message.Body { // more elements of every list
		switch b := b.(type) {
		case *message.Holdings:
			b.Held = slices.Repeat(b.Held[len(b.Held)/2:], 100)
		case *message.PendingGrants:
			b.Grants = slices.Repeat(b.Grants[len(b.Grants)/2:], 100)
		case *message.Claim:
			b.Parts = slices.Repeat(b.Parts[len(b.Parts)/2:], 100)
		case *message.Grant:
			b.Parts = slices.Repeat(b.Parts[len(b.Parts)/3:], 100)
			b.Acked = slices.Repeat(b.Acked[len(b.Acked)/2:], 100)
		case *message.TransferBatch:
			b.Parts = slices.Repeat(b.Parts, 100)
			b.Image.Data = slices.Repeat(b.Image.Data, 100)
			b.Image.Limits = slices.Repeat(b.Image.Limits, 100)
		case *message.Room:
			b.Keys = slices.Repeat(b.Keys[len(b.Keys)/2:], 100)
		case *message.Report:
			b.Lines = slices.Repeat(b.Lines[len(b.Lines)/2:], 100)
		case *message.Account:
			b.Lines = slices.Repeat(b.Lines[len(b.Lines)/2:], 100)
		case *message.Receipt:
			b.Rejected = slices.Repeat(b.Rejected[len(b.Rejected)/2:], 100)
		}
		return b
	}
	for _, b := range bodies() {
		b = times(b)
		w := newControlMessageWriter(usualMaxLimits)
		w.texts = map[string]uint32{odd: 1, long: 2} // not counted, and neither is what is defined
		if err := w.add(&message.Envelope{To: process, ClusterID: odd, Body: b}); err != nil {
			t.Fatal(err)
		}
		w.post.Define = nil
		if size, most := proto.Size(&w.post), weight(b); size > most {
			t.Errorf("%T of %d bytes is counted as %d", b, size, most)
		}
	}
}

// TestFramesOfControl: control goes first, and a frame is full at maxControlBytes and where
// numbers of limits could change their meaning.
func TestFramesOfControl(t *testing.T) {
	transferBatch := func(bytes, limits int) message.Envelope {
		return message.Envelope{Body: &message.TransferBatch{Image: bucket.Image{Data: make([]byte, bytes), Limits: make([]*bucket.Limits, limits)}}}
	}
	var control, transferBatches controlMessages
	for _, e := range []message.Envelope{
		transferBatch(100<<10, 0), transferBatch(100<<10, 0), transferBatch(100<<10, 0), transferBatch(0, maxGather-1), transferBatch(0, 2), transferBatch(300<<10, 1), transferBatch(0, 0),
	} {
		if !transferBatches.push(e) {
			t.Fatal("no room")
		}
	}
	for range 2 {
		control.push(message.Envelope{Body: &message.Ack{}})
	}
	var got []int
	for {
		batch := takeFrame(nil, &control, &transferBatches)
		if len(batch) == 0 {
			break
		}
		if _, ok := batch[0].Body.(*message.Ack); ok != (len(got) == 0) {
			t.Errorf("frame %d begins with %T", len(got), batch[0].Body)
		}
		got = append(got, len(batch))
	}
	if want := []int{4, 2, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("frames of %v messages, want %v", got, want)
	}
	if control.bytes != 0 || transferBatches.bytes != 0 || control.len() != 0 || transferBatches.len() != 0 {
		t.Errorf("left: %+v, %+v", control, transferBatches)
	}
}

// FuzzControl: whatever comes, a frame is rejected or delivered, and what was delivered
// travels on without a change.
func FuzzControl(f *testing.F) {
	w := newControlMessageWriter(usualMaxLimits)
	seed := func() {
		b, err := proto.Marshal(&w.post)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		w.begin()
	}
	for _, b := range bodies() {
		if err := w.add(&message.Envelope{To: process, ClusterID: "a-1", Body: b}); err != nil {
			f.Fatal(err)
		}
		seed()
		w = newControlMessageWriter(usualMaxLimits)
	}
	for _, b := range bodies() {
		if err := w.add(&message.Envelope{Body: b}); err != nil {
			f.Fatal(err)
		}
	}
	seed()
	codec := newFrameCodec()
	in := newIntern(usualMaxLimits)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &controlMessageReader{definitions: definitions{intern: in}}
		var post peerv1.Post
		for range 2 { // the second time into used memory
			if codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &post) != nil {
				return
			}
			got, _, err := r.read(&post, nil)
			if err != nil {
				return
			}
			w := newControlMessageWriter(usualMaxLimits)
			var sent []message.Envelope
			limits := 0
			for i := range got {
				// More limits are not gathered in one frame.
				if p, ok := got[i].Body.(*message.TransferBatch); ok {
					if limits += len(p.Image.Limits); limits > maxGather {
						break
					}
				}
				if err := w.add(&got[i]); err != nil {
					t.Fatalf("%+v cannot travel on: %v", got[i].Body, err)
				}
				sent = append(sent, got[i])
			}
			wire, err := codec.Marshal(&w.post)
			if err != nil {
				t.Fatal(err)
			}
			var back peerv1.Post
			if err := codec.Unmarshal(wire, &back); err != nil {
				t.Fatal(err)
			}
			again, skipped, err := (&controlMessageReader{definitions: definitions{intern: in}}).read(&back, nil)
			if err != nil || skipped != 0 || !reflect.DeepEqual(again, sent) {
				t.Fatalf("%+v\ntravelled on as\n%+v\n%d skipped, %v", sent, again, skipped, err)
			}
		}
	})
}
