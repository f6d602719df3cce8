package main

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport"
)

func newInspect() *cobra.Command {
	var f clientFlags
	var domain string
	cmd := &cobra.Command{
		Use:   "inspect --domain DOMAIN KEY=VALUE...",
		Short: "Show the limits of a descriptor and their state",
		Long: `Show the limits of a descriptor and their state, and change nothing: the rule that applies,
the units spent of each limit, the owner and the replicas of the key, and the units granted
to other nodes. Any node can be asked by its operators, on its own machine, or with
--callers by those with the verb read in the domain.

Private values of rules with redact are shown as other tools show them, so that they can be
found there.

Exit codes: 0 answered, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice inspect --domain auth auth_type=login\n" +
			"  sluice inspect --domain shop user=ann -o json",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if domain == "" {
				return noDomain(args)
			}
			descriptor, err := parseDescriptor(args)
			if err != nil {
				return usageError(err)
			}
			req := &adminv1alpha1.InspectRequest{Domain: domain, Descriptor_: descriptor}
			res, err := operate(cmd.Context(), &f, apiClient.Inspect, req)
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, inspectionText(req, res), inspectionOf(req, res))
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().StringVar(&domain, "domain", "", "`domain` of the rules (required)")
	return cmd
}

// inspectionOf is what is printed as JSON.
func inspectionOf(req *adminv1alpha1.InspectRequest, res *adminv1alpha1.InspectResponse) map[string]any {
	j := jsonOf(res)
	maps.Copy(j, jsonOf(req))
	for i, l := range res.Limits {
		maps.Copy(j["limits"].([]any)[i].(map[string]any), map[string]any{"limit": limitText(l.Limit), "count": l.GetLimit().GetCount()})
	}
	return j
}

// limitText is a limit in words.
func limitText(p *sluicev1.Limit) string {
	l, err := transport.LimitFromProto(p)
	if err != nil { // of a newer version
		return p.String()
	}
	return describeLimit(l)
}

// inspectionText is the answer for people.
func inspectionText(req *adminv1alpha1.InspectRequest, res *adminv1alpha1.InspectResponse) string {
	var facts grid
	fact := func(name, format string, args ...any) { fmt.Fprintf(&facts, name+"\t"+format+"\n", args...) }
	typed, shown := descriptorText(req.Descriptor_), descriptorText(res.Shown)
	fact("key", "%s %s", printable(req.Domain), typed)
	if shown != typed {
		fact("shown as", "%s", shown)
	}
	switch {
	case res.Rule == "":
		fact("rule", "none: %s%s", res.Reason, unmatched{domains: res.Domains}.known())
	case res.Unlimited:
		fact("rule", "%s, unlimited", printable(res.Rule))
	case res.Shadow:
		fact("rule", "%s, shadow (%s)", printable(res.Rule), res.Reason)
	default:
		fact("rule", "%s (%s)", printable(res.Rule), res.Reason)
	}
	if res.Rule == "" || res.Unlimited {
		return facts.String()
	}
	fact("partition", "%d, generation %d", res.Partition, res.Generation)
	fact("owner", "%s", cmp.Or(res.Owner, "no node that may decide has answered"))
	fact("replicas", "%s", orDash(strings.Join(res.Replicas, ", ")))
	if len(res.InitialSync) > 0 {
		fact("initial sync", "%s", strings.Join(res.InitialSync, ", "))
	}
	if res.Grants > 0 || len(res.Leases) > 0 {
		var left []string
		for _, l := range res.Leases {
			left = append(left, fmt.Sprintf("%s has %d", l.Node, l.Left))
		}
		fact("granted", "%d in %d leases; %s", res.Granted, res.Grants, orDash(strings.Join(left, ", ")))
	}
	if len(res.Denying) > 0 {
		fact("denial caches", "%s", strings.Join(res.Denying, ", "))
	}
	if len(res.Missing) > 0 {
		fact("no answer", "from %s", strings.Join(res.Missing, ", "))
	}
	if len(res.Limits) == 0 {
		return facts.String()
	}
	var table grid
	fmt.Fprintln(&table, "SPENT\tREMAINING\tRESETS IN\tLIMIT\tNAME")
	for _, l := range res.Limits {
		reset := "-"
		if l.ResetAfterNs > 0 {
			reset = brief(time.Duration(l.ResetAfterNs))
		}
		used := float64(l.Spent) / float64(max(1, l.Spent+l.Remaining))
		fmt.Fprintf(&table, "[%s] %d\t%d\t%s\t%s\t%s\n", bar(used, 10), l.Spent, l.Remaining, reset, limitText(l.Limit), printable(l.Name))
	}
	text := facts.String() + "\n" + table.String()
	if !res.Counted {
		text += "there is no counter: nothing was spent, or the limits were reset\n"
	}
	return text
}
