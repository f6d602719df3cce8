package peer

import (
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/tracing"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

func recorder(t *testing.T) (*tracing.Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	tracer, err := tracing.New(tracing.Config{Provider: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))})
	if err != nil {
		t.Fatal(err)
	}
	return tracer, spans
}

// TestTraced: records of traces have a span at the node that answers, one for those that stand
// together, and the others have none.
func TestTraced(t *testing.T) {
	network := newNetwork()
	tracer, spans := recorder(t)
	config := network.config("b")
	config.Tracer = tracer
	_, stop := network.serve(t, "b:1", config, handlerFunc(func(_ string, records []check.Record, replies []check.Reply) {
		for i := range replies {
			replies[i] = check.Reply{Status: check.Decided}
			replies[i].Allowed = records[i].Cost > 0
		}
		replies[4].Status = check.NotOwner
	}))
	pool := open(t, network.config("a"))
	one, two := &check.Trace{ID: [16]byte{1}, Span: [8]byte{2}}, &check.Trace{ID: [16]byte{3}, Span: [8]byte{4}}
	records, replies := make([]check.Record, 6), make([]check.Reply, 6)
	for i, at := range []*check.Trace{nil, one, one, nil, two, one} {
		records[i].Trace = at
		records[i].Request = bucket.Request{Key: bucket.Key{Lo: uint64(i + 1)}, Cost: int64(i % 2)}
	}
	if err := pool.Call(t.Context(), "b:1", records, replies); err != nil {
		t.Fatal(err)
	}
	stop() // what was answered is recorded by now
	type seen struct {
		trace, below                       byte
		records, allowed, denied, notOwner int64
	}
	var got []seen
	for _, s := range spans.Ended() {
		id, span := s.SpanContext().TraceID(), s.Parent().SpanID()
		g := seen{trace: id[0], below: span[0]}
		for _, a := range s.Attributes() {
			switch a.Key {
			case "sluice.records":
				g.records = a.Value.AsInt64()
			case "sluice.allowed":
				g.allowed = a.Value.AsInt64()
			case "sluice.denied":
				g.denied = a.Value.AsInt64()
			case "sluice.not_owner":
				g.notOwner = a.Value.AsInt64()
			case "sluice.peer":
				if a.Value.AsString() != "a" {
					t.Errorf("asked by %q", a.Value.AsString())
				}
			}
		}
		got = append(got, g)
	}
	want := []seen{{1, 2, 2, 1, 1, 0}, {3, 4, 1, 0, 0, 1}, {1, 2, 1, 1, 0, 0}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("span %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestTracesThatMakeNoSense cost no check.
func TestTracesThatMakeNoSense(t *testing.T) {
	tracer, spans := recorder(t)
	x := exchange{server: &Server{cfg: Config{Tracer: tracer}, handler: handlerFunc(echo)}, definitions: &definitions{intern: limiter.NewInterner(1)}}
	id, span := make([]byte, 16), make([]byte, 8)
	id[0], span[0] = 1, 1
	for name, bad := range map[string]*peerv1.Trace{
		"beyond the end": {First: 1, Records: 2, Id: id, Span: span},
		"far beyond it":  {First: 1<<32 - 1, Records: 1<<32 - 1, Id: id, Span: span},
		"of none":        {First: 0, Records: 0, Id: id, Span: span},
		"a short id":     {First: 0, Records: 1, Id: id[:15], Span: span},
		"no span":        {First: 0, Records: 1, Id: id},
	} {
		x.request = peerv1.Request{Seq: 1, KeyLo: []uint64{1, 2}, Traces: []*peerv1.Trace{bad}}
		err := x.read()
		x.serve()
		if err != nil || len(x.replies) != 2 || x.replies[1].Status != check.Decided {
			t.Errorf("%s: %v %+v", name, err, x.replies)
		}
	}
	if n := len(spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

// TestTracesTravelOnlyWhereThereAreSome: a frame without is the same to the byte as one of a node that
// knows no traces, and what such a node gets it can read.
func TestTracesTravelOnlyWhereThereAreSome(t *testing.T) {
	var with, without peerv1.Request
	for _, m := range []*peerv1.Request{&with, &without} {
		m.Seq = 1
		addRecord(m, &check.Record{Request: bucket.Request{Key: bucket.Key{Lo: 7}, Cost: 1}}, 0)
	}
	before := proto.Size(&with)
	addTrace(&with, 0, &check.Trace{ID: [16]byte{1}, Span: [8]byte{1}})
	if size := proto.Size(&without); size != before || proto.Size(&with) <= size || proto.Size(&with) > size+bytesPerTrace {
		t.Errorf("%d bytes with a trace, %d without", proto.Size(&with), size)
	}
	data, err := proto.Marshal(&with)
	if err != nil {
		t.Fatal(err)
	}
	// Greeting stands for a message of an older version: it knows none of these fields.
	var older peerv1.Greeting
	if err := reuse.Unmarshal(data, &older); err != nil || len(older.ProtoReflect().GetUnknown()) != 0 {
		t.Errorf("%v, kept %d bytes", err, len(older.ProtoReflect().GetUnknown()))
	}
}
