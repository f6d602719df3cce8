package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/limiter"
	adminv1alpha1 "github.com/sluice-project/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// topFlags are the flags of `sluice top`.
type topFlags struct {
	clientFlags
	by       string
	n        int32
	domain   string
	interval time.Duration
	once     bool
}

// topBys are the values of --by.
var topBys = map[string]adminv1alpha1.TopBy{"limited": adminv1alpha1.TopBy_TOP_BY_LIMITED, "frequent": adminv1alpha1.TopBy_TOP_BY_FREQUENT}

func newTop() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the keys that are limited most, or checked most",
		Long: `Show the heaviest keys of all nodes over the last minute or so, again and again until
it is interrupted. Any node can be asked by its operators, on its own machine, or with
--callers by those with the verb read; one with --top-keys=on answers every client.

Counts are of checks (--by frequent) or of denied checks (--by limited). They are
estimates where checks are many; 700 -3 says that the true
count is lower by at most 3.

Exit codes: 0 answered, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice top\n" +
			"  sluice top --by frequent --domain api -n 50 --once\n" +
			"  kubectl exec sluice-0 -- /sluice top --once -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return usageError(err)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().StringVar(&f.by, "by", "limited", "the order of keys: limited (by denied checks) or frequent (by checks)")
	cmd.Flags().Int32VarP(&f.n, "number", "n", 20, "how many keys, 1 to 100")
	cmd.Flags().StringVar(&f.domain, "domain", "", "only keys of this `domain`")
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "time between two looks")
	cmd.Flags().BoolVar(&f.once, "once", false, "look once and end")
	return cmd
}

func (f *topFlags) validate() error {
	if _, ok := topBys[f.by]; !ok {
		return fmt.Errorf("--by: %q is neither limited nor frequent", f.by)
	}
	if f.n < 1 || f.n > limiter.MaxTop {
		return fmt.Errorf("--number: %d is not 1 to %d", f.n, limiter.MaxTop)
	}
	if f.interval < 100*time.Millisecond {
		return fmt.Errorf("--interval: %v is below 100ms", f.interval)
	}
	return nil
}

// run shows the keys until ctx ends.
func (f *topFlags) run(ctx context.Context, out io.Writer) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for {
		if err := f.show(ctx, out); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if f.once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// show asks once and prints the answer.
func (f *topFlags) show(ctx context.Context, out io.Writer) error {
	req := &adminv1alpha1.TopRequest{By: topBys[f.by], N: f.n, Domain: f.domain}
	res, err := operate(ctx, &f.clientFlags, apiClient.Top, req)
	if err != nil {
		return err
	}
	text := topText(f.by, res)
	if !f.once {
		text += "\n"
		if terminal(out) {
			text = "\x1b[H\x1b[2J" + text // to the corner, and clear the screen
		}
	}
	return write(out, f.output, text, topOf(f.by, res))
}

// topJSON is the answer of `sluice top -o json`. Covers is in seconds.
type topJSON struct {
	By      string       `json:"by"`
	Covers  float64      `json:"covers"`
	Keys    []topKeyJSON `json:"keys"`
	Nodes   []string     `json:"nodes"`
	Missing []string     `json:"missing"`
}

type topKeyJSON struct {
	Domain     string         `json:"domain"`
	Descriptor []topEntryJSON `json:"descriptor"`
	Rule       string         `json:"rule,omitempty"`
	Cut        bool           `json:"cut,omitempty"`
	Count      uint64         `json:"count"`
	Error      uint64         `json:"error,omitempty"`
	PerSecond  float64        `json:"per_second"`
}

type topEntryJSON struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func topOf(by string, res *adminv1alpha1.TopResponse) topJSON {
	top := topJSON{by, seconds(res.CoversNs), make([]topKeyJSON, len(res.Keys)), orEmpty(res.Nodes), orEmpty(res.Missing)}
	for i, k := range res.Keys {
		top.Keys[i] = topKeyJSON{k.Domain, entriesOf(k.Descriptor_), k.Rule, k.Cut, k.Count, k.Error, k.PerSecond}
	}
	return top
}

// orEmpty is list, which JSON shall not have as null.
func orEmpty(list []string) []string { return append([]string{}, list...) }

// topText is the table of keys.
func topText(by string, res *adminv1alpha1.TopResponse) string {
	var b strings.Builder
	count := map[string]string{"limited": "DENIED", "frequent": "CHECKS"}[by]
	fmt.Fprintf(&b, "most %s keys of the last %v, by %s\n", by, time.Duration(res.CoversNs).Round(time.Second), strings.Join(res.Nodes, ", "))
	if len(res.Missing) > 0 {
		fmt.Fprintf(&b, "without %s\n", strings.Join(res.Missing, ", "))
	}
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "PER SECOND\t%s\tDOMAIN\tKEY\tRULE\n", count)
	for _, k := range res.Keys {
		n := fmt.Sprint(k.Count)
		if k.Error > 0 {
			n += fmt.Sprintf(" -%d", k.Error)
		}
		key := descriptorText(k.Descriptor_)
		if k.Cut {
			key += " …"
		}
		fmt.Fprintf(table, "%.1f\t%s\t%s\t%s\t%s\n", k.PerSecond, n, printable(k.Domain), key, printable(k.Rule))
	}
	table.Flush()
	return b.String()
}

// descriptorText spells a descriptor as `sluice check` takes it.
func descriptorText(descriptor []*sluicev1.Entry) string {
	parts := make([]string, len(descriptor))
	for i, e := range descriptor {
		parts[i] = printable(e.Key + "=" + e.Value)
	}
	return strings.Join(parts, " ")
}

// printable quotes texts of clients that would break a table or control a terminal.
func printable(s string) string {
	quoted := fmt.Sprintf("%q", s)
	if quoted == `"`+s+`"` && !strings.Contains(s, " ") {
		return s
	}
	return quoted
}
