package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
	"github.com/sluicecluster/sluice/internal/load"
)

// session is one run of the harness: its settings and results.
type session struct {
	sluice, build, out string
	rounds             int
	warmup, window     time.Duration
	// exponent is that of zipf.
	exponent float64

	bin     *system.Binaries
	file    report.File
	seed    uint64
	running []*system.System
	flags   []string // of the started systems
	pickers map[drawing]*load.Pickers
}

// drawing identifies Pickers.
type drawing struct {
	keys         int
	distribution string
}

func (s *session) register(f *flag.FlagSet) {
	f.StringVar(&s.sluice, "sluice", "../bin/sluice", "`binary` under test")
	f.StringVar(&s.build, "build", "../bin/bench", "`folder` for the binaries of the peers")
	f.StringVar(&s.out, "out", "", "JSON `file` for the results (default results/COMMAND.json)")
	f.IntVar(&s.rounds, "rounds", 5, "rounds; in each, all systems have their turn")
	f.DurationVar(&s.warmup, "warmup", 300*time.Millisecond, "load before each measurement")
	f.DurationVar(&s.window, "window", 1500*time.Millisecond, "length of each measurement")
}

// open builds the systems. Close the session.
func (s *session) open(ctx context.Context, command string) error {
	if s.rounds < 1 || s.window <= 0 || s.warmup < 0 {
		return fmt.Errorf("-rounds %d and -window %v are to be above 0, -warmup %v 0 or more", s.rounds, s.window, s.warmup)
	}
	if s.out == "" {
		s.out = "results/" + command + ".json"
	}
	bin, err := system.Build(ctx, s.sluice, s.build)
	if err != nil {
		return err
	}
	s.bin = bin
	s.pickers = map[drawing]*load.Pickers{}
	s.file = report.File{Date: time.Now().UTC().Truncate(time.Second), Revision: bin.Revision, Machine: machine()}
	return nil
}

func (s *session) close() error {
	s.stop()
	return s.bin.Close()
}

// start starts a system, which runs until stop, by default with one node.
func (s *session) start(ctx context.Context, spec system.Spec) (*system.System, error) {
	spec.Nodes = cmp.Or(spec.Nodes, 1)
	sys, err := s.bin.Start(ctx, spec)
	if err == nil {
		s.running = append(s.running, sys)
		line := sys.Name + ": none"
		if len(sys.Flags) > 0 {
			line = fmt.Sprintf("%s: %q", sys.Name, sys.Flags)
		}
		if !slices.Contains(s.flags, line) {
			s.flags = append(s.flags, line)
		}
	}
	return sys, err
}

// filled starts a system, sends a check of each of n keys of domain, unless it is the echo, and returns it for unary calls.
func (s *session) filled(ctx context.Context, spec system.Spec, domain string, n, batch int) (contestant, error) {
	sys, err := s.start(ctx, spec)
	if err != nil {
		return contestant{}, err
	}
	c := unary(sys)
	c.domain = domain
	if spec.System != "echo" {
		err = s.fill(ctx, c, n, batch)
	}
	return c, err
}

// stop ends all running systems.
func (s *session) stop() {
	for _, sys := range s.running {
		sys.Stop()
	}
	s.running = nil
}

// draws returns the Pickers of a number of keys; zipf's tables are made once.
func (s *session) draws(keys int, distribution string) (*load.Pickers, error) {
	d := drawing{keys, distribution}
	if p := s.pickers[d]; p != nil {
		return p, nil
	}
	skew := 0.0
	if distribution == "zipf" {
		skew = s.exponent
	}
	p, err := load.NewPickers(keys, skew)
	s.pickers[d] = p
	return p, err
}

// contestant is one system's part in a cell.
type contestant struct {
	name   string
	system *system.System
	api    string // see system.Target
	// asked are the nodes to call, nil for all; accepts is as in load.Work.
	asked   []int
	accepts func(node int, key uint32) bool
	// keys, nodes and domain are set where they differ from the shape's.
	keys, nodes int
	domain      string
	rate        float64 // checks per second; 0 is without a limit
}

// unary is sys with unary calls to random nodes.
func unary(sys *system.System) contestant { return contestant{name: sys.Name, system: sys} }

// by is c with another API, and name for it.
func (c contestant) by(api, name string) contestant {
	c.api, c.name = api, c.name+", "+name
	return c
}

// unreplicated is a cluster of sluice with checks of a rule without replicas.
func (c contestant) unreplicated() contestant {
	c.domain, c.name = "unreplicated", strings.Replace(c.name, "sluice", "sluice without replicas", 1)
	return c
}

// only is c with checks of keys that the called node owns, or of keys that another one owns.
func (c contestant) only(owners []uint8, owned bool, name string) contestant {
	c.accepts = func(node int, key uint32) bool { return (int(owners[key]) == node) == owned }
	c.name += ", " + name
	return c
}

// compare runs the work of shape on all of cs in turns, prints the figures, and saves all results so far.
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
	return &s.file.Cells[len(s.file.Cells)-1], report.Save(s.out, &s.file)
}

// measure is one round of c.
func (s *session) measure(ctx context.Context, shape report.Shape, c contestant, window time.Duration) (*report.Round, error) {
	draws, err := s.draws(cmp.Or(c.keys, shape.Keys), shape.Distribution)
	if err != nil {
		return nil, err
	}
	target, err := c.system.Target(c.api, cmp.Or(c.domain, shape.Domain))
	if err != nil {
		return nil, err
	}
	s.seed++
	runtime.GC() // of earlier loads
	loading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var server, client [2]process.Usage
	var reading sync.WaitGroup
	reading.Go(func() {
		at := time.Now().Add(s.warmup)
		for edge := range server {
			err := pause(loading, time.Until(at))
			if err == nil {
				server[edge], err = process.Total(c.system.Processes)
			}
			if err == nil {
				client[edge], err = process.Self()
			}
			if err != nil {
				cancel(err)
				return
			}
			at = at.Add(window)
		}
	})
	result, err := load.Run(loading, target, load.Work{
		Callers: shape.Callers, Batch: shape.Checks, Rate: c.rate, Keys: draws, Prefix: "user", Nodes: c.asked, Accepts: c.accepts,
		Seed: s.seed, Warmup: s.warmup, Duration: window,
	})
	if err != nil {
		cancel(err)
	}
	reading.Wait()
	if err := context.Cause(loading); err != nil {
		return nil, err
	}
	return roundOf(result, shape.Checks, window, server, client), nil
}

// roundOf returns the figures of a load, with the usage of the servers and of this process at the begin and end of its window.
// The checks of failed calls count as calls only.
func roundOf(result *load.Result, batch int, window time.Duration, server, client [2]process.Usage) *report.Round {
	all, failed := result.Decided(), result.Failed-result.FailedCalls*int64(batch)
	checks := float64(all.Allowed + all.Denied + failed)
	// A round without any answer has no shares.
	each := 1 / max(checks, 1)
	share := func(n int64) float64 { return float64(n) * each }
	from := func(sources ...load.Source) (n int64) {
		for _, s := range sources {
			n += result.By[s].Allowed + result.By[s].Denied
		}
		return n
	}
	perMillion := func(u [2]process.Usage) float64 { return (u[1].CPU - u[0].CPU).Seconds() * each * 1e6 }
	us := func(quantile float64) float64 { return float64(result.Latency.ValueAtQuantile(quantile)) / 1e3 }
	r := &report.Round{
		CallsPerSecond:  float64(result.Calls) / window.Seconds(),
		ChecksPerSecond: checks / window.Seconds(),
		P50:             us(50), P99: us(99), P999: us(99.9),
		ServerCPU: perMillion(server), ClientCPU: perMillion(client),
		Resident: server[1].Resident,
		Denied:   share(all.Denied), Failed: share(failed), Forwarded: share(from(load.Forwarded)),
		Fallback:    share(from(load.Share, load.Closed, load.Open, load.Unmatched)),
		FailedCalls: result.FailedCalls,
	}
	if spent := server[1].CPU - server[0].CPU; spent > 0 {
		r.GCShare = float64(server[1].GC-server[0].GC) / float64(spent)
	}
	if result.FirstError != nil {
		r.FirstError = result.FirstError.Error()
	}
	return r
}

// settle waits until ps are idle, five seconds at most, so that background work, as of the garbage collector, does not slow
// the next measurement.
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
		// CPU time has steps of 10 ms, and idle nodes gossip.
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

// fill makes counters of n keys in c, and prints how many checks failed: some systems are overloaded.
func (s *session) fill(ctx context.Context, c contestant, n, batch int) error {
	target, err := c.system.Target(c.api, c.domain)
	if err != nil {
		return err
	}
	failed, err := fill(ctx, target, n, 8, batch)
	if failed > 0 {
		fmt.Printf("filling %s: %d of %d checks failed\n", c.name, failed, n)
	}
	return err
}

// fill sends a check of each of n keys, in order, in calls of batch checks to the nodes in turn. It returns the number of
// failed checks.
func fill(ctx context.Context, target load.Target, n, callers, batch int) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, failed atomic.Int64
	var filling sync.WaitGroup
	for range callers {
		filling.Go(func() {
			caller, keys := target.NewCaller(batch), make([]string, batch)
			for ctx.Err() == nil {
				call := int(next.Add(1)) - 1
				if call*batch >= n {
					return
				}
				for i := range keys {
					// The last call repeats the last key to be full.
					keys[i] = load.Name("user", uint32(min(call*batch+i, n-1)))
				}
				var seen load.Counts
				if err := caller.Call(ctx, call%target.Nodes(), keys, &seen); err != nil {
					cancel(fmt.Errorf("filling: %w", err))
				}
				failed.Add(seen.Failed)
			}
		})
	}
	filling.Wait()
	return failed.Load(), context.Cause(ctx)
}

func machine() report.Machine {
	m := report.Machine{CPU: "unknown", Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	text, _ := os.ReadFile("/proc/cpuinfo") // without it, the CPU is unknown
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}
