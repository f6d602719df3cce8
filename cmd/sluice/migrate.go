package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/internal/migrate"
)

type migrateFlags struct {
	product      *migrate.Product
	options      migrate.Options
	output, into string
}

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Convert the settings of another rate limiter",
		Args:  onlyCommands,
		RunE:  helpOnly,
	}
	for _, p := range []*migrate.Product{migrate.Gubernator, migrate.Ratelimit} {
		f := migrateFlags{product: p}
		one := &cobra.Command{
			Use:   p.Name + " [FILE...]",
			Short: "Convert the settings of " + p.Title,
			Long: `Print a configuration file for sluice serve --config, made of the settings in files: lines
NAME=VALUE, or the environment in a YAML file of Compose or Kubernetes. - is the standard
input, and without files it is this process's environment. Comments in the result list what
has to be done by hand, what sluice does not need, and what is unknown.

Exit codes: 0 converted, 1 an error in a file, 2 wrong usage.`,
			Example: "  sluice migrate " + p.Name + " " + p.Name + ".env > sluice.yaml",
			RunE: func(cmd *cobra.Command, args []string) error {
				return withCode(exitDenied, f.run(cmd.InOrStdin(), cmd.OutOrStdout(), args))
			},
		}
		registerOutput(one.Flags(), &f.output)
		one.Flags().StringSliceVar(&f.options.Join, "join", nil, "`nodes` of the new cluster, all of them, comma separated (default: those of the settings)")
		if p == migrate.Ratelimit {
			one.Flags().StringVar(&f.options.Rules, "runtime", "", "`directory` with the rule files, here: RUNTIME_ROOT, or the directory of the files; they are validated")
			one.Flags().StringVar(&f.into, "write-rules", "", "`directory` to write rule files to that have to be changed")
		}
		cmd.AddCommand(one)
	}
	return cmd
}

func (f *migrateFlags) run(in io.Reader, out io.Writer, files []string) error {
	values, err := f.read(in, files)
	if err != nil {
		return err
	}
	report, err := f.product.Convert(values, f.options)
	if err = errors.Join(err, accepted(report)); err != nil {
		return err
	}
	if f.into != "" {
		for _, file := range report.Files {
			path := filepath.Join(f.into, filepath.FromSlash(file.Path))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file.Text), 0o644)); err != nil {
				return err
			}
		}
	}
	return write(out, f.output, report.String(), report)
}

func (f *migrateFlags) read(in io.Reader, files []string) (values []migrate.Value, err error) {
	if len(files) == 0 {
		for _, e := range os.Environ() {
			name, text, _ := strings.Cut(e, "=")
			values = append(values, migrate.Value{Name: name, Text: text, At: migrate.FromEnvironment})
		}
	}
	for _, file := range files {
		var data []byte
		if file == "-" {
			data, err = io.ReadAll(in)
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			return nil, err
		}
		more, err := migrate.Read(file, data)
		if err != nil {
			return nil, err
		}
		values = append(values, more...)
	}
	return values, nil
}

// accepted parses the flags of a report as `sluice serve` does. Errors name the setting that a flag comes from.
func accepted(r *migrate.Report) error {
	var s settings
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.register(flags)
	var errs []error
	for _, f := range r.Flags {
		if err := flags.Set(f.Name, f.Value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", f.At, f.Setting, err))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	err := s.validate()
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSuffix(line, "\n")
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "--"), ":")
		if i := slices.IndexFunc(r.Flags, func(f migrate.Flag) bool { return f.Name == name }); i >= 0 {
			line = r.Flags[i].At + ": " + r.Flags[i].Setting + ": " + line
		}
		errs = append(errs, errors.New(line))
	}
	return errors.Join(errs...)
}
