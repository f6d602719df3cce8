package report

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chart is one picture.
type chart struct {
	file, title, x, y string
	takes             func(c *Cell, s *Series) (x int, ok bool) // reports whether it has a series of a cell, and where on the x axis
	show              func(c *Cell, s *Series) Spread           // the figure of a series
	logY              bool
}

// plain shapes are the usual ones.
func plain(s Shape) bool {
	return s.Domain == "allowed" && s.Distribution == "uniform" && s.Note == ""
}

func ratioToFirst(c *Cell, s *Series) Spread { return s.Ratio(&c.Series[0], Checks) }

// shows is the figure f itself.
func shows(f Figure) func(*Cell, *Series) Spread {
	return func(_ *Cell, s *Series) Spread { return s.Of(f) }
}

// charts are what docs/internals/benchmarks.md shows.
func charts() []chart {
	list := []chart{
		{"bench-keys.svg", "Checks per second, 1 node, 64 callers, 100 checks a call", "keys", "checks/s",
			func(c *Cell, s *Series) (int, bool) { return s.Keys, s.Keys > 0 && c.Shape.Checks == 100 }, shows(Checks), false},
		{"bench-forwarded-cpu.svg", "CPU of all nodes for a million forwarded checks, one a call", "nodes", "seconds",
			func(c *Cell, s *Series) (int, bool) { return s.Nodes, s.Nodes > 0 && c.Shape.Checks == 1 }, shows(ServerCPU), false},
	}
	for _, nodes := range []int{1, 3, 5} {
		n := Count(nodes, "node")
		byChecks := func(c *Cell, _ *Series) (int, bool) {
			s := c.Shape
			return s.Checks, plain(s) && s.Nodes == nodes && s.Callers == 64 && s.Keys == 100_000
		}
		byCallers := func(c *Cell, _ *Series) (int, bool) {
			s := c.Shape
			return s.Callers, plain(s) && s.Nodes == nodes && s.Checks == 1 && s.Keys == 100_000
		}
		list = append(list,
			chart{fmt.Sprintf("bench-checks-%d.svg", nodes), "Checks per second, " + n + ", 64 callers", "checks a call", "checks/s", byChecks, shows(Checks), true},
			chart{fmt.Sprintf("bench-ratio-%d.svg", nodes), "Checks per second ÷ the bare echo's, " + n + ", 64 callers", "checks a call", "ratio", byChecks, ratioToFirst, false},
			chart{fmt.Sprintf("bench-p99-%d.svg", nodes), "99th percentile of a call, " + n + ", 1 check a call", "callers", "µs", byCallers, shows(P99), true},
		)
	}
	return list
}

// Draw writes the charts for which cells have curves, of two points at least, to dir
// and returns their names. Of cells that are alike the last counts.
func Draw(cells []Cell, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, c := range charts() {
		lines := slices.DeleteFunc(c.lines(cells), func(l line) bool { return len(l.points) < 2 })
		if len(lines) == 0 {
			continue
		}
		path := filepath.Join(dir, c.file)
		if err := os.WriteFile(path, []byte(c.svg(lines)), 0o644); err != nil {
			return names, err
		}
		names = append(names, path)
	}
	return names, nil
}

// line is one system's curve.
type line struct {
	name   string
	points []point
}

type point struct {
	x float64
	y Spread
}

func (c *chart) lines(cells []Cell) []line {
	var lines []line
	for i := range cells {
		for j := range cells[i].Series {
			s := &cells[i].Series[j]
			at, ok := c.takes(&cells[i], s)
			if !ok {
				continue
			}
			y := c.show(&cells[i], s)
			if !(y.Low > 0) || math.IsInf(y.High, 1) {
				continue // a round without any answer
			}
			// The varying part of a name is on an axis or in the title.
			name, _, _ := strings.Cut(strings.ReplaceAll(s.Name, " ×", ", ×"), ", ")
			n := slices.IndexFunc(lines, func(l line) bool { return l.name == name })
			if n < 0 {
				n, lines = len(lines), append(lines, line{name: name})
			}
			l := &lines[n]
			x := float64(at)
			l.points = slices.DeleteFunc(l.points, func(p point) bool { return p.x == x })
			l.points = append(l.points, point{x, y})
		}
	}
	for _, l := range lines {
		slices.SortFunc(l.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	}
	return lines
}

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

// tickText formats a round figure.
func tickText(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%g M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%g k", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}

// Row is one target of sluice, and its result.
type Row struct {
	Work string `json:"work"`
	Want string `json:"want,omitempty"` // the bound, for example "≥ 0.90"; empty without one
	Got  Spread `json:"got"`
	Unit string `json:"unit,omitempty"` // of the figures; empty for ratios
	Met  bool   `json:"met"`
	// WithoutReplicas is the same with `replication: none`; nil where replicas play no part.
	WithoutReplicas *Spread `json:"without_replicas,omitempty"`
	Note            string  `json:"note,omitempty"`
}

// Beside is r with the same figure without replicas.
func (r Row) Beside(without Spread) Row {
	r.WithoutReplicas = &without
	return r
}

// AtLeast is a row with a lower bound.
func AtLeast(work string, bound float64, got Spread) Row {
	return Row{Work: work, Want: "≥ " + Number(bound), Got: got, Met: got.Median >= bound}
}

// AtMost is a row with an upper bound.
func AtMost(work string, bound float64, got Spread, unit string) Row {
	return Row{Work: work, Want: "≤ " + Number(bound), Got: got, Unit: unit, Met: got.Median <= bound}
}

// Told is a row without a bound.
func Told(work string, got Spread, unit string) Row {
	return Row{Work: work, Got: got, Unit: unit, Met: true}
}

// WriteRows writes rows as a Markdown table.
func WriteRows(w io.Writer, rows []Row) error {
	lines := [][]string{{"work", "wanted", "median", "lowest to highest", "", "without replicas", ""}}
	for _, r := range rows {
		with := func(figure string) string { return strings.TrimSpace(figure + " " + r.Unit) }
		want, verdict, without := "", "", ""
		if w := r.WithoutReplicas; w != nil {
			without = fmt.Sprintf("%s (%s to %s)", with(Number(w.Median)), Number(w.Low), Number(w.High))
		}
		if r.Want != "" {
			want, verdict = with(r.Want), "reached"
			if !r.Met {
				verdict = "**not reached**"
			}
		}
		lines = append(lines, []string{r.Work, want, with(Number(r.Got.Median)), Number(r.Got.Low) + " to " + Number(r.Got.High), verdict, without, r.Note})
	}
	return writeTable(w, lines)
}

// WriteCell writes c as a Markdown table, with ratios to the first series.
func WriteCell(w io.Writer, c *Cell) error {
	if _, err := fmt.Fprintf(w, "\n%s\n\n", c.Shape); err != nil {
		return err
	}
	lines := [][]string{{"system", "calls/s", "checks/s", "ratio", "p50 µs", "p99 µs", "p99.9 µs", "CPU s per million", "of it GC", "resident MiB", "remarks"}}
	for i := range c.Series {
		s := &c.Series[i]
		ratio := s.Ratio(&c.Series[0], Checks)
		lines = append(lines, []string{
			s.Name, Number(s.Of(Calls).Median), Number(s.Of(Checks).Median),
			fmt.Sprintf("%.2f (%.2f to %.2f)", ratio.Median, ratio.Low, ratio.High),
			Number(s.Of(P50).Median), Number(s.Of(P99).Median), Number(s.Of(P999).Median), Number(s.Of(ServerCPU).Median),
			fmt.Sprintf("%.1f %%", 100*s.Of(GCShare).Median), Number(s.Of(Resident).Median / (1 << 20)), remarks(s),
		})
	}
	return writeTable(w, lines)
}

// remarks qualify the figures of a series.
func remarks(s *Series) string {
	var list []string
	say := func(name string, f Figure) {
		if m := s.Of(f); m.High > 0 {
			list = append(list, fmt.Sprintf("%.1f %% %s", 100*m.Median, name))
		}
	}
	say("denied", func(r *Round) float64 { return r.Denied })
	say("failed", func(r *Round) float64 { return r.Failed })
	say("forwarded", func(r *Round) float64 { return r.Forwarded })
	say("by on_failure", func(r *Round) float64 { return r.Fallback })
	var calls int64
	first := ""
	for i := range s.Rounds {
		calls += s.Rounds[i].FailedCalls
		if first == "" {
			first = s.Rounds[i].FirstError
		}
	}
	if calls > 0 {
		list = append(list, fmt.Sprintf("%d calls failed: %s", calls, strings.ReplaceAll(first, "|", "/")))
	}
	return strings.Join(list, ", ")
}

func writeTable(w io.Writer, lines [][]string) error {
	var b strings.Builder
	for i, l := range lines {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(l, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(l)) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Count is n things, for example "3 nodes".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Number has three significant digits, and thousands set apart.
func Number(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
