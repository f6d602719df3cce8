package main

import (
	"cmp"
	"context"
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

	"github.com/sluicecluster/sluice/bucket"
	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/operators"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// checkFlags are the flags of `sluice check`.
type checkFlags struct {
	clientFlags
	domain string
	cost   int64
	verb   string
}

// clientFlags are shared by the commands that ask a running node.
type clientFlags struct {
	addrs   []string
	timeout time.Duration
	tls     clientTLS
	token   tokenFlags
	// operator: the command connects as the node's operator if this user is that. operatorsDir is where it looks for the socket.
	operator     bool
	operatorsDir string
	output       string // text or json, of commands that have the flag
}

func (f *clientFlags) register(cmd *cobra.Command) {
	f.registerNode(cmd)
	f.tls.register(cmd.Flags())
	f.token.register(cmd.Flags())
}

// registerNode registers the flags that name the node.
func (f *clientFlags) registerNode(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.addrs, "addr", []string{"127.0.0.1:7460"}, "gRPC `addresses` of nodes, of which the first that accepts a connection is asked; without a port, 7460")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
}

// registerOperator registers the flags of commands of operators that print JSON too.
func (f *clientFlags) registerOperator(cmd *cobra.Command, formats ...string) {
	f.register(cmd)
	f.registerPlace(cmd)
	registerOutput(cmd.Flags(), &f.output, formats...)
	f.operator = true
}

// registerPlace registers the directory of the operators' socket.
func (f *clientFlags) registerPlace(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.operatorsDir, "operators-dir", "", operatorsDirHelp)
}

// asOperator reports whether the command connects as the node's operator if this user is that: a token takes precedence.
func (f *clientFlags) asOperator() bool { return f.operator && f.token.source() == nil }

// way returns the operators' socket or admin port of the node, if it runs on this machine as this user.
func (f *clientFlags) way() (operators.Way, bool) {
	return operators.Find(f.operatorsDir, f.node())
}

// noWay ends an error of a command that has found no operators' socket.
func (f *clientFlags) noWay() string {
	dirs := operators.Dirs()
	if f.operatorsDir != "" {
		dirs = []string{f.operatorsDir}
	}
	return fmt.Sprintf(" (no operators' socket of a node at %s is in %s: run this where the node runs, as the same user, or name its --operators-dir)",
		f.node(), strings.Join(dirs, ", "))
}

// defaultGRPCPort is the default of --grpc-port.
const defaultGRPCPort = 7460

// withPort adds port to a host without one.
func withPort(addr string, port int) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(port))
}

// apiClient is a client of the gRPC API, of callers and of operators.
type apiClient struct {
	sluicev1.RateLimitServiceClient
	adminv1alpha1.AdminServiceClient
}

func newAPI(conn *grpc.ClientConn) apiClient {
	return apiClient{sluicev1.NewRateLimitServiceClient(conn), adminv1alpha1.NewAdminServiceClient(conn)}
}

// method is a method of the API, for example apiClient.Check.
type method[Q, R any] func(apiClient, context.Context, Q, ...grpc.CallOption) (R, error)

// ask connects to the node and calls m. Errors end the process with exitNoAnswer.
func ask[Q, R any](ctx context.Context, f *clientFlags, m method[Q, R], req Q) (resp R, err error) {
	err = f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = m(newAPI(conn), ctx, req)
		return err
	})
	return resp, err
}

// operate is ask for calls that any node would reject alike: the process then ends with exitDenied, or with exitUsage if the
// arguments are invalid.
func operate[Q, R any](ctx context.Context, f *clientFlags, m method[Q, R], req Q) (resp R, err error) {
	var rejected error
	err = f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = m(newAPI(conn), ctx, req)
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
	return resp, cmp.Or(err, rejected)
}

// node returns the address, with its port, of the first node that accepts connections, or else the last one.
func (f *clientFlags) node() string {
	for len(f.addrs) > 1 && !answers(withPort(f.addrs[0], defaultGRPCPort), f.timeout/time.Duration(len(f.addrs))) {
		f.addrs = f.addrs[1:]
	}
	f.addrs = f.addrs[:min(len(f.addrs), 1)]
	return withPort(strings.Join(f.addrs, ""), defaultGRPCPort)
}

// connect connects to the node and runs call, whose errors end the process with exitNoAnswer.
func (f *clientFlags) connect(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error {
	target, options := f.node(), f.token.dialOptions()
	secured, err := f.tls.dialOption()
	if err != nil {
		return usageError(err)
	}
	if f.asOperator() {
		if way, ok := f.way(); ok {
			target, secured = "passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials())
			options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return way.Dial(ctx) }))
			if way.Token != "" {
				options = append(options, grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.Token(way.Token), true)))
			}
		}
	}
	conn, err := grpc.NewClient(target, append(options, secured)...)
	if err != nil {
		return usageError(fmt.Errorf("--addr: %w", err))
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	if err := call(ctx, conn); err != nil {
		return noAnswer(f.node(), err)
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
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), args) },
	}
	f.register(cmd)
	f.registerPlace(cmd) // for why no rule matches
	cmd.Flags().StringVar(&f.domain, "domain", "", "`domain` of the rules (required)")
	cmd.Flags().Int64Var(&f.cost, "cost", 1, "units to spend; 0 only reads")
	cmd.Flags().StringVar(&f.verb, "verb", "check", "check, read, charge, refund or reset")
	registerOutput(cmd.Flags(), &f.output)
	return cmd
}

func (f *checkFlags) run(ctx context.Context, out io.Writer, args []string) error {
	if f.domain == "" {
		return noDomain(args)
	}
	var verb bucket.Verb
	if err := verb.UnmarshalText([]byte(f.verb)); err != nil {
		return usageError(fmt.Errorf("--verb: %w", err))
	}
	descriptor, err := parseDescriptor(args)
	if err != nil {
		return usageError(err)
	}
	check := &sluicev1.Check{Domain: f.domain, Descriptor_: descriptor, Cost: &f.cost, Verb: sluicev1.Verb(verb)} // the same numbers
	resp, err := ask(ctx, &f.clientFlags, apiClient.Check, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
	if err != nil {
		return err
	}
	if n := len(resp.GetDecisions()); n != 1 {
		return noAnswer(f.node(), fmt.Errorf("sent one check, got %d decisions", n))
	}
	d := resp.GetDecisions()[0]
	why := f.explainUnmatched(ctx, check, d)
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
	case d.Error != nil && d.Error.Code == sluicev1.ErrorCode_ERROR_CODE_REJECTED:
		return &codedError{exitDenied, errors.New(d.Error.Message)}
	case d.Error != nil:
		return &codedError{exitNoAnswer, errors.New(d.Error.Message)}
	case noRule(d) && (d.Allowed || verb == bucket.Reset):
		return &codedError{code: exitNoVerdict}
	case verb == bucket.Reset || d.Allowed:
		return nil
	}
	return &codedError{code: exitDenied}
}

// parseDescriptor reads KEY=VALUE arguments. An argument without = is an error: it would mostly be a descriptor that no rule limits.
func parseDescriptor(args []string) ([]*sluicev1.Entry, error) {
	entries := make([]*sluicev1.Entry, len(args))
	for i, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("argument %q: want KEY=VALUE; %s", arg, suggestEntry(arg, args[i+1:]))
		case key == "":
			return nil, fmt.Errorf("argument %q: the key is empty, want KEY=VALUE", arg)
		}
		entries[i] = &sluicev1.Entry{Key: key, Value: value}
	}
	return entries, nil
}

// noDomain is the error of a command without --domain.
func noDomain(args []string) error {
	hint := ""
	if !strings.Contains(args[0], "=") {
		hint = "; did you mean --domain " + strings.Join(args, " ") + "?"
	}
	return usageError(errors.New("--domain: name the domain of the rules" + hint))
}

// suggestEntry corrects an argument without =, which stands before the others.
func suggestEntry(arg string, others []string) string {
	if key, value, ok := strings.Cut(arg, ":"); ok && key != "" {
		return fmt.Sprintf("did you mean %s=%s?", key, value)
	}
	if len(others) > 0 && !strings.Contains(others[0], "=") {
		return fmt.Sprintf("did you mean %s=%s?", arg, others[0])
	}
	return fmt.Sprintf("for an empty value write %s=", arg)
}

// decisionJSON is the output of `sluice check -o json`. Durations are in seconds.
type decisionJSON struct {
	Allowed bool `json:"allowed"`
	// Matched is false if no rule matches; then Reason says why, and Domains are the known ones if this one has no rules.
	Matched    bool     `json:"matched"`
	Reason     string   `json:"reason,omitempty"`
	Domains    []string `json:"domains,omitempty"`
	Verdict    string   `json:"verdict"`
	Limit      *int64   `json:"limit,omitempty"`
	Remaining  *int64   `json:"remaining,omitempty"`
	ResetAfter float64  `json:"reset_after"`
	RetryAfter *float64 `json:"retry_after,omitempty"`
	Delay      float64  `json:"delay"`
	Rule       string   `json:"rule"`
	Source     string   `json:"source"`
	Owner      string   `json:"owner"`
	Error      string   `json:"error,omitempty"`
}

func printDecision(out io.Writer, format string, verb bucket.Verb, d *sluicev1.Decision, why unmatched) error {
	if verb == bucket.Reset && d.Error == nil {
		text := fmt.Sprintf("nothing to reset: the rule %s is unlimited\n", d.Rule)
		switch {
		case d.Owner != "":
			text = fmt.Sprintf("reset by %s\n", d.Owner)
		case noRule(d):
			text = fmt.Sprintf("nothing to reset: no rule matches%s\n", why)
		}
		return write(out, format, text, struct {
			Reset bool   `json:"reset"`
			Rule  string `json:"rule"`
			Owner string `json:"owner"`
		}{d.Owner != "", d.Rule, d.Owner})
	}
	text := ""
	if d.Error == nil { // decisionExit prints an error
		text = decisionText(d, why)
	}
	return write(out, format, text, decisionOf(d, why))
}

// decisionOf is what is printed as JSON.
func decisionOf(d *sluicev1.Decision, why unmatched) decisionJSON {
	j := decisionJSON{
		Allowed: d.Allowed, Matched: !noRule(d), Reason: why.reason, Domains: why.domains,
		Verdict: strings.ToLower(strings.TrimPrefix(d.Verdict.String(), "VERDICT_")), Limit: d.Limit, Remaining: d.Remaining,
		ResetAfter: seconds(d.ResetAfterNs), Delay: seconds(d.DelayNs), Rule: d.Rule, Source: sourceName(d), Owner: d.Owner,
		Error: d.GetError().GetMessage(),
	}
	if d.RetryAfterNs != nil {
		j.RetryAfter = new(seconds(*d.RetryAfterNs))
	}
	return j
}

// sourceName is the source of a decision, for example "forwarded".
func sourceName(d *sluicev1.Decision) string {
	return strings.ToLower(strings.TrimPrefix(d.Source.String(), "SOURCE_"))
}

// decisionText is a decision in one line: the verdict, what is left, how long to wait, and who decided.
func decisionText(d *sluicev1.Decision, why unmatched) string {
	verdict, by := paint(green, "ALLOWED"), "rule "+printable(d.Rule)
	if !d.Allowed {
		verdict = paint(red, "DENIED")
	}
	if d.Owner != "" {
		by += ", node " + d.Owner
	}
	switch d.Source {
	case sluicev1.Source_SOURCE_UNMATCHED, sluicev1.Source_SOURCE_OWNED, sluicev1.Source_SOURCE_FORWARDED:
	default:
		by += ", source " + sourceName(d)
	}
	var facts []string
	fact := func(format string, args ...any) { facts = append(facts, fmt.Sprintf(format, args...)) }
	switch {
	case noRule(d) && d.Allowed:
		return fmt.Sprintf("%s: no rule matches%s\n", paint(yellow, "NOT LIMITED"), why)
	case noRule(d):
		return fmt.Sprintf("%s: no rule matches%s\n", verdict, why)
	case d.Source == sluicev1.Source_SOURCE_UNMATCHED:
		fact("unlimited")
	case d.Verdict == sluicev1.Verdict_VERDICT_DENIED_NEVER && d.GetLimit() == 0:
		fact("blocked (limit is 0)")
	case d.Verdict == sluicev1.Verdict_VERDICT_DENIED_NEVER:
		fact("the cost is above the limit of %d, so it is never admitted", d.GetLimit())
	default:
		note := map[sluicev1.Verdict]string{
			sluicev1.Verdict_VERDICT_ALLOWED_SHADOW:  "shadow: it would be denied",
			sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC: "above the limit, out of the rule's pool",
			sluicev1.Verdict_VERDICT_ALLOWED_SOFT:    "above the limit, within its soft margin",
		}[d.Verdict]
		if note != "" {
			fact("%s", note)
		}
		if d.Limit != nil {
			fact("%d/%d left", d.GetRemaining(), d.GetLimit())
		}
	}
	if d.DelayNs > 0 {
		fact("wait %s", brief(time.Duration(d.DelayNs)))
	}
	if d.RetryAfterNs != nil {
		fact("retry in %s", brief(time.Duration(d.GetRetryAfterNs())))
	}
	if d.ResetAfterNs > 0 {
		fact("resets in %s", brief(time.Duration(d.ResetAfterNs)))
	}
	return fmt.Sprintf("%s  %s  (%s)\n", verdict, strings.Join(facts, ", "), by)
}
