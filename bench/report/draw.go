package report

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chart is one picture: which series it takes and what it shows of them.
type chart struct {
	file, title, x, y string
	// takes says whether a series of a cell belongs, and where on the x axis.
	takes func(c *Cell, s *Series) (x int, ok bool)
	// show is the figure of a series.
	show func(c *Cell, s *Series) Spread
	logY bool
}

// plain cells ask the usual things, and the same of all systems.
func plain(s Shape) bool {
	return s.Domain == "allowed" && s.Distribution == "uniform" && s.Note == ""
}

func ratioToFirst(c *Cell, s *Series) Spread { return s.Ratio(&c.Series[0], Checks) }

// shows is the figure f itself.
func shows(f Figure) func(*Cell, *Series) Spread {
	return func(_ *Cell, s *Series) Spread { return s.Of(f) }
}

// charts are what docs/benchmarks.md shows.
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
				// Nothing was answered in some round; a curve cannot say that.
				continue
			}
			// What varies from name to name stands on an axis or in the title.
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
