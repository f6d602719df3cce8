package main

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// spike is a demand below the limit, with a spike of four seconds, and then twice the limit.
var spike = demand(
	phase{until: 20 * time.Second, every: time.Second / 8},
	phase{until: 24 * time.Second, every: time.Second / 60},
	phase{until: 44 * time.Second, every: time.Second / 8},
	phase{until: 80 * time.Second, every: time.Second / 20},
	phase{until: 90 * time.Second, every: time.Second / 8},
)

// admittedSpike shows how many checks a second are admitted, under a limit of 100 in 10 seconds. Those that wait in a queue
// are shown when they run.
func admittedSpike() ([]byte, error) {
	const (
		row, top = 58, 44
		length   = 90 * time.Second
		full     = 60.0 // a second, at the top of a row
	)
	bottom := float64(top + row*len(algorithms))
	p := newPicture(int(bottom)+32, length, "What runs in each second, limit 100 in 10 s",
		"Demand is 8 a second, 60 a second from 0:20 to 0:24, and 20 a second from 0:44 to 1:20. Grey is asked for, blue runs. The dashed line is 10 a second.")
	p.bar("d", 440, 14, 12, 12)
	p.text(457, 24, "s", "asked for")
	p.bar("a", 530, 14, 12, 12)
	p.text(547, 24, "s", "runs")
	p.text(704, 40, "s e", "most in 10 s")
	p.times(top, bottom, 10*time.Second)
	for i, a := range algorithms {
		list, err := ask(bucket.Limit{Algorithm: a.kind, Count: 100, Period: 10 * time.Second}, spike)
		if err != nil {
			return nil, err
		}
		var asked, runs [int(length/time.Second) + 1]int
		for _, b := range list {
			asked[b.at/time.Second]++
			if b.allowed && b.runs <= length {
				runs[b.runs/time.Second]++
			}
		}
		base := float64(top + row*(i+1) - 4)
		height := func(perSecond int) float64 { return float64(perSecond) / full * (row - 10) }
		p.text(16, base-row/2+8, "", a.name)
		second := p.x(time.Second) - p.x(0)
		for s := range int(length / time.Second) {
			x := p.x(time.Duration(s) * time.Second)
			p.bar("d", x, base-height(asked[s]), second, height(asked[s]))
			p.bar("a", x+.6, base-height(runs[s]), second-1.2, height(runs[s]))
		}
		p.line("l", left, base-height(10), right, base-height(10))
		p.line("g", left, base, right, base)
		p.text(704, base-row/2+8, "e", fmt.Sprint(most(running(list), 10*time.Second)))
	}
	return p.end(), nil
}
