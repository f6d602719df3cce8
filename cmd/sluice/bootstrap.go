package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

const bootstrapWarning = `This makes the node at %s found a new cluster, with itself as the only voter.
  - Counters that no living node has begin anew: every limit may be admitted once more.
  - If other nodes of the old cluster are alive and only cut off, there are two clusters, each with the whole
    limits. Stop them first, or find out what cuts them off.
Nodes that know no cluster, or have had no quorum for 5s, join the new one by themselves.
`

func newBootstrap() *cobra.Command {
	var f clientFlags
	var output string
	var yes bool
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Found a new cluster with one node, after the loss of all others",
		Long: `Make a node that has no quorum, and can join no cluster, found a new one, with itself
as the only voter. Other nodes then join it.

It is the way out after a total loss: when so many voters are gone for good, with their
data directories, that the rest will never be a majority, and --bootstrap-expect nodes
without a voter set do not come together. Counters that no living node has begin anew. If
other nodes of the old cluster are alive, there are two clusters, each with the whole
limits. Without --yes it asks before.

The node answers its operators, on its own machine, or with --callers those with the verb
admin.

Exit codes: 0 founded, 1 refused, 2 wrong usage, 3 no answer.`,
		Example: "  sluice members bootstrap\n" +
			"  kubectl exec sluice-0 -- /sluice members bootstrap --yes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settleOutput(cmd, output); err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf(bootstrapWarning, f.addr)); err != nil {
				return err
			}
			return bootstrap(cmd.Context(), cmd.OutOrStdout(), f, output)
		},
	}
	f.registerOperator(cmd)
	registerOutput(cmd, &output)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before")
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

func bootstrap(ctx context.Context, out io.Writer, f clientFlags, output string) error {
	return f.operate(ctx, func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
		resp, err := c.Bootstrap(ctx, &sluicev1.BootstrapRequest{})
		if err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(out).Encode(struct {
				StableSet *setJSON `json:"stable_set,omitempty"`
			}{setOf(resp.GetStableSet())})
		}
		_, err = fmt.Fprintf(out, "founded a new cluster\n%s", setText(resp.GetStableSet()))
		return err
	})
}
