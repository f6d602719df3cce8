package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

func newMembers() *cobra.Command {
	var f clientFlags
	var output string
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the cluster as one node sees it",
		Long: `List the cluster as one node sees it. Nodes that agree print the same ring.

Exit codes: 0 answered, 2 wrong usage, 3 no answer.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			if output != "text" && output != "json" {
				return usageError(fmt.Errorf("--output: %q is neither text nor json", output))
			}
			return f.ask(cmd.Context(), func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
				resp, err := c.Members(ctx, &sluicev1.MembersRequest{})
				if err != nil {
					return err
				}
				return printMembers(cmd.OutOrStdout(), output, resp)
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// memberJSON is one member in `sluice members -o json`.
type memberJSON struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Partitions int32  `json:"partitions"`
	GRPC       string `json:"grpc"`
	HTTP       string `json:"http"`
	Peer       string `json:"peer"`
	Gossip     string `json:"gossip"`
	Version    string `json:"version"`
	Boot       string `json:"boot"`
}

func printMembers(out io.Writer, format string, r *sluicev1.MembersResponse) error {
	if format == "json" {
		list := struct {
			Self       string       `json:"self"`
			Ring       string       `json:"ring"`
			Partitions int32        `json:"partitions"`
			Members    []memberJSON `json:"members"`
		}{Self: r.Self, Ring: r.Ring, Partitions: r.Partitions}
		for _, m := range r.Members {
			list.Members = append(list.Members, memberJSON{
				Name: m.Name, State: m.State, Partitions: m.Partitions, GRPC: m.GrpcAddress, HTTP: m.HttpAddress,
				Peer: m.PeerAddress, Gossip: m.GossipAddress, Version: m.Version, Boot: m.Boot,
			})
		}
		return json.NewEncoder(out).Encode(list)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPARTITIONS\tGRPC\tHTTP\tPEER\tVERSION")
	for _, m := range r.Members {
		mark := ""
		if m.Name == r.Self {
			mark = " *"
		}
		fmt.Fprintf(w, "%s%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			m.Name, mark, m.State, m.Partitions, m.GrpcAddress, m.HttpAddress, m.PeerAddress, m.Version)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d partitions, ring %s, as seen by %s (*)\n", r.Partitions, r.Ring, r.Self)
	return err
}
