package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-project/sluice/internal/load"
)

// benchJSON is the answer of `sluice bench -o json`. Times are in seconds.
type benchJSON struct {
	Door            string                  `json:"door"`
	Addrs           []string                `json:"addrs"`
	Callers         int                     `json:"callers"`
	Batch           int                     `json:"batch"`
	Keys            int                     `json:"keys"`
	Skew            float64                 `json:"skew"`
	Rate            float64                 `json:"rate,omitempty"`
	Took            float64                 `json:"took"`
	Calls           int64                   `json:"calls"`
	CallsPerSecond  float64                 `json:"calls_per_second"`
	Checks          int64                   `json:"checks"`
	ChecksPerSecond float64                 `json:"checks_per_second"`
	Latency         benchLatency            `json:"latency"`
	Allowed         int64                   `json:"allowed"`
	Denied          int64                   `json:"denied"`
	Errors          int64                   `json:"errors"`
	FailedCalls     int64                   `json:"failed_calls"`
	FirstError      string                  `json:"first_error,omitempty"`
	Sources         map[string]load.Decided `json:"sources"`
}

type benchLatency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

// benchOf is r in the form that is printed. Checks are those that were decided; those without a
// decision are errors.
func benchOf(f *benchFlags, r *load.Result) benchJSON {
	all := r.Decided()
	per := 1 / max(1e-9, r.Took.Seconds())
	checks := all.Allowed + all.Denied
	at := func(quantile float64) float64 { return time.Duration(r.Latency.ValueAtQuantile(quantile)).Seconds() }
	b := benchJSON{
		Door: f.door, Addrs: f.addrs, Callers: f.callers, Batch: f.batch, Keys: f.keys, Skew: f.skew, Rate: f.rate,
		Took: r.Took.Seconds(), Calls: r.Calls, CallsPerSecond: float64(r.Calls) * per, Checks: checks, ChecksPerSecond: float64(checks) * per,
		Latency: benchLatency{
			P50: at(50), P90: at(90), P99: at(99), P999: at(99.9),
			Max: time.Duration(r.Latency.Max()).Seconds(), Mean: r.Latency.Mean() / float64(time.Second),
		},
		Allowed: all.Allowed, Denied: all.Denied, Errors: r.Failed, FailedCalls: r.FailedCalls, Sources: map[string]load.Decided{},
	}
	if r.FirstError != nil {
		b.FirstError = r.FirstError.Error()
	}
	for s, d := range r.By {
		if d != (load.Decided{}) {
			b.Sources[load.Source(s).String()] = d
		}
	}
	return b
}

func printBench(out io.Writer, f *benchFlags, r *load.Result) error {
	b := benchOf(f, r)
	if f.output == "json" {
		return json.NewEncoder(out).Encode(b)
	}
	_, err := io.WriteString(out, benchText(&b, r))
	return err
}

func benchText(b *benchJSON, r *load.Result) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "nodes\t%s\n", strings.Join(b.Addrs, ", "))
	fmt.Fprintf(w, "load\t%s, %s, %s a call, %s", b.Door, plural(int64(b.Callers), "caller", "callers"),
		plural(int64(b.Batch), "check", "checks"), plural(int64(b.Keys), "key", "keys"))
	if b.Skew != 0 {
		fmt.Fprintf(w, " with a skew of %v", b.Skew)
	}
	if b.Rate != 0 {
		fmt.Fprintf(w, ", at most %v checks/s", b.Rate)
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "measured\t%v\n", r.Took.Round(time.Millisecond))
	fmt.Fprintf(w, "calls\t%d, %.0f/s\n", b.Calls, b.CallsPerSecond)
	fmt.Fprintf(w, "checks\t%d, %.0f/s\n", b.Checks, b.ChecksPerSecond)
	if b.Calls > 0 {
		l := &b.Latency
		fmt.Fprintf(w, "latency\tp50 %v, p90 %v, p99 %v, p99.9 %v, max %v\n", short(l.P50), short(l.P90), short(l.P99), short(l.P999), short(l.Max))
	}
	fmt.Fprintf(w, "allowed\t%d%s\n", b.Allowed, sourcesText(r, func(d load.Decided) int64 { return d.Allowed }))
	fmt.Fprintf(w, "denied\t%d%s\n", b.Denied, sourcesText(r, func(d load.Decided) int64 { return d.Denied }))
	fmt.Fprintf(w, "errors\t%s", plural(b.Errors, "check", "checks"))
	if b.Errors > 0 {
		fmt.Fprintf(w, ", %s\nfirst error\t%s", plural(b.FailedCalls, "failed call", "failed calls"), b.FirstError)
	}
	fmt.Fprintln(w)
	w.Flush()
	return text.String()
}

// sourcesText lists who decided.
func sourcesText(r *load.Result, count func(load.Decided) int64) string {
	var parts []string
	for s, d := range r.By {
		if n := count(d); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, load.Source(s)))
		}
	}
	if parts == nil {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// short keeps three digits or so of a time in seconds.
func short(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}

// progressText is the line of one second.
func progressText(p load.Progress) string {
	state := ""
	if p.Warming {
		state = " (warming up)"
	}
	text := fmt.Sprintf("%v%s: %d checks/s, %d denied, %v a call", p.Elapsed.Round(time.Second), state,
		p.Decided.Allowed+p.Decided.Denied, p.Decided.Denied, short(p.Latency.Seconds()))
	if p.FirstError != nil {
		text += fmt.Sprintf(", %d errors, the first: %.80s", p.Failed, strings.ReplaceAll(p.FirstError.Error(), "\n", " "))
	}
	return text
}
