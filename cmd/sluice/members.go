package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

func newMembers() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the cluster as one node sees it",
		Long: `List the cluster as one node sees it. Nodes that agree print the same ring.

A majority of the voters must be alive for any node to decide at full limit. ASSIGNED is
the number of partitions that the ring assigns to a member, OWNED the number that it owns
as far as this node knows.

Exit codes: 0 answered, 2 wrong usage, 3 no answer.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := ask(cmd.Context(), &f, apiClient.Members, &adminv1alpha1.MembersRequest{})
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, membersText(resp, f.output == "wide"), jsonOf(resp))
		},
	}
	f.registerOperator(cmd, "text", "wide", "json")
	cmd.AddCommand(newForget(), newBootstrap(), newAcceptLoss())
	return cmd
}

func newForget() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "Take a member that is gone for good out of the voter set",
		Long: `Take a member out of the voter set without a vote, on one node. Forget only a process that
is gone for good: behind a network partition, both sides could decide at full limit.

Missing members are voted out by the others after --forget-after. This command is for when
there is no majority left to vote, as in a cluster of two. The node answers its operators,
on its own machine, or with --callers those with the verb admin.

Exit codes: 0 forgotten, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice members forget n2\n" +
			"  kubectl exec sluice-0 -- /sluice members forget sluice-1",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := operate(cmd.Context(), &f, apiClient.ForgetMember, &adminv1alpha1.ForgetMemberRequest{Name: args[0]})
			if err != nil {
				return err
			}
			j := jsonOf(resp)
			j["forgotten"] = args[0]
			return write(cmd.OutOrStdout(), f.output, fmt.Sprintf("forgot %s\n%s", args[0], setText(resp.VoterSet)), j)
		},
	}
	f.registerOperator(cmd)
	return cmd
}

// membersText is the health, a table of the members, and how the node that answers stands.
func membersText(r *adminv1alpha1.MembersResponse, wide bool) string {
	var w grid
	fmt.Fprint(&w, "NAME\tSTATE\tVOTER\tALIVE\tASSIGNED\tOWNED\tGRPC\tVERSION")
	if wide {
		fmt.Fprint(&w, "\tHTTP\tPEER\tGOSSIP\tZONE\tBOOT")
	}
	for _, m := range r.Members {
		name, voter := m.Name, "no"
		if m.Name == r.Self {
			name += " *"
		}
		if m.Voter {
			voter = "yes"
		}
		fmt.Fprintf(&w, "\n%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s", name, m.State, voter, aliveText(m), m.Partitions, m.Owned, orDash(m.GrpcAddress), orDash(m.Version))
		if wide {
			fmt.Fprintf(&w, "\t%s\t%s\t%s\t%s\t%s", orDash(m.HttpAddress), orDash(m.PeerAddress), orDash(m.GossipAddress), orDash(m.Zone), orDash(m.Boot))
		}
	}
	var b strings.Builder
	b.WriteString(healthLine(r.Health) + w.String())
	fmt.Fprintf(&b, "%d partitions, ring %s, as seen by %s (*)\n%s", r.Partitions, orDash(r.Ring), r.Self, setText(r.VoterSet))
	switch {
	case r.MayDecide:
		fmt.Fprintf(&b, "%s may decide\n", r.Self)
	case r.Reason != "":
		fmt.Fprintf(&b, "%s may not decide: %s\n", r.Self, r.Reason)
	default:
		fmt.Fprintf(&b, "%s may not decide\n", r.Self)
	}
	for _, line := range r.Unreached {
		fmt.Fprintln(&b, line)
	}
	h := r.GetPartitionCounts()
	fmt.Fprintf(&b, "%s owns %d partitions, %d of them without a complete replica elsewhere, %d below their number of replicas; "+
		"handing over %d, taking over %d, replicas %d, divergent states %d\n",
		r.Self, h.GetOwned(), h.GetUnprotected(), h.GetBelowReplicas(), h.GetHandingOver(), h.GetTakingOver(), h.GetReplicas(), h.GetDivergent())
	b.WriteString(lostText(r) + clockText(r))
	return b.String()
}

// aliveText says whether m is heard, and if not, how long it has not been.
func aliveText(m *adminv1alpha1.Member) string {
	switch {
	case m.Alive:
		return "yes"
	case m.SilentNs == nil:
		return "no"
	}
	return "no, silent " + brief(time.Duration(*m.SilentNs))
}

func orDash(s string) string { return cmp.Or(s, "-") }

// clockText names the members whose clocks are off, if any, and the correction of the node that answers.
func clockText(r *adminv1alpha1.MembersResponse) string {
	if r.ClocksAgree == nil {
		return ""
	}
	const little = 100 * time.Millisecond
	var off []string
	for _, m := range r.Members {
		if d := time.Duration(m.GetClockAheadNs()); d >= little || d <= -little {
			off = append(off, fmt.Sprintf("%s %+.3fs", m.Name, d.Seconds()))
		}
	}
	var b strings.Builder
	switch {
	case !*r.ClocksAgree:
		fmt.Fprintf(&b, "clocks: no majority agrees, so each node aligns new windows with its own clock; against %s: %s\n", r.Self, orDash(strings.Join(off, ", ")))
	case len(off) > 0:
		fmt.Fprintf(&b, "clocks: off the voters' median: %s\n", strings.Join(off, ", "))
	}
	if c := time.Duration(r.ClockCorrectionNs); c != 0 {
		fmt.Fprintf(&b, "%s corrects its clock by %+.3fs for new windows\n", r.Self, c.Seconds())
	}
	return b.String()
}

func setText(s *adminv1alpha1.VoterSet) string {
	if s == nil {
		return "voter set: unknown\n"
	}
	text := fmt.Sprintf("voter set: %s (version %d of %s; a majority is %d)\n",
		strings.Join(s.Members, ", "), s.Version, s.ClusterId, len(s.Members)/2+1)
	if len(s.Members) == 1 {
		text += fmt.Sprintf("%s is the only voter: rules with replication: sync wait for no replica\n", s.Members[0])
	}
	return text
}
