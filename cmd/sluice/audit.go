package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/internal/audit/model"
)

// auditFlags are the flags of `sluice audit`.
type auditFlags struct {
	addrs, specs        []string
	spec                auditSpec
	domain, output, log string
	discover            bool
	inlineLimits        bool
	callers             int
	batch               []int
	rate                float64
	untilExhausted      bool
	duration, attempt   time.Duration
	exhaustWithin       time.Duration
	answerWithin        time.Duration
	clockError          time.Duration
	tls                 clientTLS
	token               tokenFlags
}

// exhaustDenials is how often --until-exhausted wants every key denied: more than once, to see units that an error gives back.
const exhaustDenials = 3

func newAudit() *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Load a running cluster with checks and report whether it keeps its limits",
		Long: `Load a running cluster with checks and report whether it keeps its limits.

Callers check random keys at random nodes. A call that a node fails (it cannot be
reached, leaves, is lost or too slow) is sent to another one. In the end each key's
log is compared with what its limit could have admitted. A key is reported as over or
under quota only if that is certain: in doubt, the cluster has kept its limit.

  over quota   admitted above the limit; also without the answers of on_failure
  under quota  denied by an owner although units were free, even if every attempt
               that got no answer has been charged
  errors       checks without an answer within --answer-within
  longest gap  the longest time that checks of a key waited for its owner

The checks bring their limits and new keys with each run, so they need no rules and
spend no other client's units. They load the cluster fully: bound that with --rate.

To audit rules (for example with replication: sync, which limits of a check cannot
say), use --inline-limits=false, name the --domain and the --descriptor-key of the
rule, and repeat its limit in the flags or in --spec.

The last line is the verdict. A key that never reaches its limit proves nothing, so use
--until-exhausted, or have many more checks than --keys times --limit.

  PASS          at least nine in ten keys of each limit reached it, and nothing is wrong
  FAIL          over quota, under quota or errors
  INCONCLUSIVE  nothing is wrong, but fewer keys reached their limit, or --until-exhausted ran
                out of time

Exit codes: 0 PASS, 1 FAIL, 2 wrong usage, 3 no node answers, 4 INCONCLUSIVE.`,
		Example: `  sluice audit --addr 127.0.0.1:7460 --discover --duration 10s --until-exhausted
  sluice audit --addr n1,n2,n3 --keys 1000 --limit 100 --period 1h --until-exhausted
  sluice audit --addr n1 --discover --spec algorithm=token_bucket,limit=50,period=1m \
      --spec algorithm=sliding_log,keys=100 --until-exhausted --log checks.jsonl -o json
  sluice audit --addr n1,n2,n3 --inline-limits=false --domain audit --descriptor-key user \
      --algorithm fixed_window --align epoch --limit 10 --period 1h --until-exhausted`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&f.addrs, "addr", []string{"127.0.0.1:7460"}, "gRPC `addresses` of the nodes; without a port, 7460")
	flags.BoolVar(&f.discover, "discover", false, "ask the first address for all nodes, every second and when one fails")
	f.spec.register(flags)
	flags.StringArrayVar(&f.specs, "spec", nil, "audit several limits at once, each as `key=value,...` of the flags above, which are the defaults; "+
		"descriptor stands for --descriptor-key")
	flags.StringVar(&f.domain, "domain", "audit", "`domain` of the checks")
	flags.BoolVar(&f.inlineLimits, "inline-limits", true, "checks bring their limits; false: the servers' rules hold them")
	flags.IntVar(&f.callers, "concurrency", audit.DefaultCallers, "how many callers check at the same time, each over its own connections")
	flags.IntSliceVar(&f.batch, "batch", []int{1}, "checks a call; of several numbers, each call draws one")
	flags.Float64Var(&f.rate, "rate", 0, "checks a second in all; 0: as fast as they can")
	flags.DurationVar(&f.duration, "duration", audit.DefaultDuration, "how long to check")
	flags.BoolVar(&f.untilExhausted, "until-exhausted", false, fmt.Sprintf("then go on until every key was denied %d times more", exhaustDenials))
	flags.DurationVar(&f.exhaustWithin, "exhaust-within", audit.DefaultExhaust, "how long --until-exhausted may take")
	flags.DurationVar(&f.attempt, "attempt", audit.DefaultAttempt, "how long one call may take")
	flags.DurationVar(&f.answerWithin, "answer-within", audit.DefaultAnswerWithin, "how long a check is sent to one node after the other")
	flags.DurationVar(&f.clockError, "clock-error", audit.DefaultClockError, "how far the nodes' clocks may be from this machine's")
	f.tls.register(flags)
	f.token.register(flags)
	registerOutput(flags, &f.output)
	flags.StringVar(&f.log, "log", "", "`file` to write every check to, a line of JSON each")
	return cmd
}

func (f *auditFlags) run(ctx context.Context, out, stderr io.Writer) (err error) {
	c, err := f.config()
	if err != nil {
		return usageError(err)
	}
	targets := make([]string, len(f.addrs))
	for i, a := range f.addrs {
		targets[i] = withPort(a, defaultGRPCPort)
	}
	if len(targets) == 0 {
		return usageError(errors.New("--addr: give at least one address"))
	}
	c.Targets = func() []string { return targets }
	secured, err := f.tls.dialOption()
	if err != nil {
		return usageError(err)
	}
	c.DialOptions = append(f.token.dialOptions(), secured)
	if err := c.Validate(); err != nil {
		return usageError(err)
	}
	if f.discover {
		d, err := audit.Discover(ctx, targets, f.answerWithin, c.DialOptions...)
		if err != nil {
			return noAnswer(strings.Join(targets, ", "), err)
		}
		defer d.Close()
		c.Targets, c.Failed = d.Targets, d.Failed
	}
	if f.log != "" {
		file, err := os.Create(f.log)
		if err != nil {
			return usageError(fmt.Errorf("--log: %w", err))
		}
		c.Log = file
		defer func() {
			if closed := file.Close(); closed != nil && err == nil {
				err = &codedError{exitDenied, fmt.Errorf("--log: %w", closed)}
			}
		}()
	}
	line := newProgress(stderr)
	if line.out != nil {
		c.Progress = func(p audit.Progress) { line.show(p.Elapsed, p.All, auditProgress(p)) }
	}
	report, err := audit.Run(ctx, c)
	line.clear()
	if report != nil {
		v := struct {
			Verdict audit.Verdict `json:"verdict"`
			*audit.Report
		}{report.Verdict(), report}
		if err := write(out, f.output, auditText(report), v); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, audit.ErrNoNode):
		return noAnswer(strings.Join(targets, ", "), err)
	case err != nil:
		return &codedError{exitDenied, err}
	}
	switch report.Verdict() {
	case audit.Fail:
		return &codedError{code: exitDenied}
	case audit.Inconclusive:
		return &codedError{code: exitNoVerdict}
	}
	return nil
}

// config returns the configuration without targets and log.
func (f *auditFlags) config() (audit.Config, error) {
	c := audit.Config{
		Domain: f.domain, Rules: !f.inlineLimits, Callers: f.callers, Batches: f.batch, Rate: f.rate,
		Duration: f.duration, Attempt: f.attempt, AnswerWithin: f.answerWithin,
		Clocks: model.Clocks{Error: f.clockError, Drift: audit.DefaultDrift},
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"duration", f.duration}, {"attempt", f.attempt}, {"answer-within", f.answerWithin}, {"exhaust-within", f.exhaustWithin},
	} {
		if d.value <= 0 {
			return c, fmt.Errorf("--%s: %v; want more than 0", d.flag, d.value)
		}
	}
	if f.callers < 1 {
		return c, fmt.Errorf("--concurrency: %d; want 1 or more", f.callers)
	}
	if f.untilExhausted {
		c.Exhaust = audit.Exhaust{Denials: exhaustDenials, Within: f.exhaustWithin}
	}
	if len(f.specs) == 0 {
		s, err := f.spec.spec()
		if err != nil {
			return c, fmt.Errorf("--%w", err)
		}
		c.Specs = append(c.Specs, s)
	}
	for _, text := range f.specs {
		s, err := f.spec.parse(text)
		if err != nil {
			return c, fmt.Errorf("--spec %s: %w", text, err)
		}
		c.Specs = append(c.Specs, s)
	}
	return c, nil
}

// auditSpec is one limit to audit, as flags and --spec spell it.
type auditSpec struct {
	keys             int
	limit, burst     int64
	period           time.Duration
	algorithm, align string
	descriptor       string
}

// register defines the flags of a spec, which are the defaults of --spec too.
func (s *auditSpec) register(flags *pflag.FlagSet) {
	flags.IntVar(&s.keys, "keys", 1000, "how many keys to audit")
	flags.Int64Var(&s.limit, "limit", 10, "units admitted a period, of each key")
	flags.DurationVar(&s.period, "period", time.Hour, "the limit's period")
	flags.StringVar(&s.algorithm, "algorithm", bucket.FixedWindow.String(), "token_bucket, leaky_bucket, leaky_queue, fixed_window, "+
		"sliding_log, sliding_counter or sliding_window")
	flags.StringVar(&s.align, "align", "", "fixed_window: first_hit or epoch (default first_hit)")
	flags.Int64Var(&s.burst, "burst", 0, "capacity of buckets (default the limit)")
	flags.StringVar(&s.descriptor, "descriptor-key", "key", "`key` of the descriptor's only entry")
}

// parse reads key=value pairs over the defaults in s.
func (s auditSpec) parse(text string) (audit.Spec, error) {
	// The names of a spec are those of flags, so that flags can read the values.
	flags := pflag.NewFlagSet("spec", pflag.ContinueOnError)
	var given auditSpec
	given.register(flags)
	given = s // in place of the flags' defaults
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return audit.Spec{}, fmt.Errorf("%q: want key=value", pair)
		}
		if name == "descriptor" {
			name = "descriptor-key"
		}
		f := flags.Lookup(name)
		if f == nil {
			return audit.Spec{}, fmt.Errorf("%q is none of keys, limit, period, algorithm, align, burst, descriptor", name)
		}
		if f.Changed {
			return audit.Spec{}, fmt.Errorf("%s: given twice", name)
		}
		if err := flags.Set(name, value); err != nil {
			return audit.Spec{}, explainValue(err)
		}
	}
	if flags.Changed("algorithm") {
		// Defaults that are for other algorithms.
		if given.algorithm != bucket.FixedWindow.String() && !flags.Changed("align") {
			given.align = ""
		}
		if !strings.HasPrefix(given.algorithm, "leaky_") && given.algorithm != bucket.TokenBucket.String() && !flags.Changed("burst") {
			given.burst = 0
		}
	}
	return given.spec()
}

// spec returns s for the audit. The error begins with the name of the field.
func (s auditSpec) spec() (audit.Spec, error) {
	out := audit.Spec{Keys: s.keys, Descriptor: s.descriptor, Limit: bucket.Limit{Count: s.limit, Period: s.period, Burst: s.burst}}
	l := &out.Limit
	if err := l.Algorithm.UnmarshalText([]byte(s.algorithm)); err != nil {
		return out, fmt.Errorf("algorithm: %w", err)
	}
	align := s.align
	if align == "" && l.Algorithm == bucket.FixedWindow {
		align = bucket.AlignFirstHit.String()
	}
	if align != "" {
		if err := l.Align.UnmarshalText([]byte(align)); err != nil {
			return out, fmt.Errorf("align: %w", err)
		}
	}
	if l.Algorithm == bucket.SlidingLog && l.Count > bucket.DefaultLogEntries {
		l.LogEntries = int32(min(l.Count, bucket.MaxLogEntries))
	}
	if s.keys < 1 {
		return out, fmt.Errorf("keys: %d; want 1 or more", s.keys)
	}
	if s.descriptor == "" {
		return out, fmt.Errorf("descriptor-key: is empty")
	}
	return out, nil
}
