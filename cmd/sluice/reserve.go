package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// reserveFlags are the flags of `sluice reserve`.
type reserveFlags struct {
	clientFlags
	domain, key  string
	units, least int64
	ttl          time.Duration
}

func newReserve() *cobra.Command {
	var f reserveFlags
	cmd := &cobra.Command{
		Use:   "reserve --domain DOMAIN [--units N] KEY=VALUE...",
		Short: "Reserve units of a descriptor",
		Long: `Set units of a descriptor aside until they are settled or until a deadline, and print the ID
of the reservation, which sluice spend, extend and settle take at any node. Programs reserve
units of several descriptors at once: see docs/use/reservations.md.

Exit codes: 0 reserved, 1 denied, 2 wrong usage, 3 no answer, 4 not limited: no rule matches.`,
		Example: "  sluice reserve --domain llm --units 800 --ttl 1m user=ann\n" +
			"  sluice reserve --domain llm --units 800 --least 100 -o json user=ann",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd)
	f.registerPlace(cmd) // for why no rule matches
	cmd.Flags().StringVar(&f.domain, "domain", "", "`domain` of the rules (required)")
	cmd.Flags().Int64Var(&f.units, "units", 0, "`units` to reserve (default: the rule's estimate)")
	cmd.Flags().Int64Var(&f.least, "least", 0, "how few `units` will do where not all are left (default: all)")
	registerTTL(cmd, &f.ttl, "time until the deadline (default: the rule's)")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "", "`key` of the reservation: a repeated command with it gets the same one")
	registerOutput(cmd.Flags(), &f.output)
	return cmd
}

func registerTTL(cmd *cobra.Command, ttl *time.Duration, usage string) {
	cmd.Flags().DurationVar(ttl, "ttl", 0, usage)
}

func (f *reserveFlags) run(cmd *cobra.Command, args []string) error {
	if f.domain == "" {
		return noDomain(args)
	}
	descriptor, err := parseDescriptor(args)
	if err != nil {
		return usageError(err)
	}
	check := &sluicev1.Check{Domain: f.domain, Descriptor_: descriptor}
	req := &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{check}, TtlNs: int64(f.ttl), IdempotencyKey: f.key}
	if cmd.Flags().Changed("units") {
		req.Units = &f.units
	}
	if cmd.Flags().Changed("least") {
		req.Least = &f.least
	}
	res, err := operate(cmd.Context(), &f.clientFlags, apiClient.Reserve, req)
	if err != nil {
		return err
	}
	if n := len(res.GetDecisions()); n != 1 {
		return noAnswer(f.node(), fmt.Errorf("sent one check, got %d decisions", n))
	}
	d := res.GetDecisions()[0]
	why := f.explainUnmatched(cmd.Context(), check, d)
	j := jsonOf(res)
	j["decisions"] = []decisionJSON{decisionOf(d, why)}
	if err := write(cmd.OutOrStdout(), f.output, reservedText(res, d, why), j); err != nil {
		return err
	}
	return decisionExit(bucket.Check, d, why)
}

// reservedText is the decision, and what is reserved.
func reservedText(res *sluicev1.ReserveResponse, d *sluicev1.Decision, why unmatched) string {
	if d.Error != nil { // decisionExit prints an error
		return ""
	}
	text := decisionText(d, why)
	if res.Reservation != "" {
		text += fmt.Sprintf("%d units for %s\n%s\n", res.Units, brief(time.Duration(res.ExpiresAfterNs)), printable(res.Reservation))
	}
	return text
}

// reservationCommand returns a command about the reservation ID. args are its arguments beside the ID, and run gets their number.
func reservationCommand(f *clientFlags, c cobra.Command, args int, run func(ctx context.Context, out io.Writer, id string, n int64) error) *cobra.Command {
	c.Args = cobra.ExactArgs(1 + args)
	c.RunE = func(cmd *cobra.Command, given []string) error {
		var n int64
		if args > 0 {
			var err error
			if n, err = strconv.ParseInt(given[1], 10, 64); err != nil {
				return usageError(fmt.Errorf("argument %q: want a whole number of units", given[1]))
			}
		}
		return run(cmd.Context(), cmd.OutOrStdout(), given[0], n)
	}
	f.register(&c)
	registerOutput(c.Flags(), &f.output)
	return &c
}

// printAnswer prints an answer about a reservation. Unless it is allowed, the process ends with exitDenied.
func printAnswer(out io.Writer, f *clientFlags, allowed bool, m proto.Message, text string) error {
	if err := write(out, f.output, text, jsonOf(m)); err != nil || allowed {
		return err
	}
	return &codedError{code: exitDenied}
}

func newSpend() *cobra.Command {
	var f clientFlags
	return reservationCommand(&f, cobra.Command{
		Use:   "spend ID UNITS",
		Short: "Spend units of a reservation",
		Long: `Spend units of a reservation before it is settled, for example of a stream as it goes on. If
they are not left, none is spent.

Exit codes: 0 spent, 1 denied or rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice spend ID 100",
	}, 1, func(ctx context.Context, out io.Writer, id string, n int64) error {
		res, err := operate(ctx, &f, apiClient.Spend, &sluicev1.SpendRequest{Reservation: id, Units: n})
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s  %d units left\n", outcome(res.Allowed, "SPENT"), res.Left)
		return printAnswer(out, &f, res.Allowed, res, text)
	})
}

// outcome is done or DENIED.
func outcome(allowed bool, done string) string {
	if allowed {
		return paint(green, done)
	}
	return paint(red, "DENIED")
}

func newExtend() *cobra.Command {
	var f clientFlags
	req := &sluicev1.ExtendRequest{}
	var ttl time.Duration
	cmd := reservationCommand(&f, cobra.Command{
		Use:   "extend ID [--more UNITS] [--ttl TIME]",
		Short: "Add units to a reservation, or time",
		Long: `Add units to a reservation, move its deadline, or both. If the limits deny the units, nothing
changes.

Exit codes: 0 extended, 1 denied or rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice extend ID --ttl 1m\n" +
			"  sluice extend ID --more 200",
	}, 0, func(ctx context.Context, out io.Writer, id string, _ int64) error {
		if req.More == 0 && ttl == 0 {
			return usageError(errors.New("nothing to extend: name units with --more, a time with --ttl, or both"))
		}
		req.Reservation, req.TtlNs = id, int64(ttl)
		res, err := operate(ctx, &f, apiClient.Extend, req)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s  %d units left for %s", outcome(res.Allowed, "EXTENDED"), res.Units, brief(time.Duration(res.ExpiresAfterNs)))
		if res.RetryAfterNs != nil {
			text += ", retry in " + brief(time.Duration(*res.RetryAfterNs))
		}
		return printAnswer(out, &f, res.Allowed, res, text+"\n")
	})
	cmd.Flags().Int64Var(&req.More, "more", 0, "`units` to add")
	registerTTL(cmd, &ttl, "time from now until the new deadline (default: the deadline stays)")
	return cmd
}

func newSettle() *cobra.Command {
	var f clientFlags
	return reservationCommand(&f, cobra.Command{
		Use:   "settle ID UNITS",
		Short: "End a reservation and charge the units that were needed",
		Long: `End a reservation. Of its units that are not spent, so many are charged, and the others are free
again. More than are left are charged whatever the limits say. It may be repeated.

Exit codes: 0 settled, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice settle ID 520\n" +
			"  sluice settle ID 0       give everything back",
	}, 1, func(ctx context.Context, out io.Writer, id string, n int64) error {
		res, err := operate(ctx, &f, apiClient.Settle, &sluicev1.SettleRequest{Reservation: id, Actual: n})
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s  %d units charged, %d free again", paint(green, "SETTLED"), res.Charged, res.Returned)
		if res.Late {
			text += ", after the deadline"
		}
		if res.Repeated {
			text += ", by an earlier call"
		}
		return printAnswer(out, &f, true, res, text+"\n")
	})
}

func newHeld() *cobra.Command {
	var f clientFlags
	var domain string
	cmd := &cobra.Command{
		Use:   "held --domain DOMAIN KEY=VALUE...",
		Short: "List the open reservations and leases of a descriptor",
		Long: `List the open reservations and leases of a descriptor's counter, the first 100 by deadline. With
--callers, the node's operators may do this, and those with the verb read in the domain.

Exit codes: 0 answered, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice held --domain llm user=ann",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if domain == "" {
				return noDomain(args)
			}
			descriptor, err := parseDescriptor(args)
			if err != nil {
				return usageError(err)
			}
			res, err := operate(cmd.Context(), &f, apiClient.Held, &sluicev1.HeldRequest{Domain: domain, Descriptor_: descriptor})
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, heldText(res), jsonOf(res))
		},
	}
	f.registerOperator(cmd)
	cmd.Flags().StringVar(&domain, "domain", "", "`domain` of the rules (required)")
	return cmd
}

// heldText is the answer for people.
func heldText(res *sluicev1.HeldResponse) string {
	if res.Count == 0 {
		return "no open reservations or leases\n"
	}
	var table grid
	fmt.Fprintln(&table, "ID\tUSE\tCALLER\tUNITS\tSINCE\tEXPIRES IN")
	for _, h := range res.Holdings {
		fmt.Fprintf(&table, "%s\t%s\t%s\t%d\t%s\t%s\n", printable(h.Id), printable(h.Use), cmp.Or(printable(h.Caller), "-"), h.Units, brief(time.Duration(h.SinceNs)), brief(time.Duration(h.ExpiresAfterNs)))
	}
	return table.String() + fmt.Sprintf("\n%d in all, %d units\n", res.Count, res.Units)
}
