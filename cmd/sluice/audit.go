package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/internal/audit"
	"github.com/sluice-project/sluice/internal/audit/model"
)

// auditFlags are the flags of `sluice audit`.
type auditFlags struct {
	addrs          []string
	discover       bool
	spec           auditSpec
	specs          []string
	domain         string
	inlineLimits   bool
	callers        int
	batch          []int
	rate           float64
	duration       time.Duration
	untilExhausted bool
	exhaustWithin  time.Duration
	attempt        time.Duration
	answerWithin   time.Duration
	clockError     time.Duration
	output         string
	log            string
	tls            clientTLS
	token          tokenFlags
}

// exhaustDenials is how often --until-exhausted wants every key denied: more than
// once, so that what a fault has given back shows.
const exhaustDenials = 3

func newAudit() *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Hammer a running cluster and say whether it keeps its limits",
		Long: `Hammer a running cluster and say whether it keeps its limits.

Callers ask for random keys at random nodes. A call that a node fails (it cannot be
reached, leaves, is lost or too slow) is sent to another one. In the end each key's
log is held against what its limit could have admitted. What is reported as over or
under quota is certain: where the times leave a doubt, the cluster gets the benefit.

  over quota   admitted above the limit; also without the answers of on_failure
  under quota  denied by a holder although units were free, even if every attempt
               that got no answer has been charged
  errors       checks without an answer within --answer-within
  longest gap  the longest time that checks of a key waited for its holder

The checks bring their limits and new keys with each run, so they need no rules and
disturb nobody. It spends what it can of the cluster: bound it with --rate.

To audit rules (for example with replication: sync, which limits of a check cannot
say), use --inline-limits=false, name the --domain and the --descriptor-key of the
rule, and repeat its limit in the flags or in --spec.

The last line is the verdict. A key that never reaches its limit shows nothing, so use
--until-exhausted, or have many more checks than --keys times --limit.

  PASS          at least nine in ten keys of each limit reached it, and nothing is wrong
  FAIL          over quota, under quota or errors
  INCONCLUSIVE  nothing is wrong, but fewer keys reached their limit, or --until-exhausted ran
                out of time

Exit codes: 0 PASS, 1 FAIL, 2 wrong usage, 3 nobody answers, 4 INCONCLUSIVE.`,
		Example: `  sluice audit --addr 127.0.0.1:7460 --discover --duration 10s --until-exhausted
  sluice audit --addr n1,n2,n3 --keys 1000 --limit 100 --period 1h --until-exhausted
  sluice audit --addr n1 --discover --spec algorithm=token_bucket,limit=50,period=1m \
      --spec algorithm=sliding_log,keys=100 --until-exhausted --log checks.jsonl -o json
  sluice audit --addr n1,n2,n3 --inline-limits=false --domain audit --descriptor-key user \
      --algorithm fixed_window --align epoch --limit 10 --period 1h --until-exhausted`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
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
	flags.IntVar(&f.callers, "callers", audit.DefaultCallers, "how many ask at the same time, each over its own connections")
	flags.IntSliceVar(&f.batch, "batch", []int{1}, "checks a call; of several numbers, each call draws one")
	flags.Float64Var(&f.rate, "rate", 0, "checks a second over all callers; 0: as fast as they can")
	flags.DurationVar(&f.duration, "duration", audit.DefaultDuration, "how long to ask")
	flags.BoolVar(&f.untilExhausted, "until-exhausted", false,
		fmt.Sprintf("then go on until every key was denied %d times more", exhaustDenials))
	flags.DurationVar(&f.exhaustWithin, "exhaust-within", audit.DefaultExhaust, "how long --until-exhausted may take")
	flags.DurationVar(&f.attempt, "attempt", audit.DefaultAttempt, "how long one call may take")
	flags.DurationVar(&f.answerWithin, "answer-within", audit.DefaultAnswerWithin, "how long a check is sent to one node after the other")
	flags.DurationVar(&f.clockError, "clock-error", audit.DefaultClockError, "how far the nodes' clocks may be from this machine's")
	f.tls.register(flags)
	f.token.register(flags)
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.StringVar(&f.log, "log", "", "`file` to write every check to, a line of JSON each")
	return cmd
}

func (f *auditFlags) run(ctx context.Context, out io.Writer) (err error) {
	if f.output != "text" && f.output != "json" {
		return usageError(fmt.Errorf("--output: %q is neither text nor json", f.output))
	}
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
			return &codedError{exitNoAnswer, err}
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
	report, err := audit.Run(ctx, c)
	if report != nil {
		if err := printAudit(out, f.output, report); err != nil {
			return &codedError{exitDenied, err}
		}
	}
	switch {
	case errors.Is(err, audit.ErrNobody):
		return &codedError{exitNoAnswer, err}
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

// config is all but the targets and the log.
func (f *auditFlags) config() (audit.Config, error) {
	c := audit.Config{
		Domain: f.domain, Rules: !f.inlineLimits, Callers: f.callers, Batches: f.batch, Rate: f.rate,
		Duration: f.duration, Attempt: f.attempt, AnswerWithin: f.answerWithin,
		Clocks: model.Clocks{Error: f.clockError, Drift: audit.DefaultDrift},
	}
	for flag, d := range map[string]time.Duration{
		"duration": f.duration, "attempt": f.attempt, "answer-within": f.answerWithin, "exhaust-within": f.exhaustWithin,
	} {
		if d <= 0 {
			return c, fmt.Errorf("--%s: %v; want more than 0", flag, d)
		}
	}
	if f.callers < 1 {
		return c, fmt.Errorf("--callers: %d; want 1 or more", f.callers)
	}
	if f.untilExhausted {
		c.Exhaust = audit.Exhaust{Denials: exhaustDenials, Within: f.exhaustWithin}
	}
	if len(f.specs) == 0 {
		s, err := f.spec.spec()
		if err != nil {
			return c, fmt.Errorf("--%w", err)
		}
		c.Specs = []audit.Spec{s}
		return c, nil
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
