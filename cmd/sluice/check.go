package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/operators"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// checkFlags are the flags of `sluice check`.
type checkFlags struct {
	clientFlags
	domain string
	cost   int64
	verb   string
	output string
}

// clientFlags are shared by the commands that ask a running node.
type clientFlags struct {
	addrs   []string
	timeout time.Duration
	tls     clientTLS
	token   tokenFlags
	// operator: the node is reached as its operator, if this user is. The directory is where its socket is looked for.
	operator     bool
	operatorsDir string
}

func (f *clientFlags) register(cmd *cobra.Command) {
	f.registerNode(cmd)
	f.tls.register(cmd.Flags())
	f.token.register(cmd.Flags())
}

// registerNode registers the flags that say which node is asked.
func (f *clientFlags) registerNode(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.addrs, "addr", []string{"127.0.0.1:7460"}, "gRPC `addresses` of nodes, of which the first that accepts a connection is asked; without a port, 7460")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
}

// registerOperator is register for commands of operators.
func (f *clientFlags) registerOperator(cmd *cobra.Command) {
	f.register(cmd)
	f.registerPlace(cmd)
	f.operator = true
}

// registerPlace registers where the operators' socket of the node is.
func (f *clientFlags) registerPlace(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.operatorsDir, "operators-dir", "", operatorsDirHelp)
}

// asOperator reports whether the node is reached as its operator, if this user is: not by who shows a token.
func (f *clientFlags) asOperator() bool { return f.operator && f.token.source() == nil }

// way returns the way to the node as its operator, if it is on this machine and this user's.
func (f *clientFlags) way() (operators.Way, bool) {
	return operators.Find(f.operatorsDir, withPort(f.node(), defaultGRPCPort))
}

// noWay says in a rejection of a node where its socket was looked for.
func (f *clientFlags) noWay() string {
	dirs := operators.Dirs()
	if f.operatorsDir != "" {
		dirs = []string{f.operatorsDir}
	}
	return fmt.Sprintf(" (no operators' socket of a node at %s is in %s: run this where the node runs, as the same user, or name its --operators-dir)",
		withPort(f.node(), defaultGRPCPort), strings.Join(dirs, ", "))
}

// defaultGRPCPort is where nodes listen unless they are told otherwise.
const defaultGRPCPort = 7460

// withPort adds port to a host without one.
func withPort(addr string, port int) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(port))
}

// ask connects to the node and calls f. Its errors end the process with exitNoAnswer.
func (f *clientFlags) ask(ctx context.Context, call func(context.Context, sluicev1.SluiceServiceClient) error) error {
	return f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return call(ctx, sluicev1.NewSluiceServiceClient(conn))
	})
}

// operate is ask for what a node may reject, which others would too: the process then ends with exitDenied, or
// for words that are off with exitUsage.
func (f *clientFlags) operate(ctx context.Context, call func(context.Context, sluicev1.SluiceServiceClient) error) error {
	var rejected error
	err := f.ask(ctx, func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
		err := call(ctx, c)
		switch st := status.Convert(err); st.Code() {
		case codes.InvalidArgument:
			rejected = usageError(errors.New(st.Message()))
		case codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated:
			message := st.Message()
			if message == limiter.ErrNotOperator.Message && f.asOperator() {
				message += f.noWay()
			}
			rejected = &codedError{exitDenied, fmt.Errorf("%s: %s", f.node(), message)}
		default:
			return err
		}
		return nil
	})
	return cmp.Or(err, rejected)
}

// node chooses the node that is asked: the first of several that accepts connections, or the last.
func (f *clientFlags) node() string {
	for len(f.addrs) > 1 && !answers(withPort(f.addrs[0], defaultGRPCPort), f.timeout/time.Duration(len(f.addrs))) {
		f.addrs = f.addrs[1:]
	}
	f.addrs = f.addrs[:min(len(f.addrs), 1)]
	if len(f.addrs) == 0 {
		return ""
	}
	return f.addrs[0]
}

// connect is ask for any service of the node.
func (f *clientFlags) connect(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error {
	target, options := withPort(f.node(), defaultGRPCPort), f.token.dialOptions()
	var way operators.Way
	local := false
	if f.asOperator() {
		way, local = f.way()
	}
	if local {
		target = "passthrough:///localhost"
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return way.Dial(ctx) }))
		if way.Token != "" {
			options = append(options, grpc.WithPerRPCCredentials(client.TokenCredentials(client.Token(way.Token), true)))
		}
	}
	secured, err := f.tls.dialOption()
	if err != nil {
		return usageError(err)
	}
	if local {
		secured = grpc.WithTransportCredentials(insecure.NewCredentials())
	}
	conn, err := grpc.NewClient(target, append(options, secured)...)
	if err != nil {
		return usageError(fmt.Errorf("--addr: %w", err))
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	if err := call(ctx, conn); err != nil {
		return &codedError{exitNoAnswer, fmt.Errorf("%s: %w", f.node(), explain(err))}
	}
	return nil
}

func newCheck() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check --domain DOMAIN KEY=VALUE...",
		Short: "Ask a running node for one decision",
		Long: `Ask a running node for one decision and print it.

Exit codes: 0 allowed, 1 denied, 2 wrong usage, 3 no answer, 4 not limited: no rule matches.`,
		Example: "  sluice check --domain auth auth_type=login\n" +
			"  sluice check --domain payments --verb charge card=4711\n" +
			"  sluice check --domain auth -o json auth_type=login",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	f.register(cmd)
	f.registerPlace(cmd) // for why no rule matches
	cmd.Flags().StringVar(&f.domain, "domain", "", "`domain` of the rules (required)")
	cmd.Flags().Int64Var(&f.cost, "cost", 1, "units to spend; 0 only reads")
	cmd.Flags().StringVar(&f.verb, "verb", "check", "check, read, charge, refund or reset")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	return cmd
}

func (f *checkFlags) run(ctx context.Context, out io.Writer, args []string) error {
	if f.domain == "" {
		return usageError(fmt.Errorf("--domain: required"))
	}
	if f.output != "text" && f.output != "json" {
		return usageError(fmt.Errorf("--output: %q is neither text nor json", f.output))
	}
	var verb bucket.Verb
	if err := verb.UnmarshalText([]byte(f.verb)); err != nil {
		return usageError(fmt.Errorf("--verb: %w", err))
	}
	descriptor, err := parseDescriptor(args)
	if err != nil {
		return usageError(err)
	}
	item := &sluicev1.Check{Domain: f.domain, Descriptor_: descriptor, Cost: &f.cost}

	var d *sluicev1.Decision
	err = f.ask(ctx, func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
		var decisions []*sluicev1.Decision
		if verb == bucket.Reset {
			resp, err := c.Reset(ctx, &sluicev1.ResetRequest{Checks: []*sluicev1.Check{item}})
			if err != nil {
				return err
			}
			decisions = resp.Decisions
		} else {
			item.Verb = sluicev1.Verb(verb) // the same numbers
			resp, err := c.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{item}})
			if err != nil {
				return err
			}
			decisions = resp.Decisions
		}
		if len(decisions) != 1 {
			return fmt.Errorf("asked one check, got %d answers", len(decisions))
		}
		d = decisions[0]
		return nil
	})
	if err != nil {
		return err
	}
	why := f.explainUnmatched(ctx, item, d)
	if err := printDecision(out, f.output, verb, d, why); err != nil {
		return err
	}
	return decisionExit(verb, d, why)
}

// decisionExit is the exit code of a decision as an error, nil for allowed.
func decisionExit(verb bucket.Verb, d *sluicev1.Decision, why unmatched) error {
	switch {
	case d.Error != nil && d.Error.Code == sluicev1.ErrorCode_ERROR_CODE_INVALID:
		return usageError(fmt.Errorf("%s: %s", d.Error.Field, d.Error.Message))
	case d.Error != nil && d.Error.Code == sluicev1.ErrorCode_ERROR_CODE_UNKNOWN_DOMAIN:
		return usageError(fmt.Errorf("--domain: %s%s", d.Error.Message, why.known()))
	case d.Error != nil:
		return &codedError{exitNoAnswer, fmt.Errorf("%s", d.Error.Message)}
	case noRule(d):
		return &codedError{code: exitNoVerdict}
	case verb == bucket.Reset || d.Allowed:
		return nil
	}
	return &codedError{code: exitDenied}
}

// parseDescriptor reads KEY=VALUE arguments. An argument without = is an error, for a check of it
// would be of another descriptor than was meant, and mostly one that no rule limits.
func parseDescriptor(args []string) ([]*sluicev1.Entry, error) {
	entries := make([]*sluicev1.Entry, len(args))
	for i, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("argument %q: want KEY=VALUE; %s", arg, meant(arg, args[i+1:]))
		case key == "":
			return nil, fmt.Errorf("argument %q: the key is empty, want KEY=VALUE", arg)
		}
		entries[i] = &sluicev1.Entry{Key: key, Value: value}
	}
	return entries, nil
}

// meant says what an argument without = may have been meant as, before the others.
func meant(arg string, others []string) string {
	if key, value, ok := strings.Cut(arg, ":"); ok && key != "" {
		return fmt.Sprintf("did you mean %s=%s?", key, value)
	}
	if len(others) > 0 && !strings.Contains(others[0], "=") {
		return fmt.Sprintf("did you mean %s=%s?", arg, others[0])
	}
	return fmt.Sprintf("for an empty value write %s=", arg)
}

// decisionJSON is the answer of `sluice check -o json`. Durations are seconds.
type decisionJSON struct {
	Allowed bool `json:"allowed"`
	// Matched is false if no rule matches. Reason says why, and Domains are those with rules if this one has none.
	Matched    bool     `json:"matched"`
	Reason     string   `json:"reason,omitempty"`
	Domains    []string `json:"domains,omitempty"`
	Limit      int64    `json:"limit"`
	Remaining  int64    `json:"remaining"`
	ResetAfter float64  `json:"reset_after"`
	RetryAfter float64  `json:"retry_after"`
	Delay      float64  `json:"delay"`
	Rule       string   `json:"rule"`
	Source     string   `json:"source"`
	Owner      string   `json:"owner"`
	Soft       bool     `json:"soft,omitempty"`
	Shadowed   bool     `json:"shadowed,omitempty"`
	Elastic    bool     `json:"elastic,omitempty"`
	Never      bool     `json:"never,omitempty"`
	Error      string   `json:"error,omitempty"`
}

func printDecision(out io.Writer, format string, verb bucket.Verb, d *sluicev1.Decision, why unmatched) error {
	if verb == bucket.Reset && d.Error == nil {
		return printReset(out, format, d, why)
	}
	if format == "json" {
		j := decisionJSON{
			Allowed: d.Allowed, Matched: !noRule(d), Reason: why.reason, Domains: why.domains, Limit: d.Limit, Remaining: d.Remaining,
			ResetAfter: seconds(d.ResetAfterNs), Delay: seconds(d.DelayNs),
			Rule: d.Rule, Source: sourceName(d), Owner: d.Owner,
			Soft: d.Soft, Shadowed: d.Shadowed, Elastic: d.Elastic, Never: d.Never,
		}
		if !d.Never {
			j.RetryAfter = seconds(d.RetryAfterNs)
		}
		if d.Error != nil {
			j.Error = d.Error.Message
		}
		return json.NewEncoder(out).Encode(j)
	}
	if d.Error != nil {
		return nil // decisionExit prints it
	}
	_, err := io.WriteString(out, decisionText(d, why))
	return err
}

// printReset says which node forgot the counter, if there was any to forget.
func printReset(out io.Writer, format string, d *sluicev1.Decision, why unmatched) error {
	if format == "json" {
		return json.NewEncoder(out).Encode(struct {
			Reset bool   `json:"reset"`
			Rule  string `json:"rule"`
			Owner string `json:"owner"`
		}{d.Owner != "", d.Rule, d.Owner})
	}
	text := fmt.Sprintf("nothing to reset: the rule %s is unlimited\n", d.Rule)
	switch {
	case d.Owner != "":
		text = fmt.Sprintf("reset, held by %s\n", d.Owner)
	case noRule(d):
		text = fmt.Sprintf("nothing to reset: no rule matches%s\n", why)
	}
	_, err := io.WriteString(out, text)
	return err
}

// sourceName says how the decision came to be, for example "forwarded".
func sourceName(d *sluicev1.Decision) string {
	return strings.ToLower(strings.TrimPrefix(d.Source.String(), "SOURCE_"))
}

func decisionText(d *sluicev1.Decision, why unmatched) string {
	var b strings.Builder
	switch {
	case noRule(d):
		return fmt.Sprintf("not limited: no rule matches%s\n", why)
	case d.Source == sluicev1.Source_SOURCE_UNMATCHED:
		return fmt.Sprintf("allowed: unlimited\nrule %s\n", d.Rule)
	case d.Shadowed:
		b.WriteString("allowed (shadow: would be denied)")
	case d.Allowed && d.Elastic:
		b.WriteString("allowed (above the limit, out of the rule's pool)")
	case d.Allowed && d.Soft:
		b.WriteString("allowed (above the limit, within its soft margin)")
	case d.Allowed:
		b.WriteString("allowed")
	case d.Never:
		b.WriteString("denied for good (the cost is above the limit)")
	default:
		b.WriteString("denied")
	}
	fmt.Fprintf(&b, ": %d of %d remaining", d.Remaining, d.Limit)
	if d.DelayNs > 0 {
		fmt.Fprintf(&b, ", wait %v", time.Duration(d.DelayNs))
	}
	if !d.Allowed && !d.Never {
		fmt.Fprintf(&b, ", retry after %v", roundUp(d.RetryAfterNs))
	}
	if d.ResetAfterNs > 0 {
		fmt.Fprintf(&b, ", whole again after %v", roundUp(d.ResetAfterNs))
	}
	fmt.Fprintf(&b, "\nrule %s, decided by %s (%s)\n", d.Rule, d.Owner, sourceName(d))
	return b.String()
}

// roundUp rounds a wait up to whole milliseconds: a caller that waits what is
// printed never comes too early.
func roundUp(ns int64) time.Duration {
	const ms = int64(time.Millisecond)
	if ns > 1<<62 {
		return time.Duration(ns)
	}
	return time.Duration((ns + ms - 1) / ms * ms)
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }
