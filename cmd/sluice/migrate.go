package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicecluster/sluice/internal/migrate"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Convert the settings of another rate limiter", Args: onlyCommands, RunE: helpOnly}
	for _, p := range []*migrate.Product{migrate.Gubernator, migrate.Ratelimit} {
		cmd.AddCommand(newMigrateFrom(p))
	}
	return cmd
}

func newMigrateFrom(p *migrate.Product) *cobra.Command {
	var join []string
	var output, runtime, into string
	cmd := &cobra.Command{
		Use:   p.Name + " [FILE...]",
		Short: "Convert the settings of " + p.Title,
		Long: `Print a file for sluice serve --config, made of the settings in files with lines NAME=VALUE
and of the defaults of others. Comments in it list what has to be done by hand, what needs
nothing, and what is unknown.

Exit codes: 0 converted, 1 an error in a file, 2 wrong usage.`,
		Example: "  sluice migrate " + p.Name + " settings.env > sluice.yaml\n  kubectl set env deployment/NAME --list | sluice migrate " + p.Name + " /dev/stdin",
		RunE: func(cmd *cobra.Command, files []string) error {
			var values []migrate.Value
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					return withCode(exitDenied, err)
				}
				more, err := migrate.Read(file, string(text))
				if err != nil {
					return withCode(exitDenied, err)
				}
				values = append(values, more...)
			}
			report, err := p.Convert(values, join, runtime)
			if err = errors.Join(err, accepted(report)); err != nil {
				return withCode(exitDenied, err)
			}
			for name, text := range report.Files {
				path := filepath.Join(into, filepath.FromSlash(name))
				if into == "" {
					break
				} else if err := writeRules(path, text); err != nil {
					return withCode(exitDenied, err)
				}
			}
			return write(cmd.OutOrStdout(), output, report.String(), report)
		},
	}
	registerOutput(cmd.Flags(), &output)
	cmd.Flags().StringSliceVar(&join, "join", nil, "all `nodes` of the new cluster, comma separated (default: those of the settings)")
	if p == migrate.Ratelimit {
		cmd.Flags().StringVar(&runtime, "runtime", "", "`directory` with the rule files, to validate them")
		cmd.Flags().StringVar(&into, "write-rules", "", "`directory` for rule files that have to be changed")
	}
	return cmd
}

// accepted parses the flags of a report as serve does. Errors name the settings that they come from.
func accepted(r *migrate.Report) error {
	var s settings
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.register(flags)
	var errs []error
	for _, n := range r.Notes {
		if n.Outcome == migrate.Flag && flags.Set(n.Flag, n.Value) != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %q is no value for --%s", n.At, n.Setting, n.Value, n.Flag))
		}
	}
	err := s.validate()
	if errs != nil || err == nil {
		return errors.Join(errs...)
	}
	text := err.Error()
	for _, n := range r.Notes {
		if n.Outcome == migrate.Flag && n.At != "" {
			text = strings.ReplaceAll(text, "--"+n.Flag+": ", n.At+": "+n.Setting+": --"+n.Flag+": ")
		}
	}
	return errors.New(text)
}

// writeRules writes a rule file that a node of another user can read.
func writeRules(path, text string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755) // #nosec G301 -- no secret
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644) // #nosec G306 -- no secret
}
