package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// joinKeys is how many keys there are while a node joins.
const joinKeys = 1_000_000

// slice is how long each measurement lasts while a node joins: short enough to see it.
const slice = 500 * time.Millisecond

// joining compares, on a cluster of three with a million keys, the half seconds before a fourth node starts with those until
// it owns its partitions and every partition has its replica again: under full load, where the machine has no spare
// capacity for another process, and under half of it.
func (t *target) joining(ctx context.Context) error {
	keys := joinKeys
	if t.rounds == 1 {
		keys = t.scale[0]
	}
	full, err := t.filled(ctx, system.Spec{System: "sluice", Nodes: 3, Keys: 2 * keys}, "replicated", keys, 1000)
	if err != nil {
		return err
	}
	work := shape(3, 64, 1)
	work.Keys, work.Domain = keys, "replicated"
	capacity, err := t.halves(ctx, work, full, 4)
	if err != nil {
		return err
	}
	half := full
	half.rate = capacity.Of(report.Checks).Median / 2
	for _, c := range []contestant{half, full} {
		if err := t.joinUnder(ctx, work, c); err != nil {
			return err
		}
	}
	return nil
}

// joinUnder has a node join and leave again, round by round, under the load of c.
func (t *target) joinUnder(ctx context.Context, work report.Shape, c contestant) error {
	var kept, worst, slower, after, took []float64
	for range t.rounds {
		before, err := t.halves(ctx, work, c, 4)
		if err != nil {
			return err
		}
		g, err := t.grow(ctx, work, c)
		if err != nil {
			return err
		}
		base, p99 := before.Of(report.Checks).Median, before.Of(report.P99).Median
		sum := 0.0
		for i := range g.during.Rounds {
			sum += g.during.Rounds[i].ChecksPerSecond
		}
		kept = append(kept, sum/float64(len(g.during.Rounds))/base)
		worst = append(worst, g.during.Of(report.Checks).Low/base)
		slower = append(slower, g.during.Of(report.P99).High/p99)
		after = append(after, g.after.Of(report.Checks).Median/base)
		took = append(took, g.took.Seconds())
		fmt.Printf("join: %s checks/s and p99 %s µs before; %v until all is in place: %.2f, worst half second %.2f, worst p99 %.2f of that; %.2f afterwards\n",
			report.Number(base), report.Number(p99), g.took.Round(10*time.Millisecond), kept[len(kept)-1], worst[len(worst)-1], slower[len(slower)-1], after[len(after)-1])
		if err := c.system.Shrunk(ctx); err != nil {
			return err
		}
	}
	load := "half"
	if c.rate == 0 {
		load = "full"
	}
	what := fmt.Sprintf("a fourth node joins, %s keys, %s load: ", report.Number(float64(work.Keys)), load)
	t.add(report.AtLeast(what+"checks/s until all is in place ÷ before", 0.80, report.SpreadOf(kept)))
	t.add(report.Told(what+"in the worst half second", report.SpreadOf(worst), ""))
	t.add(report.Told(what+"afterwards", report.SpreadOf(after), ""))
	if c.rate == 0 {
		t.add(report.AtMost(what+"p99 of the worst half second ÷ before", 3, report.SpreadOf(slower), ""))
	} else {
		// From when calls were due: the time that they waited for the one before is in it.
		t.add(report.Told(what+"p99 of the worst half second ÷ before, waiting included", report.SpreadOf(slower), ""))
	}
	t.add(report.Told(what+"until all is in place", report.SpreadOf(took), "s"))
	return nil
}

// halves measures n half seconds, one after the other.
func (t *target) halves(ctx context.Context, work report.Shape, c contestant, n int) (*report.Series, error) {
	s := new(report.Series)
	for range n {
		r, err := t.measure(ctx, work, c, slice)
		if err != nil {
			return nil, err
		}
		s.Rounds = append(s.Rounds, *r)
	}
	return s, nil
}

// grown is one join.
type grown struct {
	during, after *report.Series
	took          time.Duration
}

// grow starts a node, measures until all is in place and a little longer, and stops the node.
func (t *target) grow(ctx context.Context, work report.Shape, c contestant) (g grown, err error) {
	began := time.Now()
	n, err := c.system.Grow(ctx, t.bin, 2*work.Keys)
	if err != nil {
		return g, err
	}
	defer n.Process.Stop()
	settled := make(chan error, 1)
	go func() {
		err := c.system.Settled(ctx, n)
		g.took = time.Since(began)
		settled <- err
	}()
	g.during = new(report.Series)
	for {
		select {
		case err := <-settled:
			if err != nil {
				return g, err
			}
			g.after, err = t.halves(ctx, work, c, 4)
			return g, err
		default:
		}
		r, err := t.halves(ctx, work, c, 1)
		if err != nil {
			<-settled
			return g, err
		}
		g.during.Rounds = append(g.during.Rounds, r.Rounds...)
	}
}
