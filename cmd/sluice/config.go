package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// settle fills the flags that the command line left alone, first from the
// environment (SLUICE_ and the flag's name in capitals, dashes as underscores),
// then from the YAML file that --config names, where keys are flag names and
// lists may be YAML lists. The command line wins over the environment, and the
// environment over the file. Errors name the variable, or the file and line.
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
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

func envName(flag string) string {
	return "SLUICE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// warnOfUnknown logs variables that begin like settings and are none, which a
// misspelt one is.
func warnOfUnknown(flags *pflag.FlagSet, environ []string, log *slog.Logger) {
	known := map[string]bool{"SLUICE_ADDR": true, tokenVariable: true}
	for _, name := range append(slices.Clone(clientTLSFlags), tokenFlagNames...) {
		known[envName(name)] = true // of the other commands, which may run beside the node
	}
	flags.VisitAll(func(f *pflag.Flag) { known[envName(f.Name)] = true })
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SLUICE_") && !known[name] {
			log.Warn("this environment variable is no setting", "name", name)
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

func settleOne(flags *pflag.FlagSet, seen map[string]bool, key, value *yaml.Node) error {
	f := flags.Lookup(key.Value)
	if f == nil || f.Name == "config" || f.Name == "help" {
		return errors.New("no such setting")
	}
	if seen[f.Name] {
		return errors.New("given twice")
	}
	seen[f.Name] = true
	if value.Kind == yaml.SequenceNode && f.Value.Type() != "stringSlice" {
		return errors.New("want one value, not a list")
	}
	text, err := scalarText(value)
	if err != nil || f.Changed {
		return err
	}
	return flags.Set(f.Name, text)
}

// scalarText returns a scalar's text, or a list's items joined by commas.
func scalarText(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Value, nil
	case yaml.SequenceNode:
		items := make([]string, len(n.Content))
		for i, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return "", errors.New("want a list of plain values")
			}
			items[i] = c.Value
		}
		return strings.Join(items, ","), nil
	}
	return "", errors.New("want a plain value or a list of them")
}
