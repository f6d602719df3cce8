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
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// rawControl is greeted for control messages.
func rawControl(t *testing.T, network *network, addr string) grpc.BidiStreamingClient[peerv1.MessageFrame, peerv1.Greeting] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := rawConn(t, network, addr).Control(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := network.config("x")
	if _, err := c.greet(stream, ""); err != nil {
		t.Fatal(err)
	}
	return stream
}

// post is a frame of the CBOR of these values.
func post(t *testing.T, values ...any) *peerv1.MessageFrame {
	t.Helper()
	m := new(peerv1.MessageFrame)
	for _, v := range values {
		data, err := encodeMode.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		m.Messages = append(m.Messages, data...)
	}
	return m
}

// head is the header of a message of b's kind.
func head(b message.Body, limits ...uint32) header {
	return header{Kind: kindOf[reflect.TypeOf(b)], Limits: limits}
}

// TestMalformedControl: a frame that makes no sense ends its stream with the reason,
// and nothing of it is delivered.
func TestMalformedControl(t *testing.T) {
	c := (&network{}).config("x")
	var many []any
	for range maxControlMessages + 1 {
		many = append(many, head(&message.Ack{}), &message.Ack{})
	}
	cut := post(t, head(&message.Ack{}), &message.Ack{Sent: 1 << 40})
	cut.Messages = cut.Messages[:len(cut.Messages)-1]
	nested := any(1)
	for range 20 {
		nested = []any{nested}
	}
	whole := func(b message.Body, limits ...uint32) *peerv1.MessageFrame { return post(t, head(b, limits...), b) }
	for _, m := range []struct {
		name string
		post *peerv1.MessageFrame
		want string
	}{
		{"second hello", &peerv1.MessageFrame{Hello: c.hello()}, "second hello"},
		{"too many control messages", post(t, many...), "more than 4096 control messages"},
		{"no body", post(t, head(&message.Ack{}), &message.Ack{}, head(&message.Ack{})), "control message 1: *message.Ack: EOF"},
		{"half a body", cut, "unexpected EOF"},
		{"no CBOR", &peerv1.MessageFrame{Messages: []byte{0xff}}, "control message 0: cbor"},
		{"another type", post(t, head(&message.Ack{}), "text"), "cannot unmarshal UTF-8 text string"},
		{"another type in a field", post(t, head(&message.Fetch{}), map[int]any{1: "text"}), "cannot unmarshal UTF-8 text string"},
		{"too large a number", post(t, head(&message.Heartbeat{}), map[int]any{3: 256}), "cannot unmarshal positive integer"},
		{"nested too deep", post(t, head(&message.Ack{}), nested), "exceeded max nested level"},
		{"a list of unlimited length", &peerv1.MessageFrame{Messages: []byte{0xa1, 1, 2, 0xbf, 0xff}}, "indefinite-length"},
		{"partition", whole(&message.Fetch{Partition: 1 << 31}), "number 2147483648"},
		{"negative partition", whole(&message.Claim{Parts: []message.Claimed{{Partition: -1}}}), "number -1"},
		{"report's limits", whole(&message.Report{Lines: make([]message.Line, 1)}, 9), "limits 9 were not defined"},
		{"limits for fewer lines", whole(&message.Report{Lines: make([]message.Line, 2)}, 0), "1 sets of limits; want 2"},
		{"limits for none", whole(&message.Ack{}, 0), "1 sets of limits; want 0"},
		{"account's reporters", whole(&message.Account{Lines: []message.Standing{{Reporters: 1 << 31}}}), "number 2147483648"},
		{"definition of 0", &peerv1.MessageFrame{Define: []*peerv1.Limits{{}}}, "definition of limits 0"},
		{"undefined limits", whole(&message.TransferBatch{}, 9), "limits 9 were not defined"},
		{"too little data", whole(&message.TransferBatch{Parts: []message.Part{{Kind: 1, Bytes: 2}, {Kind: 1, Bytes: 3}}, Image: bucket.Image{Data: []byte("four")}}), "parts of 5 bytes in all, data of 4"},
		{"too much data", whole(&message.TransferBatch{Image: bucket.Image{Data: []byte("four")}}), "parts of 0 bytes in all, data of 4"},
		{"parts of negative bytes", whole(&message.TransferBatch{Parts: []message.Part{{Kind: 1, Bytes: -2}, {Kind: 1, Bytes: 6}}, Image: bucket.Image{Data: []byte("four")}}), "bytes: number -2"},
		{"an age that is none", whole(&message.TransferBatch{Age: -1}), "age: -1"},
		{"too many counters", whole(&message.TransferBatch{Parts: []message.Part{{Kind: 1, Counters: math.MaxInt32}, {Kind: 1, Counters: 1}}}), "counters of all parts: number 2147483648"},
		{"too long a history", whole(&message.FactsResponse{Node: facts.Node{History: make([]facts.Counts, facts.Slots+1)}}), "history of 63 slots"},
		{"too many rules", whole(&message.FactsResponse{Node: facts.Node{ByRule: make([]facts.Rule, facts.MaxRules+1)}}), "513 rules"},
		{"too many files", whole(&message.FactsResponse{Node: facts.Node{Files: make([]facts.File, facts.MaxNotices+1)}}), "33 files"},
		{"too long a text", whole(&message.FactsResponse{Node: facts.Node{Insecure: []string{strings.Repeat("x", facts.MaxText+1)}}}), "1025 bytes"},
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
	none := post(t, header{Kind: 255}, map[int]any{1: "of a kind that is none"}).Messages
	later := map[int]any{1: 7, 99: []string{"a field that is none"}} // N and more
	m := post(t,
		head(&message.Heartbeat{}), &message.Heartbeat{Wish: 3},
		head(&message.ClaimResponse{}), &message.ClaimResponse{Parts: []message.ClaimResponsePart{{Has: 255}}},
		head(&message.TransferBatch{}), &message.TransferBatch{Parts: []message.Part{{Kind: 6}}},
		head(&message.TransferBatch{}), &message.TransferBatch{Parts: []message.Part{{}}},
		head(&message.TransferBatch{}, 2, 1), later,
	)
	m.Messages = append(none, m.Messages...)
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
	for _, c := range []struct {
		body message.Body
		want string
	}{
		{nil, "no message"},
		{&message.Fetch{Partition: -1}, "number -1"},
		{&message.TransferBatch{Parts: []message.Part{{Kind: message.Drop, Bytes: 1}}}, "parts of 1 bytes in all, data of 0"},
		{&message.TransferBatch{Image: bucket.Image{Limits: make([]*bucket.Limits, maxGather+1)}}, "4097 sets of limits"},
	} {
		if _, err := encode(&message.Envelope{Body: c.body}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %q", c.body, err, c.want)
		}
	}
}

// TestControlSizes: what the bounds count with is no less than what travels.
func TestControlSizes(t *testing.T) {
	for _, b := range bodies() {
		e := message.Envelope{To: process, ClusterID: odd, Body: b}
		m, err := encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		if size, most := len(controlFrame(t, newControlWriter(defaultMaxLimits), e).Messages), m.size(); size > most {
			t.Errorf("%T of %d bytes is counted as %d", b, size, most)
		}
	}
}

// TestFramesOfControl: control goes first, and a frame is full at maxControlBytes and where
// numbers of limits could change their meaning.
func TestFramesOfControl(t *testing.T) {
	transferBatch := func(bytes, limits int) controlMessage {
		return controlMessage{body: make([]byte, bytes), limits: make([]*bucket.Limits, limits)}
	}
	var control, transferBatches controlMessages
	for _, m := range []controlMessage{
		transferBatch(100<<10, 0), transferBatch(100<<10, 0), transferBatch(100<<10, 0), transferBatch(0, maxGather-1), transferBatch(0, 2), transferBatch(300<<10, 1), transferBatch(0, 0),
	} {
		if !transferBatches.push(m) {
			t.Fatal("no room")
		}
	}
	for range 2 {
		control.push(controlMessage{header: head(&message.Ack{})})
	}
	var got []int
	for {
		batch := takeFrame(nil, &control, &transferBatches)
		if len(batch) == 0 {
			break
		}
		if batch[0].header.Kind == 0 != (len(got) > 0) {
			t.Errorf("frame %d begins with kind %d", len(got), batch[0].Kind)
		}
		got = append(got, len(batch))
	}
	if want := []int{4, 2, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("frames of %v messages, want %v", got, want)
	}
	if control.bytes != 0 || transferBatches.bytes != 0 || len(control.list) != 0 || len(transferBatches.list) != 0 {
		t.Errorf("left: %+v, %+v", control, transferBatches)
	}
}

// FuzzControl: whatever comes, a frame is rejected or delivered, and what was delivered
// travels on without a change.
func FuzzControl(f *testing.F) {
	seed := func(list ...message.Envelope) {
		b, err := proto.Marshal(controlFrame(f, newControlWriter(defaultMaxLimits), list...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	var all []message.Envelope
	for _, b := range bodies() {
		seed(message.Envelope{To: process, ClusterID: "a-1", Body: b})
		all = append(all, message.Envelope{Body: b})
	}
	seed(all...)
	codec := newFrameCodec()
	in := limiter.NewInterner(defaultMaxLimits)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &controlReader{definitions: definitions{intern: in}}
		var post peerv1.MessageFrame
		for range 2 { // the second time into used memory
			if codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &post) != nil {
				return
			}
			got, _, err := r.read(&post, nil)
			if err != nil {
				return
			}
			var sent []message.Envelope
			limits := 0
			for i := range got {
				if limits += len(limitsOf(got[i].Body)); limits > maxGather { // more are not gathered in one frame
					break
				}
				sent = append(sent, got[i])
			}
			wire, err := codec.Marshal(controlFrame(t, newControlWriter(defaultMaxLimits), sent...))
			if err != nil {
				t.Fatal(err)
			}
			var back peerv1.MessageFrame
			if err := codec.Unmarshal(wire, &back); err != nil {
				t.Fatal(err)
			}
			again, skipped, err := (&controlReader{definitions: definitions{intern: in}}).read(&back, nil)
			if err != nil || skipped != 0 || !reflect.DeepEqual(again, sent) {
				t.Fatalf("%+v\ntravelled on as\n%+v\n%d skipped, %v", sent, again, skipped, err)
			}
		}
	})
}
