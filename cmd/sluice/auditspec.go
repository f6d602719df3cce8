package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/audit"
)

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
	given := auditSpec{}
	given.register(flags)
	given = s
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
			return audit.Spec{}, fmt.Errorf("%s: %q: %w", name, value, err)
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
