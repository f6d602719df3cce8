package main

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/wire"
)

// sdk compares single checks of 64 goroutines through the Go client, which has them travel together
// and asks the holder, with unary calls of the echo.
func (t *target) sdk(ctx context.Context) error {
	for _, nodes := range []int{1, 3} {
		if err := t.sdkWith(ctx, nodes); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) sdkWith(ctx context.Context, nodes int) error {
	l := started{}
	defer func() { l.stop() }()
	var cs []contestant
	for _, name := range []string{"echo", "sluice"} {
		s, err := t.start(ctx, name, nodes, usual)
		if err != nil {
			return err
		}
		l = append(l, s)
		c := unary(s, load.Uniform{N: usual})
		if name == "sluice" {
			if err := t.fill(ctx, s, "allowed", usual, 100); err != nil {
				return err
			}
			sdk, err := wire.NewSDK(ctx, s.Addrs())
			if err != nil {
				return err
			}
			// Nothing is under way when it is closed.
			defer func() { _ = sdk.Close() }()
			c.name, c.target = s.Name+", SDK", sdk
		}
		cs = append(cs, c)
	}
	work := shape(nodes, 64, 1)
	work.Note = "by the Go client where it says SDK"
	cell, err := t.compare(ctx, work, cs...)
	if err != nil {
		return err
	}
	t.add(report.AtLeast(fmt.Sprintf("Go client, single checks of 64 goroutines, %s, ÷ the unary echo's calls/s", count(nodes, "node")), 5,
		cell.Series[1].Ratio(&cell.Series[0], report.Checks), ""))
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
