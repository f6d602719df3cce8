package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// joinKeys is how many keys there are while a node joins.
const joinKeys = 1_000_000

// slice is how long each measurement lasts while a node joins: short enough to see it.
const slice = 500 * time.Millisecond

// joining compares, on a cluster of three that holds a million keys, the half seconds
// before a fourth node starts with those until it holds its part and every partition has
// its copy again. The worst half second of each round counts.
func (t *target) joining(ctx context.Context) error {
	keys := joinKeys
	if t.rounds == 1 {
		keys = t.scale[0]
	}
	s, err := t.bin.Sluice(ctx, 3, 2*keys)
	if err != nil {
		return err
	}
	defer s.Stop()
	if err := t.fill(ctx, s, "allowed", keys, 1000); err != nil {
		return err
	}
	work := shape(3, 64, 1)
	work.Keys = keys
	var kept, slower, mean, took []float64
	for range t.rounds {
		before, err := t.half(ctx, s, work, 4)
		if err != nil {
			return err
		}
		during, length, err := t.grow(ctx, s, work, keys)
		if err != nil {
			return err
		}
		b := report.Series{Rounds: before}
		d := report.Series{Rounds: during}
		base, p99 := b.Of(report.Checks).Median, b.Of(report.P99).Median
		sum := 0.0
		for i := range during {
			sum += during[i].ChecksPerSecond
		}
		kept = append(kept, d.Of(report.Checks).Low/base)
		mean = append(mean, sum/float64(len(during))/base)
		slower = append(slower, d.Of(report.P99).High/p99)
		took = append(took, length.Seconds())
		fmt.Printf("join: %s checks/s and p99 %s µs before; in %v until all is in place worst half second %.2f, mean %.2f, worst p99 %.2f of that\n",
			report.Number(base), report.Number(p99), length.Round(10*time.Millisecond), kept[len(kept)-1], mean[len(mean)-1], slower[len(slower)-1])
		if err := s.Shrunk(ctx); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("a fourth node joins, %s keys, 64 callers: ", report.Number(float64(keys)))
	t.add(report.AtLeast(what+"checks/s in the worst half second ÷ before", 0.80, report.SpreadOf(kept), ""))
	t.add(report.Told(what+"checks/s over the whole of it ÷ before", report.SpreadOf(mean), ""))
	t.add(report.AtMost(what+"worst p99 ÷ before", 3, report.SpreadOf(slower), ""))
	t.add(report.Told(what+"until all is in place", report.SpreadOf(took), "s"))
	return nil
}

// half measures n half seconds, one after the other.
func (t *target) half(ctx context.Context, s *system.System, work report.Shape, n int) ([]report.Round, error) {
	var rounds []report.Round
	for range n {
		r, err := t.measure(ctx, work, unary(s, load.Uniform{N: work.Keys}), slice)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, *r)
	}
	return rounds, nil
}

// grow has a node join, measures until all is in place, and sends the node away again.
func (t *target) grow(ctx context.Context, s *system.System, work report.Shape, keys int) (rounds []report.Round, took time.Duration, err error) {
	began := time.Now()
	n, err := s.Grow(ctx, t.bin, keys)
	if err != nil {
		return nil, 0, err
	}
	defer n.Process.Stop()
	settled := make(chan error, 1)
	go func() { settled <- s.Settled(ctx, n) }()
	for {
		select {
		case err := <-settled:
			return rounds, time.Since(began), err
		default:
		}
		r, err := t.half(ctx, s, work, 1)
		if err != nil {
			<-settled
			return nil, 0, err
		}
		rounds = append(rounds, r...)
	}
}
