package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
)

func newRules() *cobra.Command {
	var options rules.Options
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Validate, test and explain rule files without a node",
		Args:  onlyCommands,
		RunE:  helpOnly,
	}
	cmd.PersistentFlags().BoolVar(&options.MergeDomains, "merge-domains", false, "allow several rule files for one domain")
	cmd.AddCommand(newRulesCheck(&options), newRulesTest(&options), newRulesExplain(&options))
	return cmd
}

func newRulesCheck(options *rules.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check PATH",
		Short: "Validate the rules and list them",
		Long: `Validate the rules at PATH and list them. PATH is a file or a directory, of which the
files *.yaml and *.yml are read, those of directories below it too. Other files there are listed as
warnings: their limits would not be in force. Files called *_test.yaml hold test cases, see rules test.

Exit codes: 0 valid, 1 an error in a file, 2 wrong usage.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, skipped, err := rulefiles.Load(args[0], *options)
			if err != nil {
				return &codedError{exitDenied, err}
			}
			out := cmd.OutOrStdout()
			var list grid
			fmt.Fprintln(&list, "DOMAIN\tRULE\tLIMITS")
			for _, r := range set.Rules() {
				fmt.Fprintf(&list, "%s\t%s\t%s\n", r.Domain, r.Name, describe(r))
			}
			fmt.Fprint(out, list.String())
			for _, w := range set.Warnings() {
				fmt.Fprintf(out, "warning: %v\n", w)
			}
			for _, s := range skipped {
				fmt.Fprintf(out, "warning: not read: %v\n", s)
			}
			if tests, err := rulefiles.ReadTests(args[0]); err == nil && len(tests) > 0 {
				fmt.Fprintf(out, "%s called *_test.yaml, for sluice rules test\n", plural(len(tests), "file", "files"))
			}
			fmt.Fprintf(out, "%d domains, %d rules: valid\n", len(set.Domains()), len(set.Rules()))
			return nil
		},
	}
}

func newRulesTest(options *rules.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "test PATH",
		Short: "Run the test cases that stand beside the rules",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, _, err := rulefiles.Load(args[0], *options)
			if err != nil {
				return &codedError{exitDenied, err}
			}
			files, err := rulefiles.ReadTests(args[0])
			if err != nil {
				return &codedError{exitDenied, err}
			}
			results, err := ruletest.Run(set, files)
			if err != nil {
				return &codedError{exitDenied, err}
			}
			return printTests(cmd.OutOrStdout(), results)
		},
	}
}

func printTests(out io.Writer, results []ruletest.Result) error {
	failed := 0
	for _, r := range results {
		if r.Passed() {
			fmt.Fprintf(out, "ok    %s:%d %s (%d steps)\n", r.File, r.Line, r.Name, r.Steps)
			continue
		}
		failed++
		fmt.Fprintf(out, "FAIL  %s:%d %s\n", r.File, r.Line, r.Name)
		for _, f := range r.Failures {
			fmt.Fprintf(out, "      %v\n", f)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", len(results)-failed, failed)
	switch {
	case len(results) == 0:
		return &codedError{exitDenied, errors.New("there are no test cases: they stand in files called *_test.yaml beside the rules")}
	case failed > 0:
		return &codedError{code: exitDenied}
	}
	return nil
}

func newRulesExplain(options *rules.Options) *cobra.Command {
	var domain string
	cmd := &cobra.Command{
		Use:   "explain PATH --domain DOMAIN KEY=VALUE...",
		Short: "Explain which rule applies to a descriptor",
		Long: `Explain which rule applies to a descriptor, and why.

Exit codes: 0 a rule applies, 1 an error in a file, 2 wrong usage, 4 not limited: no rule matches.`,
		Example: "  sluice rules explain examples/rules --domain auth auth_type=login user=me",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, _, err := rulefiles.Load(args[0], *options)
			if err != nil {
				return &codedError{exitDenied, err}
			}
			if domain == "" {
				if all := set.Domains(); len(all) == 1 {
					domain = all[0]
				} else {
					return usageError(fmt.Errorf("--domain: required, one of %s", strings.Join(all, ", ")))
				}
			}
			entries, err := parseDescriptor(args[1:])
			if err != nil {
				return usageError(err)
			}
			descriptor := make([]rules.Entry, len(entries))
			for i, e := range entries {
				descriptor[i] = rules.Entry{Key: e.Key, Value: e.Value}
			}
			x := set.Explain(domain, descriptor)
			printExplanation(cmd.OutOrStdout(), x, descriptor)
			if x.Rule != nil {
				return nil
			}
			why := unmatched{reason: x.Reason}
			if !x.Known {
				why.domains = set.Domains()
			}
			verdict := "not limited"
			if set.Unmatched(domain) == rules.UnmatchedDeny {
				verdict = "denied"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no rule matches%s\n", verdict, why)
			return &codedError{code: exitNoVerdict}
		},
	}
	cmd.Flags().StringVar(&domain, "domain", "", "`domain` of the rules (default: the only one there is)")
	return cmd
}

func printExplanation(out io.Writer, x rules.Explanation, descriptor []rules.Entry) {
	for i, level := range x.Levels {
		fmt.Fprintf(out, "level %d: %s=%s\n", i+1, level.Entry.Key, level.Entry.Value)
		for _, try := range level.Tries {
			mark, where := "no ", ""
			if try.Matched {
				mark = "yes"
			}
			if try.Line > 0 {
				where = fmt.Sprintf("  (%s:%d)", try.File, try.Line)
			}
			fmt.Fprintf(out, "  %s  by %s: %s%s\n", mark, try.How, try.Written, where)
		}
	}
	if x.Rule != nil {
		fmt.Fprintln(out, x.Reason)
		fmt.Fprintf(out, "rule %s: %s\n", x.Rule.Name, describe(x.Rule))
		if e := x.Rule.Elastic; e != nil {
			fmt.Fprintf(out, "beyond that: %s\n", describeElastic(e, descriptor))
		}
	}
}

// describeElastic says in a line how many units a pool gives to descriptor.
func describeElastic(e *rules.Elastic, descriptor []rules.Entry) string {
	p := e.Pool
	text := fmt.Sprintf("pool %s, %s", p.Name, describeLimit(p.Limits(0).At(0)))
	if names := p.Priorities(); names != nil {
		at := e.Priority(descriptor)
		text += fmt.Sprintf(", with priority %s, which leaves %d free", names[at], p.Reserve(at, 0))
	}
	if p.FollowsLoad {
		text += fmt.Sprintf("; at full load %d", p.Limits(rules.LoadSteps).At(0).Count)
	}
	return text
}

// describe says in a line what the limits of a rule are.
func describe(r *rules.Rule) string {
	text := "unlimited"
	if !r.Unlimited && r.Limits == nil {
		text = "no limit"
	} else if !r.Unlimited {
		text = describeLimit(r.Limits.At(0))
		for i := 1; i < r.Limits.Len(); i++ {
			text += " and " + describeLimit(r.Limits.At(i))
		}
	}
	if r.Shadow {
		text += ", shadow"
	}
	return text
}

func describeLimit(l bucket.Limit) string {
	if l.Unlimited {
		return "unlimited"
	}
	period := "in " + exact(l.Period)
	if l.Algorithm == bucket.Concurrency {
		period = "at a time"
	} else if l.Align == bucket.AlignCalendar {
		period = fmt.Sprintf("each calendar %v", l.Unit)
		if l.Zone != "" {
			period += " in " + l.Zone
		}
	}
	text := fmt.Sprintf("%d %s (%s", l.Count, period, strings.ReplaceAll(l.Algorithm.String(), "_", " "))
	if l.Burst > 0 {
		text += fmt.Sprintf(", burst %d", l.Burst)
	}
	if l.MinInterval > 0 {
		text += fmt.Sprintf(", at least %v apart", l.MinInterval)
	}
	if l.BlockFor > 0 {
		text += fmt.Sprintf(", blocks for %v", l.BlockFor)
	}
	if l.Soft > 0 {
		text += fmt.Sprintf(", %d %% soft", l.Soft)
	}
	return text + ")"
}
