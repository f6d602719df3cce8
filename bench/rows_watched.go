package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// tracing compares a cluster that sends traces of one call in a hundred to a collector on this machine with
// one that sends none.
func (t *target) tracing(ctx context.Context) (err error) {
	collector, err := system.NewCollector()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, collector.Close()) }()
	if err := t.watched(ctx, "1 % of calls traced ÷ none", false, "--otlp-endpoint", collector.URL, "--trace-sample", "0.01"); err != nil {
		return err
	}
	if collector.Taken() == 0 {
		return errors.New("no trace has come to the collector")
	}
	return nil
}

// telemetry compares a cluster with the log that it keeps by default and a Prometheus that scrapes it with
// one that logs nothing but errors and that nobody asks.
func (t *target) telemetry(ctx context.Context) error {
	return t.watched(ctx, "log and metrics at their defaults ÷ off", true, "--log-level", "info")
}

// watched compares three nodes that are started with flags, and scraped or not, with three that nobody
// watches. Rounds are long: what is done every few seconds is to fall into each.
func (t *target) watched(ctx context.Context, what string, scraped bool, flags ...string) error {
	defer func(w time.Duration) { t.window = w }(t.window)
	t.window = max(t.window, t.long)
	cs, err := t.lineup(ctx,
		system.Spec{System: "sluice", Name: "not watched", Nodes: 3, Flags: []string{"--log-level", "error"}},
		system.Spec{System: "sluice", Name: "watched", Nodes: 3, Flags: flags})
	if err != nil {
		return err
	}
	if scraped {
		stop, err := scrape(ctx, cs[1].system.HTTP)
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
	t.add(report.AtLeast("3 nodes, 64 callers: "+what, 0.97, cell.Series[1].Ratio(&cell.Series[0], report.Checks), ""))
	return nil
}

// scrapeEvery is how often scrape asks. Prometheus is mostly set to do so every 15 s.
const scrapeEvery = 5 * time.Second

// scrape reads the metrics of nodes at addrs, now and every scrapeEvery until stop is called. The
// error is that of the first time.
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
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a+"/metrics", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK || n == 0 {
			return fmt.Errorf("%s: %s, %d bytes", a, res.Status, n)
		}
	}
	return nil
}
