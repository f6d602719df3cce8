package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// topFlags are the flags of `sluice top`.
type topFlags struct {
	clientFlags
	by       string
	sort     string
	n        int32
	domain   string
	interval time.Duration
	once     bool
}

// topBys are the values of --by.
var topBys = map[string]adminv1alpha1.TopBy{"limited": adminv1alpha1.TopBy_TOP_BY_LIMITED, "frequent": adminv1alpha1.TopBy_TOP_BY_FREQUENT}

// topSorts are the values of --sort.
var topSorts = map[string]func(a, b *adminv1alpha1.TopKey) int{
	"rate":   func(a, b *adminv1alpha1.TopKey) int { return cmp.Compare(b.PerSecond, a.PerSecond) },
	"count":  func(a, b *adminv1alpha1.TopKey) int { return cmp.Compare(b.Count, a.Count) },
	"domain": func(a, b *adminv1alpha1.TopKey) int { return cmp.Compare(a.Domain, b.Domain) },
	"key": func(a, b *adminv1alpha1.TopKey) int {
		return cmp.Compare(descriptorText(a.Descriptor_), descriptorText(b.Descriptor_))
	},
}

// minInterval is the shortest time between two looks of a command.
const minInterval = 100 * time.Millisecond

func newTop() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the keys that are limited most, or checked most",
		Long: `Show the heaviest keys of all nodes over the last minute or so: on a terminal again and
again until q, otherwise once. Any node can be asked by its operators, on its own machine, or with
--callers by those with the verb read; one with --top-keys=on answers every client.

Counts are of checks (--by frequent) or of denied checks (--by limited). They are estimates
where checks are many: 700 (-3) says that the true count is lower by at most 3. SHARE is that of
the keys shown.

On the terminal, l and f show limited or frequent keys; r, c, d and k sort by rate, count, domain
or key.

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
	f.registerOperator(cmd, "text", "wide", "json")
	cmd.Flags().StringVar(&f.by, "by", "limited", "which keys: limited (the most denied checks) or frequent (the most checks)")
	cmd.Flags().StringVar(&f.sort, "sort", "rate", "the order of the keys: rate, count, domain or key")
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
	if topSorts[f.sort] == nil {
		return fmt.Errorf("--sort: %q is none of rate, count, domain, key", f.sort)
	}
	if f.n < 1 || f.n > limiter.MaxTop {
		return fmt.Errorf("--number: %d is not 1 to %d", f.n, limiter.MaxTop)
	}
	if f.interval < minInterval {
		return fmt.Errorf("--interval: %v is below %v", f.interval, minInterval)
	}
	return nil
}

// run shows the keys until q or the end of ctx, or once.
func (f *topFlags) run(ctx context.Context, out io.Writer) error {
	if tty, ok := terminal(out); ok && !f.once && f.output != "json" {
		return live(ctx, tty, f.interval, f)
	}
	by := f.by
	res, err := operate(ctx, &f.clientFlags, apiClient.Top, f.request())
	if err != nil {
		return err
	}
	j := jsonOf(res)
	j["by"] = by
	return write(out, f.output, f.text(by, res), j)
}

func (f *topFlags) request() *adminv1alpha1.TopRequest {
	return &adminv1alpha1.TopRequest{By: topBys[f.by], N: f.n, Domain: f.domain}
}

// ask implements view.
func (f *topFlags) ask() func(context.Context) (func() string, error) {
	by, req := f.by, f.request()
	return func(ctx context.Context) (func() string, error) {
		res, err := operate(ctx, &f.clientFlags, apiClient.Top, req)
		return func() string { return f.text(by, res) }, err
	}
}

func (f *topFlags) key(k byte) (again bool) {
	switch k {
	case 'l':
		f.by = "limited"
	case 'f':
		f.by = "frequent"
	case 'r', 'c', 'd', 'k':
		f.sort = map[byte]string{'r': "rate", 'c': "count", 'd': "domain", 'k': "key"}[k]
		return false
	}
	return true
}

func (f *topFlags) help() string {
	return "l limited  f frequent   sort by: r rate  c count  d domain  k key   q quit"
}

// text is the totals and the table of keys.
func (f *topFlags) text(by string, res *adminv1alpha1.TopResponse) string {
	var all float64
	for _, k := range res.Keys {
		all += k.PerSecond
	}
	what := map[string]string{"limited": "denied", "frequent": "checks"}[by]
	text := fmt.Sprintf("%s keys of the last %v: %s, %.1f %s/s together; from %s\n", by, time.Duration(res.CoversNs).Round(time.Second),
		plural(len(res.Keys), "key", "keys"), all, what, strings.Join(res.Nodes, ", "))
	if len(res.Missing) > 0 {
		text += paint(yellow, "no answer from "+strings.Join(res.Missing, ", ")) + "\n"
	}
	var table grid
	fmt.Fprint(&table, "PER SECOND\tSHARE\tDOMAIN\tKEY\tRULE")
	if f.output == "wide" {
		fmt.Fprintf(&table, "\t%s", strings.ToUpper(what))
	}
	keys := slices.Clone(res.Keys)
	slices.SortStableFunc(keys, topSorts[f.sort])
	for _, k := range keys {
		key := descriptorText(k.Descriptor_)
		if k.Cut {
			key += " …"
		}
		share := k.PerSecond / max(all, 1e-9)
		fmt.Fprintf(&table, "\n%.1f\t%s %2.0f%%\t%s\t%s\t%s", k.PerSecond, bar(share, 5), 100*share, printable(k.Domain), key, orDash(printable(k.Rule)))
		if f.output == "wide" {
			fmt.Fprintf(&table, "\t%d", k.Count)
			if k.Error > 0 {
				fmt.Fprintf(&table, " (-%d)", k.Error)
			}
		}
	}
	return text + table.String()
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
