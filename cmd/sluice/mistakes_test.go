package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
)

// TestMistakes: a wrong command line says what is wrong and what to do, in words of sluice.
func TestMistakes(t *testing.T) {
	nobody := serveGRPC(t, func(*grpc.Server) {})
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		do(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"chek", "--domain", "a"}, "unknown command \"chek\" for \"sluice\"; did you mean check?"},
		{[]string{"server"}, "did you mean serve?"},
		{[]string{"stats"}, "did you mean status?"},
		{[]string{"rules", "chekc", "--merge-domains"}, "unknown command \"chekc\" for \"sluice rules\"; did you mean check?"},
		{[]string{"whatever"}, "unknown command \"whatever\" for \"sluice\"; see `sluice --help`"},
		{[]string{"nosuch", "--help"}, "unknown command \"nosuch\" for \"sluice\"; see `sluice --help`"},
		{[]string{"--help", "stauts"}, "unknown command \"stauts\" for \"sluice\"; did you mean status?"},
		{[]string{"stauts", "-h", "--addr", "x"}, "unknown command \"stauts\" for \"sluice\"; did you mean status?"},
		{[]string{"help", "stauts"}, "unknown command \"stauts\" for \"sluice\"; did you mean status?"},
		{[]string{"help", "rules", "chekc"}, "unknown command \"chekc\" for \"sluice rules\"; did you mean check?"},
		{[]string{"rules", "chekc", "--help"}, "unknown command \"chekc\" for \"sluice rules\"; did you mean check?"},
		{[]string{"members", "forgot", "--help"}, "unknown command \"forgot\" for \"sluice members\"; did you mean forget?"},
		{[]string{"serve", "--joins", "x"}, "unknown flag: --joins; did you mean --join?"},
		{[]string{"serve", "--frobnicate"}, "unknown flag: --frobnicate; see `sluice serve --help`"},
		{[]string{"members", "-x"}, "unknown shorthand flag: 'x' in -x; see `sluice members --help`"},
		{[]string{"rules", "check", "--merge-domain", "x"}, "unknown flag: --merge-domain; did you mean --merge-domains?"},
		{[]string{"serve", "--grpc-port", "abc"}, `--grpc-port: "abc"; want a whole number of 0 to 65535`},
		{[]string{"serve", "--check-timeout", "1500"}, `--check-timeout: "1500"; want a time with its unit, such as 500ms, 10s or 5m`},
		{[]string{"serve", "--console=perhaps"}, `--console: "perhaps"; want true or false`},
		{[]string{"serve", "--trace-sample", "some"}, `--trace-sample: "some"; want a number`},
		{[]string{"serve", "--bind", "localhost"}, `--bind: "localhost" is not an IP address such as 127.0.0.1, or 0.0.0.0 for all`},
		{[]string{"serve", "--config", file("joi.yaml", "joi: x\n")}, "joi.yaml:1: joi: no such setting; did you mean join or join-timeout?"},
		{[]string{"serve", "--config", file("under.yaml", "check_timeout: 1s\n")}, "check_timeout: no such setting; did you mean check-timeout?"},
		{[]string{"serve", "--config", file("unit.yaml", "check-timeout: 1500\n")}, `unit.yaml:1: check-timeout: --check-timeout: "1500"; want a time with its unit`},
		{[]string{"bench", "--duration", "5"}, `--duration: "5"; want a time with its unit`},
		{[]string{"bench", "--compare", file("old.json", "{}"), "--addr", nobody}, "old.json is not a report of sluice bench -o json"},
		{[]string{"audit", "--spec", "limit=x"}, `--spec limit=x: --limit: "x"; want a whole number`},
		{[]string{"top", "--sort", "size"}, `--sort: "size" is none of rate, count, domain, key`},
		{[]string{"status", "--interval", "1ms"}, "--interval: 1ms is below 100ms"},
		{[]string{"status", "-o", "yaml"}, `--output: "yaml": want text, wide, json`},
		{[]string{"status", "now"}, `unexpected argument "now"; usage: sluice status [flags]`},
		{[]string{"members", "forget"}, "accepts 1 arg(s), received 0; usage: sluice members forget NAME [flags]"},
		{[]string{"check"}, "usage: sluice check --domain DOMAIN KEY=VALUE..."},
		{[]string{"check", "auth", "user=a"}, "--domain: name the domain of the rules; did you mean --domain auth user=a?"},
		{[]string{"inspect", "auth", "user=a"}, "--domain: name the domain of the rules; did you mean --domain auth user=a?"},
	} {
		code, out, errs := cli(c.args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errs, "sluice: ") || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %s", c.args, code, out, errs, c.want)
		}
		for _, leak := range []string{"strconv", "time: missing", "invalid argument"} {
			if strings.Contains(errs, leak) {
				t.Errorf("%v: %q is in %s", c.args, leak, errs)
			}
		}
	}
	t.Setenv("SLUICE_GRPC_PORT", "many")
	if code, _, errs := cli("serve"); code != exitUsage || !strings.Contains(errs, `environment variable SLUICE_GRPC_PORT: --grpc-port: "many"; want a whole number`) {
		t.Errorf("%d %s", code, errs)
	}
}

// TestHelpOfNoCommand: a command below any other that does not exist is an error with --help too, and known ones have their help.
func TestHelpOfNoCommand(t *testing.T) {
	groups := 0
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		code, out, errs := cli(append(slices.Clone(path), "--help")...)
		if code != exitOK || !strings.Contains(out, "Usage:") {
			t.Errorf("%v --help: %d %s %s", path, code, out, errs)
		}
		if !cmd.HasSubCommands() {
			return
		}
		groups++
		for _, args := range [][]string{append(slices.Clone(path), "nosuch", "--help"), append([]string{"help"}, append(path, "nosuch")...)} {
			want := fmt.Sprintf("sluice: unknown command \"nosuch\" for %q; see `%s --help`\n", cmd.CommandPath(), cmd.CommandPath())
			if code, out, errs := cli(args...); code != exitUsage || out != "" || errs != want {
				t.Errorf("%v: exit code %d\n%s%s\nwant %s", args, code, out, errs, want)
			}
		}
		for _, below := range cmd.Commands() {
			walk(below, append(slices.Clone(path), below.Name()))
		}
	}
	walk(newRoot(), nil)
	if groups < 5 {
		t.Errorf("only %d commands have others below them", groups)
	}
}

// TestServiceLinks: a variable that Kubernetes sets for a Service is named as such, with the remedy.
func TestServiceLinks(t *testing.T) {
	const remedy = "for the Service sluice-grpc: set enableServiceLinks: false in the spec of the pod"
	t.Setenv("SLUICE_GRPC_PORT", "tcp://10.96.3.4:7460")
	if code, _, errs := cli("serve"); code != exitUsage || !strings.Contains(errs, `environment variable SLUICE_GRPC_PORT: --grpc-port: "tcp://10.96.3.4:7460"; want a whole number`) ||
		!strings.Contains(errs, remedy) {
		t.Errorf("%d %s", code, errs)
	}
	for variable, linked := range map[string]bool{
		"SLUICE_GRPC_SERVICE_HOST=10.96.3.4": true, "SLUICE_GRPC_SERVICE_PORT=7460": true, "SLUICE_GRPC_SERVICE_PORT_API=7460": true,
		"SLUICE_GRPC_PORT=tcp://10.96.3.4:7460": true, "SLUICE_GRPC_PORT_7460_TCP=tcp://10.96.3.4:7460": true,
		"SLUICE_GRPC_PORT_7460_TCP_PROTO=tcp": true, "SLUICE_GRPC_PORT_7460_TCP_PORT=7460": true, "SLUICE_GRPC_PORT_7460_TCP_ADDR=10.96.3.4": true,
		"SLUICE_GRPC_PORT=many": false, "SLUICE_RULS=/rules": false,
	} {
		var log bytes.Buffer
		warnOfUnknown(pflag.NewFlagSet("", pflag.ContinueOnError), []string{variable}, slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), "unknown setting") || strings.Contains(log.String(), remedy) != linked {
			t.Errorf("%s: %s", variable, &log)
		}
	}
}

// TestHelp: commands and the flags of serve are in groups, and none is left over.
func TestHelp(t *testing.T) {
	code, out, _ := cli("--help")
	at := 0
	for _, title := range []string{"Examples:", "Run:", "Query:", "Rules:", "Test:", "Security:"} {
		next := strings.Index(out, "\n"+title)
		if next <= at {
			t.Errorf("%s is not in its place: exit code %d\n%s", title, code, out)
		}
		at = next
	}
	code, out, _ = cli("serve", "--help")
	for _, want := range []string{"\nSecurity:\n", "\nPorts:\n", "--grpc-port port", "--help"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("no %q in the help of serve", want)
		}
	}
	_, other, _ := strings.Cut(out, "\nOther:\n")
	if strings.Count(other, "--") != 1 || !strings.Contains(other, "--help") {
		t.Errorf("flags without a group:\n%s", other)
	}
}
