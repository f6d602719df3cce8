package peer

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// inbox is a queue of control messages of many messages.
type inbox chan message.Envelope

func newInbox() inbox { return make(inbox, 1<<16) }

func (b inbox) Deliver(e message.Envelope) { b <- e }

// all returns what has come.
func (b inbox) all() []message.Envelope {
	var list []message.Envelope
	for len(b) > 0 {
		list = append(list, <-b)
	}
	return list
}

// serveControl runs a server at addr that takes control messages.
func (n *network) serveControl(t testing.TB, addr string, box ControlQueue) (s *Server, stop func()) {
	t.Helper()
	c := n.config("b")
	c.ControlQueue = box
	return n.serve(t, addr, c, handlerFunc(echo))
}

// controlPair is a server at b:1 that takes control messages into box, and a pool of node a.
func controlPair(t testing.TB) (network *network, box inbox, pool *Pool) {
	t.Helper()
	network, box = newNetwork(), newInbox()
	network.serveControl(t, "b:1", box)
	return network, box, open(t, network.config("a"))
}

const (
	huge = math.MaxUint64
	last = math.MaxInt32
)

var (
	odd      = "no \xff text \x00"
	long     = strings.Repeat("n", 256)
	epoch    = message.Epoch{Gen: huge, Boot: "b-9"}
	mark     = message.Mark{Epoch: message.Epoch{Gen: 3 << message.Handoffs, Boot: long}, Seq: huge}
	process  = message.Peer{Name: odd, Boot: "c-1"}
	ballot   = message.Ballot{Round: huge, Boot: "b-9"}
	set      = message.Set{ID: "a-1", Version: huge, Members: []string{"", "a", odd, long}}
	hundred  = mustLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 100, Period: time.Minute})
	portions = []byte("first portion, second portion")
)

// bodies are messages of every type, empty and as fullBodies.
func bodies() []message.Body {
	list := fullBodies()
	for kind := range kindOf {
		list = append(list, reflect.New(kind.Elem()).Interface().(message.Body))
	}
	return list
}

// fullBodies are messages with everything that is in their types; some types have several.
func fullBodies() []message.Body {
	return []message.Body{
		&message.Heartbeat{Sent: math.MaxInt64, Set: set, Wish: message.Leave, Seen: huge, GrantsSeq: huge, Unconfirmed: true, Isolated: true},
		&message.Heartbeat{Sent: math.MinInt64, Set: message.Set{ID: "x"}, Wish: message.Join},
		&message.Ack{Sent: -1, Got: math.MinInt64, OK: true, Set: message.Set{Version: 1, Members: []string{"a"}}, GrantsSeq: huge, Unconfirmed: true},
		&message.Prepare{ID: "a-1", Version: huge, Ballot: ballot},
		&message.Promise{Version: 7, Ballot: ballot, OK: true, Accepted: set, Under: message.Ballot{Boot: "z"}},
		&message.Accept{Set: set, Ballot: ballot},
		&message.Accepted{Version: huge, Ballot: message.Ballot{Round: 1}, OK: true},
		&message.OwnedPartitions{Seq: huge, Full: true, Partitions: []message.OwnedPartition{{}, {Partition: last, Gen: huge, Start: mark, NextOwner: process, Replicated: true, Loss: message.Loss{Last: epoch, LastCertain: mark.Epoch, Complete: epoch, Age: math.MaxInt64}}}},
		&message.PendingGrants{Seq: huge, Grants: []message.PendingGrant{{}, {Partition: last, Gen: huge, Claimer: process}}},
		&message.Claim{ID: huge, Probe: true, Parts: []message.Claimed{{}, {Partition: last, Gen: huge}}},
		&message.ClaimResponse{
			ID: huge, Votes: true, Probe: true,
			Parts: []message.ClaimResponsePart{
				{}, {Partition: last, OK: true, Known: epoch, Owner: process, Has: message.Complete, State: mark, LastOwned: epoch, MaybeOwned: epoch},
				{Has: message.Partial, State: message.Mark{Seq: 1}},
			},
			Acked: []message.Acked{{}, {Boot: "b-9", Left: math.MaxInt64}, {Boot: odd, Left: math.MinInt64}},
		},
		&message.Fetch{Partition: last, Gen: huge, State: mark},
		&message.TransferBatch{N: 1, Parts: []message.Part{{Partition: 5, Kind: message.Drop}}},
		&message.TransferBatch{
			N: huge, Age: math.MaxInt64,
			Parts: []message.Part{
				{Kind: message.InitialSync, Epoch: epoch, InitialSync: 1, Seq: 2, Start: mark, Counters: 2, Bytes: 14, Begin: true},
				{Partition: last, Kind: message.Close, Epoch: epoch, InitialSync: huge, Seq: huge, Start: message.Mark{Epoch: epoch, Seq: huge}, Next: message.Epoch{Gen: huge, Boot: odd}, Sum: huge},
				{Kind: message.Answer, Counters: 1, Bytes: len(portions) - 14, End: true, Next: message.Epoch{Gen: 1}},
				{Partition: 1, Kind: message.Merge, Begin: true, End: true, Loss: message.Loss{Last: epoch, LastCertain: epoch, Complete: epoch, Age: 9}},
			},
			Image: bucket.Image{Limits: []*bucket.Limits{tenAMinute, nil, hundred, tenAMinute}, Data: portions, Counters: 3},
		},
		&message.DenialInvalidation{Keys: []bucket.Key{{}, {Hi: huge, Lo: 1}, {Lo: huge}}},
		&message.Report{Sent: math.MinInt64, Lines: []message.Line{{}, {Key: bucket.Key{Hi: huge, Lo: 1}, Limits: hundred, Ends: math.MinInt64, Sum: math.MaxInt64, Unreplicated: true}}},
		&message.Account{Sent: math.MinInt64, Clock: math.MaxInt64, Lines: []message.Standing{{}, {Key: bucket.Key{Lo: huge}, Ends: math.MinInt64, Known: math.MaxInt64, Remaining: math.MaxInt64, Reporters: last}}},
		&message.TopRequest{By: 255, Domain: odd},
		&message.TopResponse{Off: true, Covers: math.MaxInt64, Keys: []message.TopKey{{}, {Key: bucket.Key{Hi: huge, Lo: 1}, Name: []byte{0, 255}, Count: huge, Error: 1}}},
		&message.AcceptLoss{}, // nothing is in it
		&message.FactsRequest{Slots: facts.Slots},
		&message.FactsResponse{Node: facts.Node{
			Rules: odd, MayDecide: true, Reason: "none",
			PartitionCounts: facts.PartitionCounts{Owned: last, Unprotected: 1, HandingOver: 2, Replicas: 3, TakingOver: 4, Divergent: 5, BelowReplicas: 6, Lost: 7},
			All:             facts.Counts{Allowed: huge, Denied: 1, Shadowed: 2, Failed: 3},
			Latency:         facts.Latency{Bounds: []time.Duration{1, math.MaxInt64}, Counts: []uint64{0, huge, 1}, Sum: math.MaxInt64},
			ByRule:          []facts.Rule{{}, {Domain: odd, Name: "r", Counts: facts.Counts{Failed: huge}, History: []facts.Counts{{}, {Allowed: 1, Denied: 2, Shadowed: 3, Failed: huge}}}},
			RulesError:      odd, Files: []facts.File{{}, {Label: "api", Error: odd, Expires: math.MaxInt64, Left: 0.5}}, Insecure: []string{"", odd},
			Slot: math.MinInt64, History: []facts.Counts{{Denied: 7}}, Members: []int{last}, Calls: [][]uint64{{0, huge}},
			Uptime: math.MaxInt64, Keys: 1, Bytes: 2, MaxBytes: 3, RoleProblem: odd, Regions: []facts.Region{{}, {Name: "us", State: facts.RegionUnknown, InState: math.MaxInt64}},
		}},
		&message.KeyRequest{Key: bucket.Key{Hi: huge, Lo: 1}, Limits: hundred},
		&message.KeyResponse{Key: facts.Key{
			Partition: last, Owner: true, Complete: true, Gen: huge, Counted: true, Grants: last, Granted: math.MaxInt64, Denies: math.MaxInt64,
			Limits: []facts.Limit{{}, {Limit: math.MaxInt64, Spent: math.MinInt64, Remaining: 1, ResetAfter: math.MaxInt64}},
		}},
		&message.KeyResponse{Key: facts.Key{Replica: true, Leased: true, LeaseLeft: 9}},
		&message.TurnRequest{Turn: facts.Turn{
			Checks: []facts.TurnCheck{{}, {Domain: odd, Descriptor: []string{odd, ""}}}, Key: "k", Caller: odd, Units: math.MaxInt64, Least: 1,
			TTL: math.MaxInt64, Waited: 1,
		}},
		&message.TurnResponse{Moved: true},
		&message.RegionRequest{Rules: huge},
		&message.RegionResponse{ClusterID: odd, Clock: math.MinInt64, Rules: huge, Globals: []message.GlobalRule{{}, {Name: odd, Home: odd, Sum: huge}}},
		&message.RegionMessages{From: process, List: []message.RegionMessage{
			{}, {To: process, ClusterID: odd, Heartbeat: &message.Heartbeat{Pass: message.Role{Of: "a", At: odd}}}, {Ack: &message.Ack{Set: message.Set{
				ID: "i", Version: huge, Members: []string{"a"}, Roles: []message.Role{{Of: "b", At: "a"}},
			}}}, {Prepare: &message.Prepare{}}, {Promise: &message.Promise{OK: true}}, {Accept: &message.Accept{}}, {Accepted: &message.Accepted{}},
		}},
		&message.RolesRequest{Sent: math.MinInt64},
		&message.RolesResponse{Sent: 1, Left: math.MaxInt64, Plays: []message.Played{{}, {Of: odd, Age: math.MaxInt64}}},
		&message.PassRequest{Role: message.Role{Of: odd, At: "b"}, Stopped: true},
		&message.PassResponse{Problem: odd},
		&message.Load{Domain: "d", Pool: odd, Reporter: "r", Load: 0.25, Stamp: math.MinInt64},
		&message.Receipt{N: huge, Rejected: []message.Rejection{{}, {Part: last, Known: epoch, Owner: process}}},
	}
}

// same reports whether a and b say the same; limits are compared by content.
func same(a, b message.Envelope) bool {
	if reflect.TypeOf(a.Body) != reflect.TypeOf(b.Body) {
		return false
	}
	bare := func(e message.Envelope) message.Envelope {
		switch x := e.Body.(type) {
		case *message.TransferBatch:
			c := *x
			c.Image.Limits, e.Body = nil, &c
		case *message.Report:
			c := *x
			c.Lines = slices.Clone(x.Lines)
			for i := range c.Lines {
				c.Lines[i].Limits = nil
			}
			e.Body = &c
		case *message.KeyRequest:
			e.Body = &message.KeyRequest{Key: x.Key}
		}
		return e
	}
	return reflect.DeepEqual(bare(a), bare(b)) && slices.EqualFunc(limitsOf(a.Body), limitsOf(b.Body), func(l, m **bucket.Limits) bool {
		return *l == *m || *l != nil && *m != nil && (*l).Equal(*m)
	})
}

// TestControlRoundTrip: every type of message, empty and full, arrives as it was sent.
func TestControlRoundTrip(t *testing.T) {
	network, box := newNetwork(), newInbox()
	server, _ := network.serveControl(t, "b:1", box)
	pool := open(t, network.config("a"))
	var list []message.Envelope
	types := map[string]bool{}
	for i, b := range bodies() {
		e := message.Envelope{To: message.Peer{Name: "b", Boot: "b-1"}, ClusterID: "a-1", Body: b}
		if i%5 == 0 {
			e.To, e.ClusterID = message.Peer{Boot: odd}, ""
		}
		list = append(list, e)
	}
	for _, b := range fullBodies() {
		types[fmt.Sprintf("%T", b)] = true
	}
	if want := len(kindOf); len(types) != want {
		t.Errorf("the test knows %d types of messages, the wire %d", len(types), want)
	}
	from := message.Peer{Name: "a", Boot: "a-1"}
	check := func(got, want message.Envelope) {
		t.Helper()
		want.From = from
		if !same(got, want) {
			t.Errorf("%T arrived as\n%+v %+v\nsent was\n%+v %+v", want.Body, got, got.Body, want, want.Body)
		}
	}
	for _, e := range list { // each in a frame of its own
		pool.Post("b:1", e)
		check(<-box, e)
	}
	var control, transferBatches []message.Envelope
	for _, e := range list { // and all of them as they come
		if bulky(e.Body) {
			transferBatches = append(transferBatches, e)
		} else {
			control = append(control, e)
		}
		pool.Post("b:1", e)
	}
	for range list {
		e := <-box
		if bulky(e.Body) {
			check(e, transferBatches[0])
			transferBatches = transferBatches[1:]
		} else {
			check(e, control[0])
			control = control[1:]
		}
	}
	pool.Close()
	if s := pool.Stats(); s.Posted != uint64(2*len(list)) || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
	if s := server.Stats(); s.Delivered != uint64(2*len(list)) || s.Skipped != 0 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
}

// controlFrame returns a frame of list, which is valid until the next call.
func controlFrame(t testing.TB, w *controlWriter, list ...message.Envelope) *peerv1.MessageFrame {
	t.Helper()
	var batch []controlMessage
	for i := range list {
		m, err := encode(&list[i])
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, m)
	}
	post, err := w.frame(batch)
	if err != nil {
		t.Fatal(err)
	}
	return post
}

// transfer takes envelopes over the wire in one frame.
func transfer(t testing.TB, w *controlWriter, r *controlReader, list ...message.Envelope) []message.Envelope {
	t.Helper()
	codec := newFrameCodec()
	data, err := codec.Marshal(controlFrame(t, w, list...))
	if err != nil {
		t.Fatal(err)
	}
	wire := mem.SliceBuffer(data.Materialize())
	var post peerv1.MessageFrame
	if err := codec.Unmarshal(mem.BufferSlice{wire}, &post); err != nil {
		t.Fatal(err)
	}
	for i := range wire { // gRPC uses the memory again
		wire[i] = 0xee
	}
	got, skipped, err := r.read(&post, nil)
	if err != nil || skipped != 0 {
		t.Fatalf("%v, %d skipped", err, skipped)
	}
	resetMessages(&post)
	return got
}

func newReader() *controlReader {
	return &controlReader{from: message.Peer{Name: "a", Boot: "a-1"}, definitions: definitions{intern: limiter.NewInterner(defaultMaxLimits)}}
}

// TestControlOwnsItsMemory: what was delivered stays as it is, whatever becomes of the
// buffer that it came in, and of the frames that follow.
func TestControlOwnsItsMemory(t *testing.T) {
	w, r := newControlWriter(defaultMaxLimits), newReader()
	var first, again []message.Envelope
	for _, b := range bodies() {
		first = append(first, message.Envelope{Body: b})
	}
	for _, e := range first {
		if p, ok := e.Body.(*message.TransferBatch); ok {
			o := *p
			o.Image.Data = bytes.Repeat([]byte{'x'}, len(o.Image.Data))
			e.Body = &o
		}
		again = append(again, e)
	}
	got := transfer(t, w, r, first...)
	transfer(t, w, r, again...)
	for i := range first {
		first[i].From = r.from
		if !same(got[i], first[i]) {
			t.Errorf("%T has become %+v", first[i].Body, got[i].Body)
		}
	}
}

// TestControlDefinesLimitsOnce: a steady flow of transfer batches carries numbers of limits only,
// and its receiver makes one pointer of each.
func TestControlDefinesLimitsOnce(t *testing.T) {
	w, r := newControlWriter(defaultMaxLimits), newReader()
	transferBatch := func(limits ...*bucket.Limits) message.Envelope {
		return message.Envelope{Body: &message.TransferBatch{Image: bucket.Image{Limits: limits}}}
	}
	limits := func(e message.Envelope) []*bucket.Limits { return e.Body.(*message.TransferBatch).Image.Limits }
	first := transfer(t, w, r, transferBatch(tenAMinute, hundred), transferBatch(tenAMinute))
	if n := len(w.post.Define); n != 2 {
		t.Errorf("%d definitions, want 2", n)
	}
	second := transfer(t, w, r, transferBatch(hundred, tenAMinute))
	if n := len(w.post.Define); n != 0 {
		t.Errorf("%d definitions again", n)
	}
	other := &controlReader{definitions: definitions{intern: r.definitions.intern}} // another peer's stream
	third := transfer(t, newControlWriter(defaultMaxLimits), other, transferBatch(mustLimits(tenAMinute.At(0))))
	for i, l := range []*bucket.Limits{limits(first[1])[0], limits(second[0])[1], limits(third[0])[0]} {
		if l != limits(first[0])[0] {
			t.Errorf("transfer batch %d has a pointer of its own", i+2)
		}
	}
}
