package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

// statusFlags are the flags of `sluice status`.
type statusFlags struct {
	clientFlags
	watch    bool
	interval time.Duration
	last     limiter.HealthStatus // that was shown
}

// statusKeys is how many of the most denied keys `sluice status` shows.
const statusKeys = 5

func newStatus() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the cluster on one screen",
		Long: `Show the health of the cluster on one screen: the cause and the page to read if it is not
healthy, then quorum, replicas, rules, clock and certificates of each node, and the keys
that are denied most. The node asks all others. It answers its operators, on its own machine,
or with --callers those with the verb read.

  Healthy      the cluster decides as it is configured; notices may say what it runs without
  Stale rules  nodes have different rules, or older ones than their files
  Degraded     nodes, replicas, clocks or certificates need attention
  No quorum    this node may not decide: on_partition does

Exit codes: 0 healthy, 1 no quorum, 2 wrong usage, 3 no answer, 4 degraded or stale rules.`,
		Example: "  sluice status\n" +
			"  sluice status --watch\n" +
			"  kubectl exec sluice-0 -- /sluice status -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.interval < minInterval {
				return usageError(fmt.Errorf("--interval: %v is below %v", f.interval, minInterval))
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.registerOperator(cmd, "text", "wide", "json")
	cmd.Flags().BoolVar(&f.watch, "watch", false, "show it again and again, until q")
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "time between two looks of --watch")
	return cmd
}

func (f *statusFlags) run(ctx context.Context, out io.Writer) error {
	if tty, ok := terminal(out); ok && f.watch && f.output != "json" {
		if err := live(ctx, tty, f.interval, f); err != nil {
			return err
		}
	} else {
		r, top, err := f.get(ctx)
		if err != nil {
			return err
		}
		f.last = limiter.HealthStatus(r.GetMembers().GetHealth().GetStatus())
		if err := write(out, f.output, statusText(r, top, f.output == "wide"), statusOf(r, top)); err != nil {
			return err
		}
	}
	switch f.last {
	case limiter.Healthy, "":
		return nil
	case limiter.NoQuorum:
		return &codedError{code: exitDenied}
	}
	return &codedError{code: exitNoVerdict}
}

// get asks the node. Where it counts no keys, top has none.
func (f *clientFlags) get(ctx context.Context) (r *adminv1alpha1.StatusResponse, top *adminv1alpha1.TopResponse, err error) {
	if r, err = operate(ctx, f, apiClient.Status, &adminv1alpha1.StatusRequest{}); err != nil {
		return nil, nil, err
	}
	top, _ = operate(ctx, f, apiClient.Top, &adminv1alpha1.TopRequest{N: statusKeys}) // the rest stands without it
	return r, top, nil
}

// ask implements view.
func (f *statusFlags) ask() func(context.Context) (func() string, error) {
	return func(ctx context.Context) (func() string, error) {
		r, top, err := f.get(ctx)
		return func() string {
			f.last = limiter.HealthStatus(r.GetMembers().GetHealth().GetStatus())
			return statusText(r, top, f.output == "wide")
		}, err
	}
}

func (f *statusFlags) key(k byte) bool { return k == ' ' }

func (f *statusFlags) help() string { return "space look now   q quit" }

// statusOf is what is printed as JSON.
func statusOf(r *adminv1alpha1.StatusResponse, top *adminv1alpha1.TopResponse) map[string]any {
	j := jsonOf(r)
	j["health"], j["top"] = jsonOf(r.GetMembers().GetHealth()), jsonOf(top)["keys"]
	return j
}

// severityColours are those of causes, and of the summary: the worst cause's.
var severityColours = map[string]string{string(limiter.Critical): red, string(limiter.Warning): yellow, string(limiter.Notice): dim}

// healthLine is the first line of status and members.
func healthLine(h *adminv1alpha1.Health) string {
	if h == nil {
		return "" // of an older version
	}
	colour := green
	if h.Status != string(limiter.Healthy) && len(h.Causes) > 0 {
		colour = severityColours[h.Causes[0].Severity]
	}
	word, rest, _ := strings.Cut(h.Summary, ":")
	return paint(colour, word) + ":" + rest + "\n"
}

// causesText lists the causes, each with the page to read, in no more than 80 columns. The text of the first is in the healthLine.
func causesText(h *adminv1alpha1.Health) string {
	var b strings.Builder
	for i, c := range h.GetCauses() {
		_, page, _ := strings.Cut(c.Doc, "/docs/")
		doc := "docs/" + page
		if i == 0 && h.Status != string(limiter.Healthy) {
			b.WriteString("  see " + doc + "\n")
			continue
		}
		label := fmt.Sprintf("  %-10s", strings.ToUpper(c.Severity))
		b.WriteString(paint(severityColours[c.Severity], label) + wrap(c.Text+"; see "+doc, 67, strings.Repeat(" ", len(label))) + "\n")
	}
	return b.String()
}

// statusText is the screen.
func statusText(r *adminv1alpha1.StatusResponse, top *adminv1alpha1.TopResponse, wide bool) string {
	m := r.GetMembers()
	reports := make(map[string]*adminv1alpha1.NodeReport, len(r.Nodes))
	for _, n := range r.Nodes {
		reports[n.Name] = n
	}
	var nodes grid
	fmt.Fprint(&nodes, "NODE\tSTATE\tQUORUM\tOWNED\tUNPROTECTED\tRULES\tCLOCK\tCERTIFICATE")
	if wide {
		fmt.Fprint(&nodes, "\tVERSION\tZONE\tGRPC\tHTTP\tREPLICAS\tBELOW\tHANDING OVER\tTAKING OVER")
	}
	for _, x := range m.GetMembers() {
		name, state := x.Name, x.State
		if x.Name == m.Self {
			name += " *"
		}
		if !x.Alive {
			state = paint(red, "silent")
			if x.SilentNs != nil {
				state = paint(red, "silent "+brief(time.Duration(*x.SilentNs)))
			}
		}
		quorum, unprotected, rules, certificate := "-", "-", "-", "-"
		n := reports[x.Name]
		if n != nil {
			quorum, unprotected = paint(red, "no"), fmt.Sprint(n.GetPartitionCounts().GetUnprotected())
			if n.MayDecide {
				quorum = "yes"
			}
			rules, certificate = orDash(n.Rules[:min(len(n.Rules), 8)]), certificateText(n)
			if n.RulesError != "" {
				rules = paint(yellow, rules+" (old)")
			}
		}
		clock := "-"
		if x.ClockAheadNs != nil {
			clock = fmt.Sprintf("%+.3fs", seconds(*x.ClockAheadNs))
		}
		fmt.Fprintf(&nodes, "\n%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", name, state, quorum, x.Owned, unprotected, rules, clock, certificate)
		if wide {
			p := n.GetPartitionCounts()
			fmt.Fprintf(&nodes, "\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d", orDash(x.Version), orDash(x.Zone), orDash(x.GrpcAddress), orDash(x.HttpAddress),
				p.GetReplicas(), p.GetBelowReplicas(), p.GetHandingOver(), p.GetTakingOver())
		}
	}
	text := healthLine(m.GetHealth()) + causesText(m.GetHealth()) + "\n" + nodes.String() + setText(m.GetVoterSet()) + regionsText(r.Nodes)
	switch {
	case top == nil:
		return text + "\nmost denied keys: not counted or not shown (--top-keys)\n"
	case len(top.Keys) == 0:
		return text + fmt.Sprintf("\nno key was denied in the last %v\n", time.Duration(top.CoversNs).Round(time.Second))
	}
	var keys grid
	fmt.Fprint(&keys, "DENIED/S\tMOST DENIED KEY\tRULE\n")
	for _, k := range top.Keys {
		fmt.Fprintf(&keys, "%.1f\t%s %s\t%s\n", k.PerSecond, printable(k.Domain), descriptorText(k.Descriptor_), orDash(printable(k.Rule)))
	}
	return text + "\n" + keys.String()
}

// regionsText lists the regions, one row each: from how many nodes it is linked, and what one of the others says.
func regionsText(reports []*adminv1alpha1.NodeReport) string {
	nodes := make([]facts.Node, len(reports))
	for i, n := range reports {
		nodes[i] = facts.Node{Name: n.Name, Region: n.Region, Decides: n.Decides, DecidedBy: n.DecidedBy, RoleProblem: n.RoleProblem, Weight: int(n.RegionWeight)}
		for _, r := range n.Regions {
			var names []string
			for _, name := range r.Nodes {
				names = append(names, printable(name))
			}
			nodes[i].Regions = append(nodes[i].Regions, facts.Region{
				Name: r.Name, State: facts.RegionState(r.State), InState: time.Duration(r.InStateNs), Nodes: names, RTT: time.Duration(r.RttNs), Reason: r.Reason,
				Weight: int(r.Weight), DecidedBy: r.DecidedBy,
			})
		}
	}
	list := facts.RegionsOf(nodes)
	if list == nil {
		return ""
	}
	var g grid
	for _, r := range list {
		by := orDash(printable(r.DecidedBy))
		if r.Undecided {
			by = paint(red, "no region")
		}
		if r.Self {
			fmt.Fprint(&g, "REGION\tSTATE\tWEIGHT\tLINKED FROM\tNODES REACHED\tRTT\tKEYS DECIDED BY\tREASON")
			fmt.Fprintf(&g, "\n%s *\t-\t%d\t-\t-\t-\t%s\t%s", printable(r.Name), r.Weight, by, orDash(r.Reason))
			continue
		}
		state := string(r.State)
		if r.State == facts.RegionUnreached || r.State == facts.RegionUnusable {
			state = paint(red, state+" "+brief(r.InState))
		}
		fmt.Fprintf(&g, "\n%s\t%s\t%d\t%d of %d\t%s\t%v\t%s\t%s", printable(r.Name), state, r.Weight, r.Linked, r.Of, orDash(strings.Join(r.Nodes, " ")),
			r.RTT.Round(100*time.Microsecond), by, orDash(r.Reason))
	}
	return "\n" + g.String()
}

// certificateText says when the first certificate of a node expires, and what is not in force.
func certificateText(n *adminv1alpha1.NodeReport) string {
	text, first := "-", int64(0)
	for _, x := range n.Files {
		if x.Expires != 0 && (first == 0 || x.Expires < first) {
			first = x.Expires
			text = x.Label + " " + brief(time.Until(time.Unix(x.Expires, 0)))
		}
	}
	return text
}
