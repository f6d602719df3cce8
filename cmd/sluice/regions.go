package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

func newRegions() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "regions",
		Short: "List the regions, and which of them decides the keys of which home",
		Long: `List the regions as the nodes of one see them, and which region decides the keys of rules
with each home. After a region is lost, another one decides its keys.

Exit codes: 0 answered, 2 wrong usage, 3 no answer.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := operate(cmd.Context(), &f, apiClient.Status, &adminv1alpha1.StatusRequest{})
			if err != nil {
				return err
			}
			text := regionsText(resp.Nodes)
			if text == "" {
				text = "\nno other regions: the nodes have no --regions\n"
			}
			return write(cmd.OutOrStdout(), f.output, text[1:], jsonOf(resp))
		},
	}
	f.registerOperator(cmd)
	cmd.AddCommand(newPromote())
	return cmd
}

const promoteStoppedWarning = `This makes region %s decide the keys with the home %s, without asking the region that decides them now.
  - Their counters begin anew: every limit may be admitted once more.
  - If that region is alive, both decide these keys until they hear each other.
`

func newPromote() *cobra.Command {
	var f clientFlags
	var home string
	var stopped, yes bool
	cmd := &cobra.Command{
		Use:   "promote REGION",
		Short: "Let a region decide the keys of a home",
		Long: `Let a region decide the keys of rules with a home that another region decides now.

Ask a node of the region that decides them now: all its nodes stop deciding them, and then the
other region begins, after about five seconds. Until then on_partition of the rules decides.

If that region is gone, and too few others are left to agree on it, as of two regions, ask a
node of the region that is to decide them, with --stopped. Be sure that it is stopped: behind a
network partition both would decide the keys. Without --yes it asks first. When the other region
starts again it learns who decides its keys, if it reaches the others.

The node answers its operators, on its own machine, or with --callers those with the verb
admin.

Exit codes: 0 accepted, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice regions promote eu --home eu --addr us-1:7465\n" +
			"  sluice regions promote us --home eu --stopped",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if home == "" {
				return usageError(errors.New("--home: missing; want the region that rules name as the home of the keys"))
			}
			if stopped {
				if err := confirm(cmd, yes, fmt.Sprintf(promoteStoppedWarning, args[0], home)); err != nil {
					return err
				}
			}
			q := &adminv1alpha1.PromoteRegionRequest{Region: args[0], Home: home, Stopped: stopped}
			resp, err := operate(cmd.Context(), &f, apiClient.PromoteRegion, q)
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, fmt.Sprintf("region %s decides the keys of %s soon; see sluice regions\n", args[0], home), jsonOf(resp))
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().StringVar(&home, "home", "", "the `region` that rules name as the home of the keys; required")
	cmd.Flags().BoolVar(&stopped, "stopped", false, "the region that decides these keys is stopped: do not ask it")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask first")
	return cmd
}
