package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
)

// moreNodes compares three nodes with nine: first nine idle ones, then both clusters with forwarded checks only, and as many
// independent echoes, which show the cost of more processes on the same cores.
func (t *target) moreNodes(ctx context.Context) error {
	nine, err := t.start(ctx, sluice(9))
	if err != nil {
		return err
	}
	idle, err := t.idle(ctx, nine.Processes)
	if err != nil {
		return err
	}
	r := report.AtMost("an idle node of nine", 2, idle, "% of a core")
	// The spread is over the nodes, and it is the worst that counts.
	r.Met = idle.High <= 2
	t.add(r)

	three, err := t.start(ctx, sluice(3))
	if err != nil {
		return err
	}
	var cs, without []contestant
	for _, s := range []*system.System{three, nine} {
		c := unary(s)
		c.domain, c.nodes = "allowed", s.Nodes()
		for _, c := range []contestant{c, c.unreplicated()} {
			if err := t.fill(ctx, c, usual, 100); err != nil {
				return err
			}
			owners, err := s.Owners(ctx, c.domain, usual)
			if err != nil {
				return err
			}
			name := c.name
			c = c.only(owners, false, "")
			c.name = name
			if c.domain == "allowed" {
				cs = append(cs, c)
			} else {
				without = append(without, c)
			}
		}
	}
	for _, n := range []int{3, 9} {
		s, err := t.start(ctx, system.Spec{System: "echo", Nodes: n})
		if err != nil {
			return err
		}
		cs = append(cs, contestant{name: s.Name, system: s, nodes: n})
	}
	cs = append(cs, without...)
	for _, checks := range []int{1, 100} {
		work := shape(3, 64, checks)
		work.Note = "nodes as the name says, all checks forwarded"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		r := report.AtMost(fmt.Sprintf("CPU seconds per million forwarded checks, %d a call, 9 nodes ÷ 3 nodes", checks), 1.25,
			cell.Ratio(1, 0, report.ServerCPU), "").Beside(cell.Ratio(5, 4, report.ServerCPU))
		r.Note = fmt.Sprintf("%s and %s s", report.Number(cell.Series[0].Of(report.ServerCPU).Median), report.Number(cell.Series[1].Of(report.ServerCPU).Median))
		t.add(r)
		over := func(of int) []float64 { return cell.Series[of+1].Over(&cell.Series[of], report.ServerCPU) }
		ours, bare, alone := over(0), over(2), over(4)
		for i := range bare {
			ours[i] /= bare[i]
			alone[i] /= bare[i]
		}
		t.add(report.Told(fmt.Sprintf("the echo's, %d a call, 9 processes ÷ 3 processes", checks), report.SpreadOf(bare), ""))
		t.add(report.Told("the one ÷ the other", report.SpreadOf(ours), "").Beside(report.SpreadOf(alone)))
	}
	return nil
}

// idle returns the processes' use of a core in percent while no checks are sent.
func (t *target) idle(ctx context.Context, ps []*process.Process) (report.Spread, error) {
	var cpu [2][]time.Duration
	for i := range cpu {
		// The first pause lets background work of joining end.
		if err := pause(ctx, []time.Duration{t.long / 5, t.long}[i]); err != nil {
			return report.Spread{}, err
		}
		for _, p := range ps {
			u, err := p.Usage()
			if err != nil {
				return report.Spread{}, err
			}
			cpu[i] = append(cpu[i], u.CPU)
		}
	}
	var shares []float64
	for i := range ps {
		shares = append(shares, 100*(cpu[1][i]-cpu[0][i]).Seconds()/t.long.Seconds())
	}
	return report.SpreadOf(shares), nil
}

// tracing compares a cluster that sends traces of one call in a hundred to an OpenTelemetry collector on this machine with one
// that sends none.
func (t *target) tracing(ctx context.Context) (err error) {
	collector, err := system.NewCollector()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, collector.Close()) }()
	if err := t.watched(ctx, "1 % of calls traced ÷ none", false, "--otlp-endpoint", collector.URL, "--trace-sample", "0.01"); err != nil {
		return err
	}
	t.stop() // nodes send their last traces when they end, which may be before the first are due
	if collector.Taken() == 0 {
		return errors.New("no trace has come to the collector")
	}
	return nil
}

// telemetry compares a cluster with the default log level and a Prometheus that scrapes it with one that logs only errors and
// is not scraped.
func (t *target) telemetry(ctx context.Context) error {
	return t.watched(ctx, "log and metrics at their defaults ÷ off", true)
}

// watched compares three nodes with flags, scraped or not, with three without, and both with the echo. Rounds are long, so
// that periodic work falls into each.
func (t *target) watched(ctx context.Context, what string, scraped bool, flags ...string) error {
	defer func(w time.Duration) { t.window = w }(t.window)
	t.window = max(t.window, t.long)
	cs, err := t.lineup(ctx, echo,
		system.Spec{System: "sluice", Name: "sluice ×3, not watched", Nodes: 3, Flags: []string{"--log-level", "error"}},
		system.Spec{System: "sluice", Name: "sluice ×3, watched", Nodes: 3, Flags: flags})
	if err != nil {
		return err
	}
	if scraped {
		stop, err := scrape(ctx, cs[3].system.HTTP)
		if err != nil {
			return err
		}
		defer stop()
	}
	work := shape(3, 64, 1)
	work.Note = what
	cell, err := t.compare(ctx, work, cs...)
	if err != nil {
		return err
	}
	t.add(report.AtLeast("3 nodes, 64 callers: "+what, 0.97, cell.Ratio(3, 1, report.Checks)).Beside(cell.Ratio(4, 2, report.Checks)))
	t.add(report.Told("the first ÷ the echo", cell.Ratio(3, 0, report.Checks), "").Beside(cell.Ratio(4, 0, report.Checks)))
	return nil
}

// scrapeEvery is shorter than Prometheus' usual 15 s.
const scrapeEvery = 5 * time.Second

// scrape reads the metrics of nodes at addrs, now and every scrapeEvery until stop is called. The error is that of the first
// time.
func scrape(ctx context.Context, addrs []string) (stop func(), err error) {
	if err := scrapeOnce(ctx, addrs); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var scraping sync.WaitGroup
	scraping.Go(func() {
		for pause(ctx, scrapeEvery) == nil {
			if err := scrapeOnce(ctx, addrs); err != nil && ctx.Err() == nil {
				fmt.Println("scraping:", err)
			}
		}
	})
	return func() { cancel(); scraping.Wait() }, nil
}

func scrapeOnce(ctx context.Context, addrs []string) error {
	for _, a := range addrs {
		if _, err := system.Metrics(ctx, a); err != nil {
			return err
		}
	}
	return nil
}
