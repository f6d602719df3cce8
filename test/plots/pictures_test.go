package plots

import (
	"fmt"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// meeting is a demand in which a burst meets the border of a window: a few checks before, one a second around 1:00, and
// then more than the limit for long.
var meeting = append([]time.Duration{10 * time.Second, 30 * time.Second}, demand(
	phase{until: 50 * time.Second, every: time.Hour}, // the one check at 0:00 is cut off
	phase{until: 70 * time.Second, every: time.Second},
	phase{until: 3 * time.Minute, every: 4 * time.Second})[1:]...)

// sameDemand shows each check of one demand, under a limit of 10 a minute.
func sameDemand() ([]byte, error) {
	const row, top = 34, 42
	bottom := float64(top + row*len(algorithms) + 2)
	p := newPicture(int(bottom)+32, 3*time.Minute, "The same demand under every algorithm, each 10 a minute",
		"Checks at 0:10 and 0:30, then one a second from 0:50 to 1:09, then one every four seconds. Filled dots were admitted, crosses denied.")
	p.dot(540, 20, 4.5)
	p.text(549, 24, "s", "admitted")
	p.cross(620, 20, 4)
	p.text(629, 24, "s", "denied")
	p.text(704, 40, "s e", "most in 60 s")
	p.times(top, bottom, 30*time.Second)
	for i, a := range algorithms {
		list, err := decide(bucket.Limit{Algorithm: a.kind, Count: 10, Period: time.Minute}, meeting)
		if err != nil {
			return nil, err
		}
		y := float64(top + row*i + 18)
		p.text(16, y+4, "", a.name)
		p.line("g", left, y, right, y)
		for _, b := range list {
			if b.allowed {
				p.dot(p.x(b.at), y-4, 3)
			} else {
				p.cross(p.x(b.at), y+5, 2.2)
			}
		}
		p.text(704, y+4, "e", fmt.Sprint(most(admitted(list), time.Minute)))
	}
	return p.end(), nil
}

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
		"Demand is 8 a second, 60 a second from 0:20 to 0:24, and 20 a second from 0:44 to 1:20. Grey is requested, blue runs. The dashed line is 10 a second.")
	p.bar("d", 440, 14, 12, 12)
	p.text(457, 24, "s", "requested")
	p.bar("a", 530, 14, 12, 12)
	p.text(547, 24, "s", "runs")
	p.text(704, 40, "s e", "most in 10 s")
	p.times(top, bottom, 10*time.Second)
	for i, a := range algorithms {
		list, err := decide(bucket.Limit{Algorithm: a.kind, Count: 100, Period: 10 * time.Second}, spike)
		if err != nil {
			return nil, err
		}
		var demanded, runs [int(length/time.Second) + 1]int
		for _, b := range list {
			demanded[b.at/time.Second]++
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
			p.bar("d", x, base-height(demanded[s]), second, height(demanded[s]))
			p.bar("a", x+.6, base-height(runs[s]), second-1.2, height(runs[s]))
		}
		p.line("l", left, base-height(10), right, base-height(10))
		p.line("g", left, base, right, base)
		p.text(704, base-row/2+8, "e", fmt.Sprint(most(running(list), 10*time.Second)))
	}
	return p.end(), nil
}
