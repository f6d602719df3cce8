package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
)

// slice is how long each measurement lasts while a node joins or restores a snapshot: short enough to see it.
const slice = 500 * time.Millisecond

// joining compares, on a cluster of three, the half seconds before a fourth node starts with those until it owns its partitions
// and every partition has its replica again: under half load, and under full load, where the machine has no spare capacity for
// another process.
func (t *target) joining(ctx context.Context) error {
	var joins [2][2]*joined // by rule, by load
	for i, domain := range []string{"allowed", "unreplicated"} {
		full, err := t.filled(ctx, system.Spec{System: "sluice", Nodes: 3, Keys: 2 * t.keys}, domain, t.keys, 1000)
		if err != nil {
			return err
		}
		work := shape(3, 64, 1)
		work.Keys, work.Domain = t.keys, domain
		capacity, err := t.halves(ctx, work, full, 4)
		if err != nil {
			return err
		}
		half := full
		half.rate = capacity.Of(report.Checks).Median / 2
		for k, c := range []contestant{half, full} {
			if joins[i][k], err = t.joinUnder(ctx, work, c); err != nil {
				return err
			}
		}
		t.stop()
	}
	t.flags = append(t.flags, "the fourth node: also --handover-timeout, for when it leaves")
	for k, load := range []string{"half", "full"} {
		j, without := joins[0][k], joins[1][k]
		what := fmt.Sprintf("a fourth node joins, %s keys, %s load: ", report.Number(float64(t.keys)), load)
		add := func(r report.Row, without []float64) { t.add(r.Beside(report.SpreadOf(without))) }
		add(report.Told(what+"until all partitions are in place", report.SpreadOf(j.took), "s"), without.took)
		add(report.AtLeast(what+"checks/s until then ÷ before", 0.80, report.SpreadOf(j.kept)), without.kept)
		add(report.Told(what+"in the worst half second", report.SpreadOf(j.worst), ""), without.worst)
		add(report.Told(what+"afterwards", report.SpreadOf(j.after), ""), without.after)
		waiting := ""
		if load == "half" {
			// From when calls were due: the time that they waited for the one before is in it.
			waiting = ", waiting included"
		}
		add(report.Told(what+"p99 before"+waiting, report.SpreadOf(j.p99), "µs"), without.p99)
		add(report.Told(what+"p99 meanwhile"+waiting, report.SpreadOf(j.during), "µs"), without.during)
		slower := report.Told(what+"p99 of the worst half second ÷ before"+waiting, report.SpreadOf(j.slower), "")
		if load == "full" {
			slower = report.AtMost(slower.Work, 3, slower.Got, "")
		}
		add(slower, without.slower)
	}
	return nil
}

// joined has the figures of joins, one of each. kept, worst and after are the checks a second, relative to those before the join:
// of all half seconds until all is in place, of the worst one, and afterwards. p99 and during are medians of half seconds in µs,
// slower is the worst one ÷ p99, and took is in seconds.
type joined struct{ kept, worst, after, p99, during, slower, took []float64 }

// joinUnder has a node join and leave again, round by round, under the load of c.
func (t *target) joinUnder(ctx context.Context, work report.Shape, c contestant) (*joined, error) {
	j := new(joined)
	for range t.rounds {
		before, err := t.halves(ctx, work, c, 4)
		if err != nil {
			return nil, err
		}
		g, err := t.grow(ctx, work, c)
		if err != nil {
			return nil, err
		}
		base, p99 := before.Of(report.Checks).Median, before.Of(report.P99).Median
		sum := 0.0
		for i := range g.during.Rounds {
			sum += g.during.Rounds[i].ChecksPerSecond
		}
		j.kept = append(j.kept, sum/float64(len(g.during.Rounds))/base)
		j.worst = append(j.worst, g.during.Of(report.Checks).Low/base)
		j.after = append(j.after, g.after.Of(report.Checks).Median/base)
		j.p99 = append(j.p99, p99)
		j.during = append(j.during, g.during.Of(report.P99).Median)
		j.slower = append(j.slower, g.during.Of(report.P99).High/p99)
		j.took = append(j.took, g.took.Seconds())
		fmt.Printf("join, %s: %s checks/s and p99 %s µs before; all in place after %v\n", work.Domain, report.Number(base), report.Number(p99), g.took.Round(10*time.Millisecond))
		if err := c.system.Alone(ctx); err != nil {
			return nil, err
		}
	}
	return j, nil
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
	n, err := c.system.Grow(ctx, t.bin)
	if err != nil {
		return g, err
	}
	defer n.Stop()
	g.during, g.took, err = t.until(ctx, work, c, began, func() error { return c.system.Settled(ctx, n) })
	if err == nil {
		g.after, err = t.halves(ctx, work, c, 4)
	}
	return g, err
}

// until measures half seconds until done returns, and returns how long that is after began.
func (t *target) until(ctx context.Context, work report.Shape, c contestant, began time.Time, done func() error) (during *report.Series, took time.Duration, err error) {
	ended := make(chan error, 1)
	go func() {
		err := done()
		took = time.Since(began)
		ended <- err
	}()
	during = new(report.Series)
	for {
		select {
		case err := <-ended:
			return during, took, err
		default:
		}
		r, err := t.halves(ctx, work, c, 1)
		if err != nil {
			<-ended
			return during, took, err
		}
		during.Rounds = append(during.Rounds, r.Rounds...)
	}
}
