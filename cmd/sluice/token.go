package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/transport/access"
)

// newTokenCommand makes tokens of callers.
func newTokenCommand() *cobra.Command {
	var out, of string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token for a caller, and its digest for the nodes",
		Long: `Make a token, 256 random bits, and its digest. The token is for the caller, and is shown this once;
the digest is for the file of --callers, which cannot be used to call anybody.

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

func printToken(stdout io.Writer, out, of string) error {
	var token string
	var err error
	if of != "" {
		token, err = readToken(of)
		if err != nil {
			return usageError(fmt.Errorf("--of: %w", err))
		}
	} else if token, err = access.NewToken(rand.Reader); err != nil {
		return &codedError{exitDenied, err}
	}
	digest, ok := access.DigestOf(token)
	if !ok {
		return usageError(fmt.Errorf("--of: %s has no token as `sluice token` makes them", of))
	}
	if out != "" {
		if err := writeToken(out, token); err != nil {
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

// writeToken makes a file that is not there yet.
func writeToken(path, token string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(token + "\n")
	return errors.Join(err, f.Close())
}

// readToken reads a file with one token. No error repeats what is in it.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

func newCallers() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "callers",
		Short: "Work with files that say who may do what",
		Args:  onlyCommands,
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
