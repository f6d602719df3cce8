package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The picture and the part of it that has the curves, in pixels.
const (
	width, height = 640, 400
	left, right   = 80, 500
	top, bottom   = 50, 340
)

var colours = []string{"#555555", "#0b6fb8", "#c4501b", "#2f8f4e", "#8a4fb5", "#a08a00"}

// scale maps figures to pixels, evenly or by logarithm.
type scale struct {
	low, high, from, to float64
	log                 bool
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// ticks are round figures within the scale.
func (s scale) ticks() (list []float64) {
	if s.log {
		for v := math.Pow(10, math.Floor(math.Log10(s.low))); v <= s.high*1.001; v *= 10 {
			if v >= s.low*0.999 {
				list = append(list, v)
			}
		}
		return list
	}
	step := math.Pow(10, math.Floor(math.Log10(s.high)))
	for s.high/step < 4 {
		step /= 2
	}
	for v := 0.0; v <= s.high*1.001; v += step {
		list = append(list, v)
	}
	return list
}

// svg draws lines with their spread. The x axis is logarithmic.
func (c *chart) svg(lines []line) string {
	x := scale{low: math.Inf(1), high: math.Inf(-1), from: left, to: right, log: true}
	y := scale{low: math.Inf(1), high: math.Inf(-1), from: bottom, to: top, log: c.logY}
	var marks []float64
	for _, l := range lines {
		for _, p := range l.points {
			x.low, x.high = min(x.low, p.x), max(x.high, p.x)
			y.low, y.high = min(y.low, p.y.Low), max(y.high, p.y.High)
			marks = append(marks, p.x)
		}
	}
	if c.logY {
		y.low = math.Pow(10, math.Floor(math.Log10(y.low)))
		y.high = math.Pow(10, math.Ceil(math.Log10(y.high)))
	} else {
		y.low, y.high = 0, y.high*1.05
	}
	slices.Sort(marks)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	text := func(x, y float64, anchor, extra, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222"%s>%s</text>`+"\n", x, y, anchor, extra, html.EscapeString(s))
	}
	stroke := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	text(left, 26, "start", ` font-size="15"`, c.title)
	text((left+right)/2, height-18, "middle", "", c.x)
	text(left, top-8, "start", "", c.y)
	for _, v := range y.ticks() {
		stroke(left, y.at(v), right, y.at(v), "#dddddd")
		text(left-8, y.at(v)+4, "end", "", tickText(v))
	}
	for _, v := range slices.Compact(marks) {
		stroke(x.at(v), bottom, x.at(v), bottom+5, "#222222")
		text(x.at(v), bottom+19, "middle", "", tickText(v))
	}
	stroke(left, bottom, right, bottom, "#222222")
	for i, l := range lines {
		colour := colours[i%len(colours)]
		var path []string
		for _, p := range l.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p.x), y.at(p.y.Median)))
			stroke(x.at(p.x), y.at(p.y.Low), x.at(p.x), y.at(p.y.High), colour)
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(p.x), y.at(p.y.Median), colour)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), colour)
		at := float64(top + 10 + 20*i)
		fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="12" height="12" fill="%s"/>`+"\n", right+16, at-10, colour)
		text(right+34, at, "start", "", l.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// tickText says a round figure in few letters.
func tickText(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%g M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%g k", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}
