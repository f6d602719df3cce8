package tracing

import (
	"math"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/sluicecluster/sluice/internal/check"
)

const (
	trace    = "0af7651916cd43dd8448eb211c80319c"
	sampled  = "00-" + trace + "-b7ad6b7169203331-01"
	unheeded = "00-" + trace + "-b7ad6b7169203331-00"
)

func newTracer(t *testing.T, change func(*Config)) (*Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	c := Config{Provider: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), Callers: 100}
	change(&c)
	tracer, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, spans
}

func TestTraceparent(t *testing.T) {
	for text, want := range map[string]struct{ ok, sampled bool }{
		sampled:                      {true, true},
		unheeded:                     {true, false},
		"01" + sampled[2:]:           {true, true},
		"01" + sampled[2:] + "-more": {true, true},
		strings.Replace(sampled, "-01", "-03", 1):                 {true, true},
		sampled + "-more":                                         {},
		"01" + sampled[2:] + "more":                               {},
		"ff" + sampled[2:]:                                        {},
		strings.ToUpper(sampled):                                  {},
		sampled[:54]:                                              {},
		strings.ReplaceAll(sampled, "-", "_"):                     {},
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": {},
		"00-" + trace + "-0000000000000000-01":                    {},
		"00-" + trace + "-b7ad6b716920333x-01":                    {},
		"":                                                        {}, "none": {},
	} {
		var p parent
		if ok := p.read(text); ok != want.ok || ok && p.sampled != want.sampled {
			t.Errorf("%q: %v %+v", text, ok, p)
		}
	}
}

// Which calls are recorded, by what callers say and what is set.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		name        string
		share       float64
		callers     int
		traceparent string
		of, want    int
	}{
		{"none", 0, 100, "", 1000, 0},
		{"all", 1, 100, "", 1000, 1000},
		{"no traceparent is none", 0, 100, "rubbish", 1000, 0},
		{"the caller records", 0, 1000, sampled, 100, 100},
		{"the caller does not", 1, 1000, unheeded, 100, 0},
		{"the caller records too much", 0, 10, sampled, 100, 10},
		{"what is too much counts as unsaid", 1, 10, sampled, 100, 100},
		{"callers do not count", 0, 0, sampled, 100, 0},
		{"neither way", 1, 0, unheeded, 100, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracer, spans := newTracer(t, func(config *Config) {
				config.Share, config.Callers = c.share, c.callers
				config.Clock = func() time.Duration { return time.Hour }
			})
			got := 0
			for range c.of {
				if s := tracer.Call("call", c.traceparent); s != nil {
					got++
					s.End()
				}
			}
			if got != c.want || len(spans.Ended()) != got {
				t.Errorf("%d recorded, want %d", got, c.want)
			}
		})
	}
}

// A tenth is about a tenth, and on a caller's trace all nodes decide alike.
func TestShare(t *testing.T) {
	tracer, _ := newTracer(t, func(c *Config) { c.Share = 0.1 })
	n := 0
	for range 20_000 {
		if s := tracer.Call("call", ""); s != nil {
			n++
		}
	}
	if math.Abs(float64(n)-2000) > 6*math.Sqrt(20_000*0.1*0.9) {
		t.Errorf("%d of 20000 recorded at a share of a tenth", n)
	}
	for text, want := range map[string]bool{
		"00-ffffffffffffffff0000000000000001-b7ad6b7169203331-01": true,
		"00-0000000000000001ffffffffffffffff-b7ad6b7169203331-01": false,
	} {
		var p parent
		if !p.read(text) {
			t.Fatal(text)
		}
		tracer.trust = false
		if got := tracer.follows(&p); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// A second after callers have used up what they may, they may as much again and no more.
func TestPace(t *testing.T) {
	now := time.Hour
	tracer, _ := newTracer(t, func(c *Config) { c.Callers, c.Clock = 5, func() time.Duration { return now } })
	burst := func() (n int) {
		for range 20 {
			if tracer.Call("call", sampled) != nil {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 5}, {0, 0}, {200 * time.Millisecond, 1}, {time.Second, 5}, {time.Hour, 5}} {
		now += step.after
		if got := burst(); got != step.want {
			t.Errorf("after %v: %d, want %d", step.after, got, step.want)
		}
	}
}

// Spans of one call hang together, also where they are begun at another node.
func TestFamily(t *testing.T) {
	tracer, spans := newTracer(t, func(*Config) {})
	call := tracer.Call("call", sampled)
	ask := tracer.Ask("ask", call.Trace())
	answer := tracer.Answer("answer", &check.Trace{ID: ask.Trace().ID, Span: ask.Trace().Span})
	answer.Text("long", strings.Repeat("x", 1000))
	answer.Fail("no")
	for _, s := range []*Span{answer, ask, call} {
		s.End()
	}
	got := spans.Ended()
	if len(got) != 3 {
		t.Fatalf("%d spans", len(got))
	}
	for i, want := range []struct {
		name string
		kind oteltrace.SpanKind
	}{{"answer", oteltrace.SpanKindServer}, {"ask", oteltrace.SpanKindClient}, {"call", oteltrace.SpanKindServer}} {
		s := got[i]
		if s.Name() != want.name || s.SpanKind() != want.kind || s.SpanContext().TraceID().String() != trace {
			t.Errorf("%s %v in %v, want %+v", s.Name(), s.SpanKind(), s.SpanContext().TraceID(), want)
		}
		below := "b7ad6b7169203331"
		if i+1 < len(got) {
			below = got[i+1].SpanContext().SpanID().String()
		}
		if s.Parent().SpanID().String() != below {
			t.Errorf("%s is below %v, want %s", s.Name(), s.Parent().SpanID(), below)
		}
	}
	if text := got[0].Attributes()[0].Value.AsString(); len(text) != maxText || got[0].Status().Description != "no" {
		t.Errorf("text of %d bytes, status %+v", len(text), got[0].Status())
	}
}

// What records nothing can be used all the same, and costs nothing.
func TestNothing(t *testing.T) {
	off, _ := newTracer(t, func(*Config) {})
	for name, tracer := range map[string]*Tracer{"no tracer": nil, "not recorded": off} {
		for _, traceparent := range []string{"", unheeded, "rubbish"} {
			if n := testing.AllocsPerRun(100, func() {
				s := tracer.Call("call", traceparent)
				s.Text("a", "b")
				s.Int("c", 1)
				s.Count("d", 0)
				s.Fail("e")
				tracer.Ask("ask", s.Trace()).End()
				tracer.Answer("answer", s.Trace()).End()
				s.End()
			}); n > 0 {
				t.Errorf("%s, %q: %v allocations", name, traceparent, n)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	sound := Config{Provider: sdk.NewTracerProvider()}
	for want, change := range map[string]func(*Config){
		"Provider": func(c *Config) { c.Provider = nil },
		"Share":    func(c *Config) { c.Share = math.NaN() },
		"1.5":      func(c *Config) { c.Share = 1.5 },
		"Callers":  func(c *Config) { c.Callers = -1 },
	} {
		c := sound
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
