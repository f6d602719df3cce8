// Command bench compares sluice with the bare transport and with other limiters.
// It runs in the folder of this module, with GOWORK=off:
//
//	go run . rows   what sluice is to reach; -only takes a part
//	go run . run    any grid of callers, checks a call, keys and nodes
//	go run . draw   curves of saved results as SVG
//
// Each command has -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
	"github.com/sluicecluster/sluice/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, []string) error{"rows": rows, "run": run, "draw": draw}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("want one of rows, run, draw")
	}
	return commands[args[0]](ctx, args[1:])
}

// grid has the flags of `run`: every combination is a cell.
type grid struct {
	session
	systems, distributions       []string
	nodes, callers, checks, keys []int
	domain                       string
	stream                       bool
}

// zipfExponent is the default skew: of 100,000 keys the first has an eighth of the checks.
const zipfExponent = 1.1

func run(ctx context.Context, args []string) (err error) {
	g := grid{
		systems: []string{"echo", "sluice", "gubernator"}, distributions: []string{"uniform"},
		nodes: []int{1}, callers: []int{64}, checks: []int{1}, keys: []int{usual},
	}
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	g.register(f)
	list(f, &g.systems, "systems", "which of echo, sluice, gubernator, ratelimit; ratios are to the first", word)
	list(f, &g.nodes, "nodes", "nodes of sluice and gubernator", number)
	list(f, &g.callers, "callers", "callers at a time", number)
	list(f, &g.checks, "checks", "checks a call", number)
	list(f, &g.keys, "keys", "different keys", number)
	list(f, &g.distributions, "distributions", "which of uniform, zipf", word)
	f.Float64Var(&g.exponent, "zipf", zipfExponent, "exponent of zipf, above 0")
	f.StringVar(&g.domain, "domain", "allowed", "allowed, or denied: all but the first check of a key are")
	f.BoolVar(&g.stream, "stream", false, "ask echo and sluice by CheckStream too")
	if err := f.Parse(args); err != nil {
		return err
	}
	if !(g.exponent > 0 && g.exponent <= load.MaxSkew) {
		return fmt.Errorf("-zipf: %v; want above 0, to %d", g.exponent, load.MaxSkew)
	}
	for _, d := range g.distributions {
		if d != "uniform" && d != "zipf" {
			return fmt.Errorf("-distributions: %q is neither uniform nor zipf", d)
		}
	}
	if err := g.open(ctx, "run"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	for _, nodes := range g.nodes {
		for _, keys := range g.keys {
			if err := g.block(ctx, nodes, keys); err != nil {
				return err
			}
		}
	}
	return nil
}

// block is all cells with the same servers.
func (g *grid) block(ctx context.Context, nodes, keys int) error {
	defer g.stop()
	var cs []contestant
	for _, name := range g.systems {
		spec := system.Spec{System: name, Nodes: nodes, Keys: keys}
		if name == "echo" {
			spec.Nodes = 1
		}
		batch := 100
		if name == "sluice" {
			batch = 1000 // too many for gubernator on several nodes
		}
		c, err := g.filled(ctx, spec, g.domain, keys, batch)
		if err != nil {
			return fmt.Errorf("-systems: %w", err)
		}
		cs = append(cs, c)
		if g.stream && (name == "echo" || name == "sluice") {
			cs = append(cs, c.by(system.Frames, "stream"))
		}
	}
	for _, distribution := range g.distributions {
		for _, callers := range g.callers {
			for _, checks := range g.checks {
				shape := report.Shape{Nodes: nodes, Callers: callers, Checks: checks, Keys: keys, Distribution: distribution, Domain: g.domain}
				if _, err := g.compare(ctx, shape, cs...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func draw(_ context.Context, args []string) error {
	f := flag.NewFlagSet("draw", flag.ContinueOnError)
	dir := f.String("out", "../docs/img", "`folder` for the SVG files")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("draw: name the JSON files to draw")
	}
	var cells []report.Cell
	for _, path := range f.Args() {
		file, err := report.Load(path)
		if err != nil {
			return err
		}
		cells = append(cells, file.Cells...)
	}
	names, err := report.Draw(cells, *dir)
	for _, n := range names {
		fmt.Fprintln(os.Stdout, n)
	}
	return err
}

// list defines a flag of values separated by commas, of which into has the default.
func list[T any](f *flag.FlagSet, into *[]T, name, usage string, parse func(string) (T, error)) {
	f.Func(name, fmt.Sprintf("%s (default %v)", usage, *into), func(text string) error {
		*into = nil
		for one := range strings.SplitSeq(text, ",") {
			v, err := parse(one)
			if err != nil {
				return err
			}
			*into = append(*into, v)
		}
		return nil
	})
}

func word(text string) (string, error) { return text, nil }

func number(text string) (int, error) {
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > load.MaxKeys {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", text, load.MaxKeys)
	}
	return v, nil
}
