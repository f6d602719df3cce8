package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// sink is a collector that keeps what it is sent.
type sink struct {
	collectorv1.UnimplementedTraceServiceServer
	mu struct {
		sync.Mutex
		spans []taken
	}
}

// taken is a span and the node that sent it.
type taken struct {
	node string
	*tracev1.Span
}

func (s *sink) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		node := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.instance.id" {
				node = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.mu.spans = append(s.mu.spans, taken{node, span})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (s *sink) taken() []taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]taken(nil), s.mu.spans...)
}

// openSink serves a collector until the test ends and returns its address.
func openSink(t *testing.T) (*sink, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	s, g := new(sink), grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return s, "http://" + l.Addr().String()
}

// A check that one node is asked and another decides is one trace of three spans, which the caller's
// span is above, and none of them shows a value.
func TestTraceAcrossNodes(t *testing.T) {
	t.Parallel()
	collector, endpoint := openSink(t)
	nodes := together(t, 2, func(c *Config) { c.Traces = Traces{Endpoint: endpoint, Callers: 1000} })
	conn := nodes[0].conn(t)
	const above = "b7ad6b7169203331"
	trace := ""
	for i := 0; trace == ""; i++ {
		if i == 1000 {
			t.Fatal("n2 has decided none of 1000 keys")
		}
		id := fmt.Sprintf("%032x", i+1)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-"+above+"-01")
		r, err := sluicev1.NewRateLimitServiceClient(conn).Check(ctx, checksOf("auth", "user", fmt.Sprintf("tell-nobody-%d", i), 0))
		do(t, err)
		if r.Decisions[0].Source == sluicev1.Source_SOURCE_FORWARDED {
			trace = id
		}
	}
	const overHTTP = "0af7651916cd43dd8448eb211c80319c"
	send(t, nodes[0].listen.http.Addr(), "POST", "/v1/check", `{"domain":"auth","descriptor":[{"key":"user","value":"tell-nobody"}]}`,
		"traceparent", "00-"+overHTTP+"-"+above+"-01")
	_, metrics := nodes[0].get(t, "/metrics")
	if !strings.Contains(metrics, "sluice_trace_spans_waiting ") {
		t.Error("no sluice_trace_spans_waiting")
	}
	for _, n := range nodes { // they send what is left
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
	byName, all := map[string]taken{}, collector.taken()
	webs := 0
	for _, s := range all {
		if text := prototext.Format(s.Span); strings.Contains(text, "tell-nobody") {
			t.Errorf("a value is shown: %s", text)
		}
		switch hex.EncodeToString(s.TraceId) {
		case trace:
			byName[s.node+" "+s.Name] = s
		case overHTTP:
			webs++
		}
	}
	if webs == 0 {
		t.Error("the call over HTTP was not traced")
	}
	call, forward, decide := byName["n1 sluice.check"], byName["n1 sluice.forward"], byName["n2 sluice.decide"]
	if len(byName) != 3 || call.Span == nil || forward.Span == nil || decide.Span == nil {
		t.Fatalf("the trace of a forwarded check is %v", byName)
	}
	if got := hex.EncodeToString(call.ParentSpanId); got != above {
		t.Errorf("the call is below %s", got)
	}
	if string(forward.ParentSpanId) != string(call.SpanId) || string(decide.ParentSpanId) != string(forward.SpanId) {
		t.Errorf("%x over %x over %x", call.SpanId, forward.ParentSpanId, decide.ParentSpanId)
	}
	if s := nodes[0].spans.stats(); s.sent == 0 || s.failed+s.dropped != 0 || s.waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// stuck is an exporter that waits for pass, and then fails with its error.
type stuck struct {
	pass chan struct{}
	err  error
}

func (e stuck) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { <-e.pass; return e.err }

func (stuck) Shutdown(context.Context) error { return nil }

// What a collector does not take is dropped and counted, and nobody waits for it.
func TestCollectorIsStuck(t *testing.T) {
	for name, want := range map[string]struct {
		err error
		of  func(spanStats) uint64
	}{
		"and takes it later": {nil, func(s spanStats) uint64 { return s.sent }},
		"and fails":          {context.DeadlineExceeded, func(s spanStats) uint64 { return s.failed }},
	} {
		t.Run(name, func(t *testing.T) {
			e := stuck{make(chan struct{}), want.err}
			s, err := newSpans(t.Context(), &Config{Name: "n1", Traces: Traces{Share: 1}}, e, slog.New(slog.DiscardHandler))
			do(t, err)
			for range maxSpans + 100 {
				s.tracer.Call("call", "").End() // would not return if it waited
			}
			if st := s.stats(); st.dropped != 100 || st.waiting != maxSpans {
				t.Errorf("%+v; want %d waiting and 100 dropped", st, maxSpans)
			}
			close(e.pass)
			s.close()
			if st := s.stats(); want.of(st) != maxSpans || st.waiting != 0 {
				t.Errorf("%+v; want %d as the rest", st, maxSpans)
			}
		})
	}
}

// A stop does not wait for a collector that is not there longer than it may.
func TestStopWithoutCollector(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.Traces = Traces{Endpoint: "http://127.0.0.1:1", Share: 1}
	n := startNode(t, s)
	if d := n.check(t, "a"); !d.Allowed {
		t.Errorf("a check without a collector: %v", d)
	}
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 45*time.Second { // the exporter gives up after a minute
		t.Errorf("it took %v", took)
	}
	if s := n.spans.stats(); s.sent != 0 || s.failed+uint64(s.waiting) == 0 {
		t.Errorf("%+v", s)
	}
}

func TestTracesWanted(t *testing.T) {
	const endpoint, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, c := range []struct {
		flag    string
		env     map[string]string
		want    bool
		unheard string
	}{
		{"", nil, false, ""},
		{"http://c:4317", nil, true, ""},
		{"", map[string]string{endpoint: "http://c:4317"}, true, ""},
		{"", map[string]string{traces: "http://c:4317", "OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		{"", map[string]string{endpoint: "http://c:4317", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		{"", map[string]string{endpoint: "http://c:4317", "OTEL_TRACES_EXPORTER": "zipkin"}, false, "OTEL_TRACES_EXPORTER"},
		{"", map[string]string{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{"", map[string]string{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, true, ""},
		{"http://c:4317", map[string]string{"OTEL_SDK_DISABLED": "true"}, false, ""},
		{"http://c:4317", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, true, ""},
	} {
		s := Traces{Endpoint: c.flag}
		if got, unheard := s.enabled(func(name string) string { return c.env[name] }); got != c.want || unheard != c.unheard {
			t.Errorf("%q %v: %v %q", c.flag, c.env, got, unheard)
		}
	}
}

// A password in the URL is rejected, and not repeated.
func TestEndpointWithPassword(t *testing.T) {
	for _, endpoint := range []string{"http://me:hunter2@c:4317", "http://me:hunter2@c:%zz"} {
		s := Traces{Endpoint: endpoint}
		var p problems
		s.validate(&p)
		if err := errors.Join(p...); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}
