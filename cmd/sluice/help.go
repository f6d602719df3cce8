package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a part of a command's help. Names may end in *, for all that begin like this.
type flagGroup struct {
	title string
	names []string
}

// serveGroups are the groups of the flags of `sluice serve`. A flag is in the first that names it.
var serveGroups = []flagGroup{
	{"Node and cluster", []string{"config", "name", "bind", "advertise", "join", "bootstrap-*", "zone", "region*", "replicas", "forget-after", "join-timeout"}},
	{"Ports", []string{"grpc-port", "http-port", "peer-port", "gossip-port", "metrics-addr", "grpc-max-connection-age"}},
	{"Rules and decisions", []string{"rules", "merge-domains", "unknown-domain", "top-keys", "check-timeout", "assume-deadline", "lost-state-hold", "max-clock-skew", "settle-window", "envoy-*"}},
	{"Security", []string{"secret-file", "insecure", "callers", "gossip-keyring", "tls-*", "peer-tls*", "allowed-hosts"}},
	{"Operators", []string{"console", "operators-dir", "admin-*"}},
	{"Counters and memory", []string{"max-entries", "when-full", "memory-limit", "data-dir", "snapshot-interval", "max-inline-log-entries"}},
	{"Load", []string{"max-*"}},
	{"Stopping", []string{"shutdown-timeout", "handover-timeout"}},
	{"Log and traces", []string{"log-*", "otlp-endpoint", "trace-*"}},
	{"Other", []string{"*"}},
}

// groupFlags makes the help of cmd list its flags in groups.
func groupFlags(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		var b strings.Builder
		fmt.Fprintf(&b, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		sets := make([]*pflag.FlagSet, len(groups))
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			i := slices.IndexFunc(groups, func(g flagGroup) bool { return g.has(f.Name) })
			if sets[i] == nil {
				sets[i] = pflag.NewFlagSet("", pflag.ContinueOnError)
			}
			sets[i].AddFlag(f)
		})
		for i, set := range sets {
			if set != nil {
				fmt.Fprintf(&b, "\n%s:\n%s", groups[i].title, set.FlagUsagesWrapped(100))
			}
		}
		return fprint(cmd.OutOrStdout(), b.String())
	})
}

func (g flagGroup) has(flag string) bool {
	return slices.ContainsFunc(g.names, func(name string) bool {
		begin, any := strings.CutSuffix(name, "*")
		return any && strings.HasPrefix(flag, begin) || name == flag
	})
}
