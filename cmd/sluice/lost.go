package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
)

const acceptLossWarning = `This makes every node that the one at %s sees take lost counters for unspent.
  - Keys of rules with on_lost_state: deny whose counters are lost begin anew: every limit may be admitted once more.
  - If the nodes that have these counters are only cut off, mend the network instead: their counters come back.
`

func newAcceptLoss() *cobra.Command {
	var f clientFlags
	var output string
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-loss",
		Short: "Take counters that are lost for unspent",
		Long: `Take counters that were lost in takeovers without state for unspent: rules with
on_lost_state: deny admit their keys again, each up to its whole limit.

It is for when the nodes that had the counters are gone for good, and their keys cannot be
denied until the windows end. "sluice members" shows what is lost, and which rules deny
for how much longer. The node tells all others that it sees; one that it does not see, or
that owns more such partitions later, is to be told again. Without --yes it asks before.

The node answers its operators, on its own machine, or with --callers those with the verb
admin.

Exit codes: 0 accepted, 1 refused, 2 wrong usage, 3 no answer.`,
		Example: "  sluice members accept-loss\n" +
			"  kubectl exec sluice-0 -- /sluice members accept-loss --yes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settleOutput(cmd, output); err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf(acceptLossWarning, f.addr)); err != nil {
				return err
			}
			return acceptLoss(cmd.Context(), cmd.OutOrStdout(), f, output)
		},
	}
	f.registerOperator(cmd)
	registerOutput(cmd, &output)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before")
	return cmd
}

func acceptLoss(ctx context.Context, out io.Writer, f clientFlags, output string) error {
	return f.operate(ctx, func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
		resp, err := c.AcceptLoss(ctx, &sluicev1.AcceptLossRequest{})
		if err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(out).Encode(struct {
				Partitions int32    `json:"partitions"`
				Told       []string `json:"told,omitempty"`
			}{resp.GetPartitions(), resp.GetTold()})
		}
		_, err = fmt.Fprintf(out, "accepted the loss of %d partitions; told %s\n", resp.GetPartitions(), orDash(strings.Join(resp.GetTold(), ", ")))
		return err
	})
}

// useRules puts a new set of rules in force.
func (n *node) useRules(set *rules.Set) {
	n.capAccounts(set.MaxKeys(), nil)
	n.service.SetRules(set)
	n.cluster.SetLostLimits(lostLimits(set))
}

// lostLimits returns the limits under which the loss of a counter denies checks; set may be nil. Pools deny it always.
func lostLimits(set *rules.Set) (list []*bucket.Limits) {
	if set == nil {
		return nil
	}
	for _, r := range set.Rules() {
		if r.OnLostState == rules.LostDeny && r.Limits != nil {
			list = append(list, r.Limits)
		}
		if r.Elastic != nil {
			list = append(list, r.Elastic.Pool.Limits(0))
		}
	}
	return list
}

// maxLostRules bounds how many rules are listed.
const maxLostRules = 20

// lostRules lists rules that deny at now what was lost at since, at most until ends.
func lostRules(set *rules.Set, since, ends, now int64) (list []limiter.LostRule) {
	if set == nil || since == 0 {
		return nil
	}
	for _, r := range set.Rules() {
		if r.OnLostState != rules.LostDeny || r.Limits == nil {
			continue
		}
		if left := min(r.Limits.SpentUntil(since), ends) - now; left > 0 && len(list) < maxLostRules {
			list = append(list, limiter.LostRule{Domain: r.Domain, Rule: r.Name, Left: time.Duration(left)})
		}
	}
	return list
}

// acceptLoss takes lost counters for unspent, here and at all other nodes.
func (n *node) acceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	partitions, told, err = n.cluster.AcceptLoss(ctx)
	if err == nil {
		n.log.Warn("lost counters are taken for unspent, by hand", "partitions", partitions, "told", told)
	}
	return partitions, told, err
}

// lostText says what is lost, and which rules deny because of that.
func lostText(r *sluicev1.MembersResponse) string {
	lost := r.GetHoldings().GetLost()
	if lost == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "counters of %d partitions of %s are lost: bring back the nodes that had them, or `sluice members accept-loss`\n", lost, r.Self)
	for _, x := range r.LostRules {
		fmt.Fprintf(&b, "  %s denies what may have been spent, for %v more at most\n", x.Rule, time.Duration(x.LeftNs).Round(time.Second))
	}
	return b.String()
}
