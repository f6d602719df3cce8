package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/transport/access"
)

func newCallers() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "callers",
		Short: "Work with files that say who may do what",
		Args:  cobra.NoArgs,
		RunE:  helpOnly,
	}
	cmd.AddCommand(newCallersCheck())
	return cmd
}

func newCallersCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a file for --callers",
		Long: `Say what is wrong with a file for --callers.

Exit codes: 0 sound, 1 a fault, 2 wrong usage.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return usageError(err)
			}
			policy, err := access.Parse(args[0], data)
			if err != nil {
				return &codedError{exitDenied, err}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: sound, %d callers\n", args[0], policy.Callers())
			return err
		},
	}
}
