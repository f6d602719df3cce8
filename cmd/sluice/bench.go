package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/internal/load/api"
)

// benchFlags are the flags of `sluice bench`.
type benchFlags struct {
	addrs            []string
	api              string
	callers, batch   int
	keys             int
	skew, rate       float64
	warmup, duration time.Duration
	domain, key      string
	header           string
	limits           []string
	timeout          time.Duration
	connections      int
	seed             uint64
	compare          string
	output           string
	tls              clientTLS
	token            tokenFlags
}

// defaultHTTPPort is the default of --http-port.
const defaultHTTPPort = 7461

// byRules is the value of --limits that leaves them to the nodes.
const byRules = "rules"

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put a load on a running cluster and print throughput and latency",
		Long: `Put a load on a running cluster and print throughput, latency and the sources of decisions.

Callers send one call after the other, each to a random node, for keys drawn evenly or with a
skew. The checks bring their limits, so they need no rules; with --limits rules, the nodes' rules
for --domain and --key hold them. What sluice admits is not judged here: sluice audit does that.

` + apisHelp() + `
Latency is that of a call. With --rate it counts from when the call was due, so that a slow answer
shows in all the calls that had to wait for it. A call without an answer within --timeout is an
error, and a caller rests for 10 ms after one. Ctrl-C ends the run with the figures so far.

It loads the cluster and this machine fully: bound it with --rate, and run it on another machine
than the nodes if the figures are to be the nodes' own.

Exit codes: 0 measured, 2 wrong usage, 3 no node answers.`,
		Example: `  sluice bench --addr 127.0.0.1:7460
  sluice bench --addr n1,n2,n3 --concurrency 256 --batch 10 --keys 1000000 --skew 0.99 --duration 1m
  sluice bench --addr n1,n2,n3 --api http --rate 5000 -o json
  sluice bench --addr n1,n2,n3 --domain auth --key user --limits rules
  sluice bench --addr n1 --api gubernator --limits 100/1m
  sluice bench --addr n1 --api authorize --domain shop --header X-User`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.api == "authorize" && !cmd.Flags().Changed("limits") {
				f.limits = []string{byRules}
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&f.addrs, "addr", []string{"127.0.0.1"},
		fmt.Sprintf("`addresses` of the nodes; without a port, %d, or %d for HTTP", defaultGRPCPort, defaultHTTPPort))
	flags.StringVar(&f.api, "api", "grpc", "the API to call, see above")
	flags.IntVar(&f.callers, "concurrency", 64, "how many callers check at the same time")
	flags.IntVar(&f.batch, "batch", 1, "checks a call")
	flags.IntVar(&f.keys, "keys", 10_000, "how many different keys are checked")
	flags.Float64Var(&f.skew, "skew", 0, "Zipf exponent `s`: key k is checked in proportion to 1/k^s; 0: all alike")
	flags.DurationVar(&f.duration, "duration", 10*time.Second, "how long to measure")
	flags.DurationVar(&f.warmup, "warmup", time.Second, "how long to check before that")
	flags.Float64Var(&f.rate, "rate", 0, "checks a second in all; 0: as fast as they can")
	flags.StringVar(&f.domain, "domain", "bench", "`domain` of the checks")
	flags.StringVar(&f.key, "key", "user", "`key` of the descriptor's only entry; the values are this and a number")
	flags.StringVar(&f.header, "header", "X-User", "`header` that has the value, with API authorize")
	flags.StringSliceVar(&f.limits, "limits", []string{"1000/1s"}, "limits that the checks bring, each `count/period`; "+byRules+": none, the nodes' rules apply")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long one call may take")
	flags.IntVar(&f.connections, "connections", 1, "gRPC connections to each node, shared by all callers")
	flags.Uint64Var(&f.seed, "seed", 0, "the same seed checks the same keys in the same order; 0: a new one")
	flags.StringVar(&f.compare, "compare", "", "`file` with the report (-o json) of an earlier run, to print the changes since")
	f.tls.register(flags)
	f.token.register(flags)
	registerOutput(flags, &f.output)
	return cmd
}

// apisHelp lists the APIs.
func apisHelp() string {
	var b strings.Builder
	b.WriteString("APIs:\n")
	for _, k := range api.Kinds {
		fmt.Fprintf(&b, "  %-11s %s\n", k.Name, k.What)
	}
	return b.String()
}

func (f *benchFlags) run(ctx context.Context, out, stderr io.Writer) (err error) {
	before, err := f.readCompare()
	if err != nil {
		return usageError(fmt.Errorf("--compare: %w", err))
	}
	kind, err := api.Find(f.api)
	if err != nil {
		return usageError(fmt.Errorf("--%w", err))
	}
	work, err := f.work()
	if err != nil {
		return usageError(fmt.Errorf("--%w", err))
	}
	secured, err := f.tls.config()
	if err != nil {
		return usageError(err)
	}
	target, err := f.open(kind, secured)
	if err != nil {
		return usageError(fmt.Errorf("--%w", err))
	}
	defer func() {
		if closed := target.Close(); closed != nil && err == nil {
			err = &codedError{exitNoAnswer, closed}
		}
	}()
	nodes := strings.Join(f.addrs, ", ")
	if err := load.Probe(ctx, target, work.Prefix, f.batch); err != nil {
		return noAnswer(nodes, err)
	}
	line := newProgress(stderr)
	if line.out != nil {
		work.Progress = func(p load.Progress) { line.show(p.Elapsed, f.warmup+f.duration, progressText(p)) }
	}
	result, err := load.Run(ctx, target, work)
	line.clear()
	if err != nil {
		return usageError(err)
	}
	b := benchOf(f, result)
	if before != nil {
		b.Compared = compared(before, &b)
	}
	if err := write(out, f.output, benchText(&b, result), b); err != nil {
		return err
	}
	if result.Decided() == (load.Decided{}) {
		return noAnswer(nodes, cmp.Or(result.FirstError, errors.New("stopped before the first answer")))
	}
	return nil
}

// work returns the load. Its errors begin with a flag's name.
func (f *benchFlags) work() (load.Work, error) {
	w := load.Work{
		Callers: f.callers, Batch: f.batch, Rate: f.rate, Prefix: f.key, Seed: f.seed, Warmup: f.warmup, Duration: f.duration,
	}
	if w.Seed == 0 {
		w.Seed = rand.Uint64() // #nosec G404 -- of a load
	}
	var err error
	if w.Keys, err = load.NewPickers(f.keys, f.skew); err != nil {
		return w, err
	}
	return w, w.Validate()
}

// open opens the API. Its errors begin with a flag's name.
func (f *benchFlags) open(kind *api.Kind, secured *tls.Config) (api.API, error) {
	c := api.Config{
		Domain: f.domain, Key: f.key, Header: f.header, Timeout: f.timeout, Connections: f.connections, TLS: secured,
		Token: f.token.source(), TokenInClear: f.token.inClear,
	}
	if f.timeout <= 0 {
		return nil, fmt.Errorf("timeout: %v; want more than 0", f.timeout)
	}
	port := defaultGRPCPort
	if kind.HTTP {
		port = defaultHTTPPort
	}
	for i, a := range f.addrs {
		if a == "" {
			return nil, errors.New("addr: an address is empty")
		}
		f.addrs[i] = withPort(a, port)
	}
	c.Addrs = f.addrs
	if len(f.limits) != 1 || f.limits[0] != byRules {
		for _, text := range f.limits {
			l, err := parseBenchLimit(text)
			if err != nil {
				return nil, fmt.Errorf("limits: %q: %w", text, err)
			}
			c.Limits = append(c.Limits, l)
		}
	}
	return kind.Open(c, f.batch)
}

// parseBenchLimit reads "100/1m" or "100/minute".
func parseBenchLimit(text string) (l api.Limit, err error) {
	count, period, ok := strings.Cut(text, "/")
	if !ok {
		return l, errors.New("want count/period, for example 100/1m, or " + byRules)
	}
	if l.Count, err = strconv.ParseInt(count, 10, 64); err != nil || l.Count < 0 {
		return l, fmt.Errorf("the count %q is no whole number of 0 or more", count)
	}
	named := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}
	if l.Period = named[period]; l.Period > 0 {
		return l, nil
	}
	if l.Period, err = time.ParseDuration(period); err != nil || l.Period <= 0 {
		return l, fmt.Errorf("the period %q is no time above 0, such as 500ms, 1m or hour", period)
	}
	return l, nil
}

// benchJSON is the answer of `sluice bench -o json`. Times are in seconds.
type benchJSON struct {
	API             string                  `json:"api"`
	Addrs           []string                `json:"addrs"`
	Concurrency     int                     `json:"concurrency"`
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
	// Histogram counts calls by latency.
	Histogram []load.Bucket `json:"histogram"`
	Compared  []benchChange `json:"compared,omitempty"`
}

// benchChange is a figure of this run and of an earlier one. Change is relative, for example 0.1 for a tenth more.
type benchChange struct {
	Figure string  `json:"figure"`
	Before float64 `json:"before"`
	Now    float64 `json:"now"`
	Change float64 `json:"change"`
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
		API: f.api, Addrs: f.addrs, Concurrency: f.callers, Batch: f.batch, Keys: f.keys, Skew: f.skew, Rate: f.rate,
		Took: r.Took.Seconds(), Calls: r.Calls, CallsPerSecond: float64(r.Calls) * per, Checks: checks, ChecksPerSecond: float64(checks) * per,
		Latency: benchLatency{
			P50: at(50), P90: at(90), P99: at(99), P999: at(99.9),
			Max: time.Duration(r.Latency.Max()).Seconds(), Mean: r.Latency.Mean() / float64(time.Second),
		},
		Allowed: all.Allowed, Denied: all.Denied, Errors: r.Failed, FailedCalls: r.FailedCalls, Sources: map[string]load.Decided{},
	}
	b.Histogram = r.Histogram()
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

func benchText(b *benchJSON, r *load.Result) string {
	var w grid
	fmt.Fprintf(&w, "nodes\t%s\n", strings.Join(b.Addrs, ", "))
	fmt.Fprintf(&w, "load\t%s, %s, %s a call, %s", b.API, plural(b.Concurrency, "caller", "callers"),
		plural(b.Batch, "check", "checks"), plural(b.Keys, "key", "keys"))
	if b.Skew != 0 {
		fmt.Fprintf(&w, " with a skew of %v", b.Skew)
	}
	if b.Rate != 0 {
		fmt.Fprintf(&w, ", at most %v checks/s", b.Rate)
	}
	fmt.Fprintln(&w)
	fmt.Fprintf(&w, "measured\t%v\n", r.Took.Round(time.Millisecond))
	fmt.Fprintf(&w, "calls\t%d, %.0f/s\n", b.Calls, b.CallsPerSecond)
	fmt.Fprintf(&w, "checks\t%d, %.0f/s\n", b.Checks, b.ChecksPerSecond)
	if b.Calls > 0 {
		l := &b.Latency
		fmt.Fprintf(&w, "latency\tp50 %v, p90 %v, p99 %v, p99.9 %v, max %v\n", short(l.P50), short(l.P90), short(l.P99), short(l.P999), short(l.Max))
	}
	fmt.Fprintf(&w, "allowed\t%d%s\n", b.Allowed, sourcesText(r, func(d load.Decided) int64 { return d.Allowed }))
	fmt.Fprintf(&w, "denied\t%d%s\n", b.Denied, sourcesText(r, func(d load.Decided) int64 { return d.Denied }))
	fmt.Fprintf(&w, "errors\t%s", plural(b.Errors, "check", "checks"))
	if b.Errors > 0 {
		fmt.Fprintf(&w, ", %s\nfirst error\t%s", plural(b.FailedCalls, "failed call", "failed calls"), b.FirstError)
	}
	fmt.Fprintln(&w)
	return w.String() + histogramText(b.Histogram) + comparedText(b.Compared)
}

// readCompare reads the report of --compare, nil without one.
func (f *benchFlags) readCompare() (*benchJSON, error) {
	if f.compare == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.compare)
	if err != nil {
		return nil, err
	}
	b := new(benchJSON)
	if err := json.Unmarshal(text, b); err != nil || b.Calls == 0 {
		return nil, fmt.Errorf("%s is not a report of sluice bench -o json with any calls", f.compare)
	}
	if b.API != f.api || b.Concurrency != f.callers || b.Batch != f.batch || b.Keys != f.keys || b.Skew != f.skew || b.Rate != f.rate {
		return nil, fmt.Errorf("%s is of another load: want --api %s --concurrency %d --batch %d --keys %d --skew %v --rate %v",
			f.compare, b.API, b.Concurrency, b.Batch, b.Keys, b.Skew, b.Rate)
	}
	return b, nil
}

func compared(before, now *benchJSON) (list []benchChange) {
	for _, c := range []benchChange{
		{Figure: "checks/s", Before: before.ChecksPerSecond, Now: now.ChecksPerSecond},
		{Figure: "p50", Before: before.Latency.P50, Now: now.Latency.P50},
		{Figure: "p90", Before: before.Latency.P90, Now: now.Latency.P90},
		{Figure: "p99", Before: before.Latency.P99, Now: now.Latency.P99},
		{Figure: "p99.9", Before: before.Latency.P999, Now: now.Latency.P999},
		{Figure: "errors", Before: float64(before.Errors), Now: float64(now.Errors)},
	} {
		if c.Before != 0 {
			c.Change = c.Now/c.Before - 1
		}
		list = append(list, c)
	}
	return list
}

func comparedText(list []benchChange) string {
	if list == nil {
		return ""
	}
	var w grid
	fmt.Fprint(&w, "\nFIGURE\tBEFORE\tNOW\tCHANGE")
	for _, c := range list {
		show := func(v float64) string { return fmt.Sprintf("%.0f", v) }
		if c.Figure[0] == 'p' {
			show = func(v float64) string { return short(v).String() }
		}
		change := "-"
		if c.Before != 0 {
			change = fmt.Sprintf("%+.1f%%", 100*c.Change)
		}
		fmt.Fprintf(&w, "\n%s\t%s\t%s\t%s", c.Figure, show(c.Before), show(c.Now), change)
	}
	return w.String()
}

func histogramText(list []load.Bucket) string {
	var all int64
	for _, b := range list {
		all += b.Calls
	}
	var w grid
	for _, b := range list {
		share := float64(b.Calls) / float64(all)
		fmt.Fprintf(&w, "  below %v\t[%s]\t%5.1f%%\t%d\n", short(b.Below), bar(share, 40), 100*share, b.Calls)
	}
	if all == 0 {
		return ""
	}
	return "\nlatency of calls\n" + w.String()
}

// sourcesText lists the counts of decisions by source.
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

// progressText is the text of one second.
func progressText(p load.Progress) string {
	state := ""
	if p.Warming {
		state = "warming up, "
	}
	text := fmt.Sprintf("%s%d checks/s, %d denied, %v a call", state, p.Decided.Allowed+p.Decided.Denied, p.Decided.Denied, short(p.Latency.Seconds()))
	if p.FirstError != nil {
		text += paint(red, fmt.Sprintf(", %d errors, the first: %.80s", p.Failed, strings.ReplaceAll(p.FirstError.Error(), "\n", " ")))
	}
	return text
}
