// Command sluice is the whole of sluice in one binary: a node of the cluster
// (serve), a cluster to try (demo), and the tools around them.
//
// This package holds the commands and their flags, the environment and the
// configuration file. What a node is made of is internal/node's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	_ "time/tzdata" // rules name IANA zones; a scratch image has none

	"github.com/spf13/cobra"
)

// version is set by the build; otherwise the module's version is used.
var version string

// Exit codes of every command.
const (
	exitOK        = 0
	exitDenied    = 1 // check: denied; audit: FAIL; rules: a file is wrong or a case fails; serve: failed
	exitUsage     = 2 // wrong flags or arguments
	exitNoAnswer  = 3 // no node answered, or it answered with an error
	exitNoVerdict = 4 // check, rules explain: no rule matches; audit: INCONCLUSIVE
)

// codedError ends the process with code. A nil err prints nothing.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func usageError(err error) error { return &codedError{exitUsage, err} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code. ctx ends when the
// process is asked to stop.
func run(ctx context.Context, args []string, stdout, stderr writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var coded *codedError
	if errors.As(err, &coded) {
		if coded.err != nil {
			fmt.Fprintln(stderr, "sluice:", coded.err)
		}
		return coded.code
	}
	// cobra's own errors are about flags, arguments and unknown commands.
	fmt.Fprintln(stderr, "sluice:", err)
	return exitUsage
}

type writer interface{ Write([]byte) (int, error) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "A distributed rate limiter: a cluster of equal peers and nothing else",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          helpOnly,
		Version:       versionString(),
	}
	root.AddCommand(newServe(), newDemo(), newCheck(), newAudit(), newBench(), newMembers(), newHealth(), newTop(), newInspect(), newConsole(), newRules(), newCallers(), newCert(), newTokenCommand(), newVersion())
	return root
}

// helpOnly runs commands that only have others below them. cobra would not look
// at the arguments of a command that cannot run, and so pass a misspelt one over.
func helpOnly(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "sluice", versionString())
		},
	}
}

func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
