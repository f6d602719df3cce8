package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/transport/access"
)

// newTokenCommand makes tokens of callers.
func newTokenCommand() *cobra.Command {
	var out, of string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token for a caller, and its digest for the nodes",
		Long: `Make a token, 256 random bits, and its digest. The token is for the caller, and is shown this once;
the digest is for the file of --callers, and cannot be used as a token.

Exit codes: 0 made, 1 the file cannot be written, 2 wrong usage.`,
		Example: "  sluice token\n" +
			"  sluice token --out shop.token    # the digest alone is printed\n" +
			"  sluice token --of shop.token     # the digest of one that was made before",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out != "" && of != "" {
				return usageError(errors.New("--out: cannot be given with --of"))
			}
			return printToken(cmd.OutOrStdout(), out, of)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "new `file` to write the token to, readable by its owner alone, instead of showing it")
	cmd.Flags().StringVar(&of, "of", "", "`file` with a token whose digest is wanted")
	return cmd
}

// printToken makes a token, or reads that in the file of; it prints the digest, and the token unless it is in a file. No error
// repeats a token.
func printToken(stdout io.Writer, out, of string) error {
	token, err := access.NewToken(rand.Reader)
	if err != nil {
		return &codedError{exitDenied, err}
	}
	if of != "" {
		data, err := os.ReadFile(of)
		if err != nil {
			return usageError(fmt.Errorf("--of: %w", err))
		}
		token = strings.TrimSpace(string(data))
	}
	digest, ok := access.DigestOf(token)
	if !ok {
		return usageError(fmt.Errorf("--of: %s has no token as `sluice token` makes them", of))
	}
	if out != "" {
		if err := writeNew(out, []byte(token+"\n"), 0o600); err != nil {
			return &codedError{exitDenied, fmt.Errorf("--out: %w", err)}
		}
	}
	if out != "" || of != "" {
		_, err = fmt.Fprintln(stdout, digest)
		return err
	}
	_, err = fmt.Fprintf(stdout, "token   %s\ndigest  %s\n", token, digest)
	return err
}

func newCallers() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "callers",
		Short: "Work with access control lists of callers",
		Args:  onlyCommands,
		RunE:  helpOnly,
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Validate an access control list for --callers",
		Long: `Validate an access control list for --callers.

Exit codes: 0 valid, 1 invalid, 2 wrong usage.`,
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: valid, %d callers\n", args[0], policy.Callers())
			return err
		},
	})
	return cmd
}
