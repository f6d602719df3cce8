package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// cause is a reason why a call failed. gRPC passes causes on as text alone, so they are recognized by parts of it.
type cause struct {
	texts []string
	// advice is what happened and what to do. %s is the text of the cause.
	advice string
}

var causes = []cause{
	{[]string{"no such host", "produced zero addresses", "Temporary failure in name resolution"}, "the host name is not known: check the address, or give an IP address"},
	{[]string{" lookup "}, "the host name is not known, as no DNS server answers (%s): check the network, or give an IP address"},
	{[]string{"connection refused"}, "nothing listens there: is the node running, and is this its port?"},
	{[]string{"no route to host", "network is unreachable"}, "there is no way to this address: check it, and the network"},
	{[]string{"first record does not look like a TLS handshake", "server gave HTTP response to HTTPS client"},
		"the port has no TLS: leave out --tls, --ca, --cert, --cert-key and --server-name"},
	{[]string{"certificate signed by unknown authority"}, "the node's certificate is signed by a CA that this machine does not know: name the file of the CA's certificate with --ca"},
	{[]string{"certificate is valid for", "cannot validate certificate for", "certificate is not valid for any names"},
		"the node's certificate is for another name (%s): use a name that it has as address, or with --server-name"},
	{[]string{"certificate has expired or is not yet valid"}, "the node's certificate has expired or is not valid yet: replace it, or set this machine's clock (%s)"},
	{[]string{"tls: certificate required", "tls: bad certificate", "tls: unknown certificate authority", "tls: expired certificate"},
		"the node asks for a certificate of the client that its CA has signed, and that has not expired: give --cert and --cert-key"},
	{[]string{"unexpected HTTP status code received from server", "malformed HTTP response", "malformed HTTP version", "unknown service", "unknown method", "transport: received unexpected content-type"},
		"this port does not have the API that the command calls: give the node's gRPC port, 7460 by default (with --api http or authorize its HTTP port, 7461), unless the node's version has another API"},
	{[]string{"HTTP request to an HTTPS server"}, "the port has TLS: give --ca with the file of the CA's certificate, or --tls if this machine knows the CA"},
	{[]string{"error reading server preface", "closed the connection", "connection reset by peer", "broken pipe", ": EOF", "unexpected EOF"},
		"the connection was closed: does the port have TLS (--tls, --ca), does it ask for a certificate of the client (--cert, --cert-key), or is it another than the gRPC port, 7460 by default?"},
	{[]string{"context deadline exceeded", "i/o timeout", "Client.Timeout", "no node answered in time"}, "no answer in time: is a firewall between, is the node overloaded? --timeout waits longer"},
}

// explain replaces the text of an error of gRPC, net/http or crypto/tls by advice. An unknown error keeps its text.
func explain(err error) error {
	st, ok := status.FromError(err)
	if ok && !slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal}, st.Code()) {
		return errors.New(st.Message()) // the node's own words
	}
	text := err.Error()
	for _, c := range causes {
		if !slices.ContainsFunc(c.texts, func(t string) bool { return strings.Contains(text, t) }) {
			continue
		}
		advice := c.advice
		if strings.Contains(advice, "%s") {
			advice = fmt.Sprintf(advice, innermost(err))
		}
		return errors.New(advice)
	}
	if ok {
		return errors.New(st.Message())
	}
	return err
}

// innermost returns the text of an error about a certificate or a name, without the texts that wrap it.
func innermost(err error) string {
	text := strings.TrimSuffix(err.Error(), `"`)
	for _, begin := range []string{"x509: ", "lookup "} {
		if i := strings.LastIndex(text, begin); i >= 0 {
			return text[i+len(begin):]
		}
	}
	return text
}

// suggestFlag explains cobra's errors about flags: an unknown one with the nearest, a value with what is wanted. An unknown command
// before a flag comes first.
func suggestFlag(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return onlyCommands(cmd, args)
	}
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	switch {
	case !ok:
		return explainValue(err)
	case missing.GetSpecifiedShortnames() != "":
		return fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
	}
	return fmt.Errorf("%w%s", err, cmp.Or(nearFlags(cmd.Flags(), missing.GetSpecifiedName(), "--"), fmt.Sprintf("; see `%s --help`", cmd.CommandPath())))
}

// wantedValues say what a flag of a type takes.
var wantedValues = map[string]string{
	"duration": "a time with its unit, such as 500ms, 10s or 5m", "bool": "true or false", "float64": "a number",
	"uint16": "a whole number of 0 to 65535", "int": "a whole number", "int32": "a whole number", "int64": "a whole number",
	"uint64": "a whole number of 0 or more", "intSlice": "whole numbers, separated by commas",
}

// explainValue replaces what strconv and time say about the value of a flag.
func explainValue(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	if want := wantedValues[flag.Value.Type()]; want != "" {
		return fmt.Errorf("--%s: %q; want %s", flag.Name, invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s: %q: %w", flag.Name, invalid.GetValue(), invalid.Unwrap())
}

// nearFlags ends an error with the flags that have nearly this name, each behind dashes; it is empty if there are none.
func nearFlags(flags *pflag.FlagSet, name, dashes string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra finds the nearest names of commands
	flags.VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	return didYouMean(names.SuggestionsFor(name), dashes)
}

func didYouMean(near []string, dashes string) string {
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + dashes + strings.Join(near, " or "+dashes) + "?"
}

// explainArgs adds to cobra's errors about the number of arguments what the command takes.
func explainArgs(cmd *cobra.Command, err error) error {
	switch {
	case strings.Contains(err.Error(), "arg(s)"):
		return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
	case strings.HasPrefix(err.Error(), "unknown command") && !cmd.HasSubCommands():
		return fmt.Errorf("unexpected argument %q; usage: %s", cmd.Flags().Arg(0), cmd.UseLine())
	}
	return err
}

// onlyCommands rejects the arguments of a command that only has others below it.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(),
		cmp.Or(didYouMean(cmd.SuggestionsFor(args[0]), ""), fmt.Sprintf("; see `%s --help`", cmd.CommandPath())))
}

// rejectUnknownHelp makes a request for help with an unknown command below root an error, which it sets: cobra prints the help of the
// command above instead.
func rejectUnknownHelp(root *cobra.Command) *error {
	var unknown error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd.HasSubCommands() {
			unknown = onlyCommands(cmd, cmd.Flags().Args())
		}
		if unknown == nil {
			help(cmd, args)
		}
	})
	root.InitDefaultHelpCmd()
	if topics, _, err := root.Find([]string{"help"}); err == nil {
		topics.Args = func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && cmd.HasSubCommands() {
				err = onlyCommands(cmd, rest)
			}
			return usageError(err)
		}
	}
	return &unknown
}

// answers reports whether addr accepts a connection within patience.
func answers(addr string, patience time.Duration) bool {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
