// Command sluice is the daemon (serve), a cluster to try (demo), and their tools in one binary.
//
// This package has the commands, their flags, and settings from the environment and the configuration file. Package
// internal/node runs nodes.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// version is set by the build; otherwise the module's version is used.
var version string

// Exit codes of every command.
const (
	exitOK        = 0
	exitDenied    = 1 // check, reserve, spend, extend: denied; audit: FAIL; rules: a file is wrong or a case fails; serve: failed
	exitUsage     = 2 // wrong flags or arguments
	exitNoAnswer  = 3 // no node answered, or its answer is an error; serve: none took over the counters
	exitNoVerdict = 4 // check, reserve, rules explain: no rule matches; audit: INCONCLUSIVE
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

// withCode gives err an exit code; nil stays nil.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code, err}
}

func usageError(err error) error { return withCode(exitUsage, err) }

// noAnswer is the error of a command that no node at from has answered.
func noAnswer(from string, err error) error {
	return &codedError{exitNoAnswer, fmt.Errorf("%s: %w", from, explain(err))}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code. ctx ends when the process is asked to stop.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	unknown := rejectUnknownHelp(root)
	cmd, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, *unknown)
	if err == nil {
		return exitOK
	}
	coded, ok := errors.AsType[*codedError](err)
	if !ok { // cobra's own errors are about flags, arguments and unknown commands
		coded = &codedError{exitUsage, explainArgs(cmd, err)}
	}
	if coded.err != nil {
		fmt.Fprintln(stderr, "sluice:", coded.err)
	}
	return coded.code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "A distributed rate limiter: a cluster of equal nodes without an external store",
		Example: "  sluice demo                                        three nodes on this machine\n" +
			"  sluice status                                      is the cluster healthy?\n" +
			"  sluice check --domain auth auth_type=login user=me may this client go on?\n" +
			"  sluice rules test examples/rules                   do the rules do what they should?\n" +
			"  sluice audit --discover --until-exhausted          does the cluster keep its limits?",
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              onlyCommands,
		PersistentPreRunE: prepare,
		RunE:              helpOnly,
		Version:           versionString(),
	}
	root.SetFlagErrorFunc(suggestFlag)
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run", []*cobra.Command{newServe(), newDemo()}},
		{"Query", []*cobra.Command{newStatus(), newTop(), newInspect(), newCheck(), newMembers(), newRegions(), newHealth(), newConsole()}},
		{"Reservations", []*cobra.Command{newReserve(), newSpend(), newExtend(), newSettle(), newHeld()}},
		{"Rules", []*cobra.Command{newRules()}},
		{"Test", []*cobra.Command{newBench(), newAudit()}},
		{"Plan", []*cobra.Command{newSizing(), newMigrate()}},
		{"Security", []*cobra.Command{newCallers(), newCert(), newTokenCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "sluice", versionString()) },
	})
	return root
}

// prepare fills the flags of any command from the environment.
func prepare(cmd *cobra.Command, _ []string) error {
	if err := settleFromEnv(cmd.Flags(), lookupEnv); err != nil {
		return usageError(err)
	}
	return nil
}

// helpOnly runs commands that only have others below them: cobra does not check the arguments of a command that cannot run.
func helpOnly(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// settle fills the flags that the command line does not have: first from the environment (SLUICE_ and the flag's name in
// capitals, dashes as underscores), then from the YAML file that --config names, where keys are flag names and lists may be
// YAML lists. Errors name the variable, or the file and line.
func settle(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	err := settleFromEnv(flags, lookupEnv)
	file := flags.Lookup("config")
	if file == nil || file.Value.String() == "" {
		return err
	}
	return errors.Join(err, settleFromFile(flags, file.Value.String()))
}

func settleFromEnv(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := envName(f.Name)
		value, ok := lookupEnv(name)
		if !ok || value == "" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w%s", name, explainValue(err), serviceLink(name, value)))
		}
	})
	return errors.Join(errs...)
}

// serviceLink ends a message about a variable that Kubernetes sets for a Service of the namespace; it is empty about others.
func serviceLink(name, value string) string {
	service := linkName.FindStringSubmatch(name)
	if service == nil || !strings.Contains(value, "://") && !strings.Contains(name, "_SERVICE_") && !strings.Contains(name, "_TCP") && !strings.Contains(name, "_UDP") {
		return ""
	}
	return fmt.Sprintf("; Kubernetes sets it, a service link, for the Service %s: set enableServiceLinks: false in the spec of the pod",
		strings.ToLower(strings.ReplaceAll(service[1], "_", "-")))
}

// linkName matches the variables of service links, and in them the Service.
var linkName = regexp.MustCompile(`^(SLUICE.*?)_(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT(?:_\d+_(?:TCP|UDP)(?:_PROTO|_PORT|_ADDR)?)?)$`)

func envName(flag string) string {
	return "SLUICE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// warnOfUnknown logs variables that begin like settings and are none: they may be misspelt.
func warnOfUnknown(flags *pflag.FlagSet, environ []string, log *slog.Logger) {
	known := map[string]bool{"SLUICE_ADDR": true, tokenVariable: true}
	for _, name := range clientFlagNames {
		known[envName(name)] = true
	}
	flags.VisitAll(func(f *pflag.Flag) { known[envName(f.Name)] = true })
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SLUICE_") && !known[name] {
			log.Warn("unknown setting in the environment"+serviceLink(name, value), "name", name)
		}
	}
}

func settleFromFile(flags *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("--config: %s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("--config: %s:%d: want a mapping of flag names to values", path, top.Line)
	}
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if err := settleOne(flags, seen, key, value); err != nil {
			errs = append(errs, fmt.Errorf("--config: %s:%d: %s: %w", path, key.Line, key.Value, err))
		}
	}
	return errors.Join(errs...)
}

// settleOne sets the flag key, unless the command line or the environment has.
func settleOne(flags *pflag.FlagSet, seen map[string]bool, key, value *yaml.Node) error {
	f := flags.Lookup(key.Value)
	if f == nil || f.Name == "config" || f.Name == "help" {
		return errors.New("no such setting" + nearFlags(flags, key.Value, ""))
	}
	if seen[f.Name] {
		return errors.New("given twice")
	}
	seen[f.Name] = true
	text := value.Value
	switch {
	case value.Kind == yaml.SequenceNode && f.Value.Type() != "stringSlice":
		return errors.New("want one value, not a list")
	case value.Kind == yaml.SequenceNode:
		items := make([]string, len(value.Content))
		for i, c := range value.Content {
			if c.Kind != yaml.ScalarNode {
				return errors.New("want a list of plain values")
			}
			items[i] = c.Value
		}
		text = strings.Join(items, ",")
	case value.Kind != yaml.ScalarNode:
		return errors.New("want a plain value or a list of them")
	}
	if f.Changed {
		return nil
	}
	return explainValue(flags.Set(f.Name, text))
}

func newConsole() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print an address that logs a browser in to the console",
		Long: `Print an address of a node's console that logs a browser in, once and within a minute. The
session may do what operators may, for twelve hours, or until the node stops.

The node must run on this machine, as this user, and the browser must reach its HTTP port by
this address: for a node elsewhere, forward the port with ssh -L or kubectl port-forward.
With --callers, the console takes tokens too.

Exit codes: 0 printed, 1 rejected, 2 wrong usage, 3 no answer.`,
		Example: "  sluice console\n" +
			"  kubectl exec sluice-0 -- /sluice console",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.console(cmd.Context(), cmd.OutOrStdout()) },
	}
	f.registerNode(cmd)
	f.registerPlace(cmd)
	return cmd
}

// console prints a login address.
func (f *clientFlags) console(ctx context.Context, out io.Writer) error {
	way, ok := f.way()
	if !ok {
		return &codedError{exitNoAnswer, errors.New("this user does not operate the node" + f.noWay())}
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return way.Dial(ctx) }}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/console/code", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if way.Token != "" {
		req.Header.Set("Authorization", "Bearer "+way.Token)
	}
	var answer struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	}
	status, err := askJSON(transport, req, &answer)
	switch {
	case err != nil:
		return noAnswer(way.String(), err)
	case status == http.StatusNotFound:
		return &codedError{exitDenied, errors.New("this node has no console; start it without --console=false")}
	case status != http.StatusOK:
		return &codedError{exitDenied, errors.New(answer.Detail)}
	}
	_, err = fmt.Fprintln(out, answer.URL)
	return err
}

// askJSON sends a request and decodes the JSON that answers it.
func askJSON(transport *http.Transport, req *http.Request, answer any) (status int, err error) {
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(answer); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", req.URL.Path, resp.Status, err)
	}
	return resp.StatusCode, nil
}

// unmatched says why no rule matches a check. It is empty if a rule matches, or if the caller may not inspect.
type unmatched struct {
	reason string
	// domains are those with rules that the caller may use, if the check's domain has none.
	domains []string
}

// noRule reports whether no rule matches a check, so that nothing was decided.
func noRule(d *sluicev1.Decision) bool {
	return d.Error == nil && d.Rule == "" && d.Source == sluicev1.Source_SOURCE_UNMATCHED
}

// explainUnmatched asks the node, as its operator if this user is, why no rule matches, if that is so.
func (f clientFlags) explainUnmatched(ctx context.Context, check *sluicev1.Check, d *sluicev1.Decision) (why unmatched) {
	if !noRule(d) && d.GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_UNKNOWN_DOMAIN {
		return why
	}
	f.operator = true
	req := &adminv1alpha1.InspectRequest{Domain: check.Domain, Descriptor_: check.Descriptor_}
	res, _ := ask(ctx, &f, apiClient.Inspect, req) // the decision stands without it
	return unmatched{res.GetReason(), res.GetDomains()}
}

// known lists the domains, for the end of a sentence.
func (u unmatched) known() string {
	if len(u.domains) == 0 {
		return ""
	}
	shown := make([]string, len(u.domains))
	for i, d := range u.domains {
		shown[i] = printable(d)
	}
	return "; known: " + strings.Join(shown, ", ")
}

func (u unmatched) String() string {
	if u.reason == "" {
		return ""
	}
	return " (" + u.reason + u.known() + ")"
}
