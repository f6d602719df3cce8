package main

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
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
		list, err := ask(bucket.Limit{Algorithm: a.kind, Count: 10, Period: time.Minute}, meeting)
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
