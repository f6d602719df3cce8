package main

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// session is one run of the harness: how it measures and what it has found.
type session struct {
	sluice, build, out string
	rounds             int
	warmup, window     time.Duration

	bin   *system.Binaries
	file  report.File
	seed  uint64
	names map[int]*load.Keys
}

func (s *session) register(f *flag.FlagSet) {
	f.StringVar(&s.sluice, "sluice", "../bin/sluice", "`binary` under test")
	f.StringVar(&s.build, "build", "../bin/bench", "`folder` for the binaries of the peers")
	f.StringVar(&s.out, "out", "", "JSON `file` for the results (default results/COMMAND.json)")
	f.IntVar(&s.rounds, "rounds", 5, "rounds; in each, all systems have their turn")
	f.DurationVar(&s.warmup, "warmup", 300*time.Millisecond, "load before each measurement")
	f.DurationVar(&s.window, "window", 1500*time.Millisecond, "length of each measurement")
}

// open builds what is to be started. Close the session.
func (s *session) open(ctx context.Context, command string) error {
	if s.rounds < 1 || s.window <= 0 {
		return fmt.Errorf("-rounds %d and -window %v are to be above 0", s.rounds, s.window)
	}
	if s.out == "" {
		s.out = "results/" + command + ".json"
	}
	bin, err := system.Build(ctx, s.sluice, s.build)
	if err != nil {
		return err
	}
	s.bin = bin
	s.names = map[int]*load.Keys{}
	s.file = report.File{Date: time.Now().UTC().Truncate(time.Second), Revision: bin.Revision, Machine: machine()}
	return nil
}

func (s *session) close() error { return s.bin.Close() }

// namesOf returns n keys, the same ones at each call.
func (s *session) namesOf(n int) *load.Keys {
	if s.names[n] == nil {
		s.names[n] = load.NewKeys(n)
	}
	return s.names[n]
}

// contestant is one system's part in a cell.
type contestant struct {
	name   string
	system *system.System
	target load.Target
	pick   load.Pickers
	// node is asked, load.AnyNode for a random one.
	node int
	// keys, nodes and domain are set where they are not the shape's.
	keys, nodes int
	domain      string
	// rate is how many calls are begun in a second; 0 is as many as can be.
	rate float64
}

// unary is sys asked by unary calls at random nodes.
func unary(sys *system.System, pick load.Pickers) contestant {
	return contestant{name: sys.Name, system: sys, target: sys.Target, pick: pick, node: load.AnyNode}
}

// compare has all of cs do the work of shape in turns, tells the figures, and saves
// all there are so far.
func (s *session) compare(ctx context.Context, shape report.Shape, cs ...contestant) (*report.Cell, error) {
	cell := report.Cell{Shape: shape, Series: make([]report.Series, len(cs))}
	for range s.rounds {
		for i, c := range cs {
			r, err := s.measure(ctx, shape, c, s.window)
			if err == nil {
				err = settle(ctx, c.system.Processes)
			}
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", shape, c.name, err)
			}
			cell.Series[i].Name, cell.Series[i].Keys, cell.Series[i].Nodes = c.name, c.keys, c.nodes
			cell.Series[i].Rounds = append(cell.Series[i].Rounds, *r)
		}
	}
	s.file.Cells = append(s.file.Cells, cell)
	if err := report.WriteCell(os.Stdout, &cell); err != nil {
		return nil, err
	}
	return &s.file.Cells[len(s.file.Cells)-1], s.file.Save(s.out)
}

// measure is one round of c.
func (s *session) measure(ctx context.Context, shape report.Shape, c contestant, window time.Duration) (*report.Round, error) {
	s.seed++
	var server, client [2]process.Usage
	edge := 0
	result, err := load.Run(ctx, c.target, load.Work{
		Domain: cmp.Or(c.domain, shape.Domain), Callers: shape.Callers, Checks: shape.Checks, Keys: s.namesOf(shape.Keys), Pick: c.pick,
		Node: c.node, Rate: c.rate, Seed: s.seed, Warmup: s.warmup, Window: window,
		Edge: func() (err error) {
			if server[edge], err = process.Total(c.system.Processes); err != nil {
				return err
			}
			client[edge], err = process.Self()
			edge++
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	checks := float64(result.Checks())
	// No answer at all is a result too, and has no shares.
	each := 1 / max(checks, 1)
	share := func(n int64) float64 { return float64(n) * each }
	perMillion := func(u [2]process.Usage) float64 { return (u[1].CPU - u[0].CPU).Seconds() * each * 1e6 }
	us := func(quantile float64) float64 { return float64(result.Latency.ValueAtQuantile(quantile)) / 1e3 }
	r := &report.Round{
		CallsPerSecond:  float64(result.Calls) / window.Seconds(),
		ChecksPerSecond: checks / window.Seconds(),
		P50:             us(50), P99: us(99), P999: us(99.9),
		ServerCPU: perMillion(server), ClientCPU: perMillion(client),
		Resident: server[1].Resident,
		Denied:   share(result.Denied), Failed: share(result.Failed),
		Forwarded: share(result.Forwarded), Fallback: share(result.Fallback),
		FailedCalls: result.FailedCalls,
	}
	if spent := server[1].CPU - server[0].CPU; spent > 0 {
		r.GCShare = float64(server[1].GC-server[0].GC) / float64(spent)
	}
	if result.FirstError != nil {
		r.FirstError = result.FirstError.Error()
	}
	return r, nil
}

// settle waits until ps have nothing left to do, so that the next one to be measured
// does not pay for it: a collector's cycle, or calls that were given up. Five
// seconds at most, as some never rest.
func settle(ctx context.Context, ps []*process.Process) error {
	before, err := process.Total(ps)
	for range 50 {
		if err == nil {
			err = pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return err
		}
		var now process.Usage
		now, err = process.Total(ps)
		// Time is told in steps of 10 ms, and idle nodes gossip.
		if now.CPU-before.CPU <= time.Duration(1+len(ps))*10*time.Millisecond {
			return err
		}
		before = now
	}
	return nil
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fill makes counters of n keys in sys. It tells of checks that failed: some
// systems do not bear the load.
func (s *session) fill(ctx context.Context, sys *system.System, domain string, n, batch int) error {
	seen, err := load.Fill(ctx, sys.Target, domain, s.namesOf(n), 8, batch)
	if seen.Failed > 0 {
		fmt.Printf("filling %s: %d of %d checks failed\n", sys.Name, seen.Failed, n)
	}
	return err
}

func machine() report.Machine {
	m := report.Machine{CPU: "unknown", Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if name, value, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}
