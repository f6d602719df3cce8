package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
)

// snapshot measures how long a node takes to write snapshots under full load, and to start again from one while its callers
// repeat their calls.
func (t *target) snapshot(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sluice-snapshot-")
	if err != nil {
		return err
	}
	defer func() { t.stop(); err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := t.filled(ctx, system.Spec{System: "sluice", Keys: t.keys, Flags: []string{"--data-dir", dir}}, "allowed", t.keys, 1000)
	if err != nil {
		return err
	}
	work := shape(1, 64, 1)
	work.Keys = t.keys
	var write, size, restore []float64
	checks := new(report.Series)
	for range t.rounds {
		m, during, err := t.written(ctx, work, c)
		if err != nil {
			return err
		}
		write = append(write, m["sluice_snapshot_duration_seconds"])
		size = append(size, m["sluice_snapshot_bytes"]/m["sluice_snapshot_counters"])
		checks.Rounds = append(checks.Rounds, during.Rounds...)
	}
	for range t.rounds {
		began, err := c.system.Restart()
		if err != nil {
			return err
		}
		_, took, err := t.until(ctx, work, c, began, func() error { return c.system.Answers(ctx) })
		if err != nil {
			return err
		}
		m, err := system.Metrics(ctx, c.system.HTTP[0])
		if err == nil && m["sluice_snapshot_restored_counters"] < float64(t.keys) {
			err = fmt.Errorf("restored %v counters of %d", m["sluice_snapshot_restored_counters"], t.keys)
		}
		if err != nil {
			return err
		}
		restore = append(restore, took.Seconds())
	}
	what := fmt.Sprintf("a snapshot of %s counters, 64 callers: ", report.Number(float64(t.keys)))
	t.add(report.Told(what+"time to write", report.SpreadOf(write), "s"))
	t.add(report.Told(what+"size per counter", report.SpreadOf(size), "bytes"))
	t.add(report.Told(what+"checks/s of half seconds while snapshots are written", checks.Of(report.Checks), ""))
	t.add(report.Told(what+"restored, from the start of the process to the first decision", report.SpreadOf(restore), "s"))
	return nil
}

// written measures half seconds until a snapshot that began after the call is complete, and returns the node's metrics then.
func (t *target) written(ctx context.Context, work report.Shape, c contestant) (m map[string]float64, during *report.Series, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	first := -1.0
	for during = new(report.Series); ; {
		if m, err = system.Metrics(ctx, c.system.HTTP[0]); err != nil {
			return nil, nil, err
		}
		switch written := m["sluice_snapshots_total"]; {
		case first < 0:
			first = written
		case written > first+1: // the one after first may have begun before the call
			if n := m["sluice_snapshot_counters"]; n < float64(work.Keys) {
				return nil, nil, fmt.Errorf("a snapshot has %v counters of %d", n, work.Keys)
			}
			return m, during, nil
		}
		r, err := t.halves(ctx, work, c, 1)
		if err != nil {
			return nil, nil, err
		}
		during.Rounds = append(during.Rounds, r.Rounds...)
	}
}
