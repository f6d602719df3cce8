package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

const bootstrapWarning = `This makes the node at %s found a new cluster, with itself as the only voter.
  - Counters that no living node has begin anew: every limit may be admitted once more.
  - If other nodes of the old cluster are alive behind a network partition, there are two clusters, each with the
    full limits. Stop them first, or mend the network.
Nodes that know no cluster, or have had no quorum for 5s, join the new one by themselves.
`

func newBootstrap() *cobra.Command {
	var f clientFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Found a new cluster with one node, after the loss of all others",
		Long: `Make a node that has no quorum, and can join no cluster, found a new one, with itself
as the only voter. Other nodes then join it.

Use it after a total loss: so many voters are gone for good, with their data
directories, that the rest will never be a majority, and there are fewer than --bootstrap-expect
nodes without a voter set. Counters that no living node has begin at zero. If
other nodes of the old cluster are alive, there are two clusters, each with the full
limits. Without --yes it asks first.

The node answers its operators, on its own machine, or with --callers those with the verb
admin.

Exit codes: 0 founded, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice members bootstrap\n" +
			"  kubectl exec sluice-0 -- /sluice members bootstrap --yes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := confirm(cmd, yes, fmt.Sprintf(bootstrapWarning, f.node())); err != nil {
				return err
			}
			resp, err := operate(cmd.Context(), &f, apiClient.Bootstrap, &adminv1alpha1.BootstrapRequest{})
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, "founded a new cluster\n"+setText(resp.VoterSet), jsonOf(resp))
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask first")
	return cmd
}

// confirm warns and, unless yes, asks; another answer than yes is a usage error.
func confirm(cmd *cobra.Command, yes bool, warning string) error {
	fmt.Fprint(cmd.ErrOrStderr(), warning)
	if yes {
		return nil
	}
	fmt.Fprint(cmd.ErrOrStderr(), `Type "yes" to go on: `)
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && err != io.EOF || strings.TrimSpace(line) != "yes" {
		return usageError(errors.New("not confirmed: nothing was done; answer yes, or give --yes"))
	}
	return nil
}

const acceptLossWarning = `This makes every node that the one at %s sees take lost counters for unspent.
  - Keys of rules with on_lost_state: deny whose counters are lost begin anew: every limit may be admitted once more.
  - If the nodes that have these counters are behind a network partition, mend the network instead: their counters come back.
`

func newAcceptLoss() *cobra.Command {
	var f clientFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-loss",
		Short: "Treat lost counters as unspent",
		Long: `Treat counters that were lost in takeovers without state as unspent: rules with
on_lost_state: deny admit their keys again, each up to its full limit.

Use it when the nodes that had the counters are gone for good and their keys must not be
denied until the windows end. "sluice members" shows the lost partitions, the rules that deny,
and for how much longer. The node forwards the command to all nodes that it sees. Repeat it for a node that
it does not see, or that takes over more such partitions later. Without --yes it asks first.

The node answers its operators, on its own machine, or with --callers those with the verb
admin.

Exit codes: 0 accepted, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice members accept-loss\n" +
			"  kubectl exec sluice-0 -- /sluice members accept-loss --yes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := confirm(cmd, yes, fmt.Sprintf(acceptLossWarning, f.node())); err != nil {
				return err
			}
			resp, err := operate(cmd.Context(), &f, apiClient.AcceptLoss, &adminv1alpha1.AcceptLossRequest{})
			if err != nil {
				return err
			}
			told := orDash(strings.Join(resp.Told, ", "))
			return write(cmd.OutOrStdout(), f.output, fmt.Sprintf("accepted the loss of %d partitions; told %s\n", resp.Partitions, told), jsonOf(resp))
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask first")
	return cmd
}

// lostText says how many partitions lost their counters, and which rules deny because of that.
func lostText(r *adminv1alpha1.MembersResponse) string {
	lost := r.GetPartitionCounts().GetLost()
	if lost == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "counters of %d partitions of %s are lost: bring back the nodes that had them, or `sluice members accept-loss`\n", lost, r.Self)
	for _, x := range r.LostRules {
		fmt.Fprintf(&b, "  %s denies units that may have been spent, for %v more at most\n", x.Rule, time.Duration(x.LeftNs).Round(time.Second))
	}
	return b.String()
}
