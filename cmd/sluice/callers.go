package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-project/sluice/internal/reload"
	"github.com/sluice-project/sluice/transport/access"
)

// callersEvery is how often --callers is read: a token that was taken away there opens nothing after twice that.
const callersEvery = time.Second

// openCallers makes the guard of the doors, and reads --callers, if it is given. What the file says later comes into
// force while the node runs.
func (n *node) openCallers() error {
	n.guard = access.NewGuard(nil, n.log, time.Now)
	path := n.settings.callers
	if path == "" {
		if ip := net.ParseIP(n.settings.bind); ip == nil || !ip.IsLoopback() {
			n.log.Warn("no --callers: whoever reaches the ports may ask and reset anything; operators' calls are answered on loopback only")
		}
		return nil
	}
	files, err := reload.Open(reload.Config{
		What: "--callers", Paths: []string{path}, Every: callersEvery, Log: n.log,
		Take: func(contents [][]byte) error {
			policy, err := access.Parse(path, contents[0])
			if err == nil {
				n.guard.SetPolicy(policy)
				n.capAccounts(nil, policy.MaxKeys())
			}
			return err
		},
	})
	if err != nil {
		return fmt.Errorf("--callers: %w", err)
	}
	n.secrets = append(n.secrets, secretFiles{label: "callers", files: files})
	return nil
}

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
