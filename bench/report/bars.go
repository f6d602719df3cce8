package report

import (
	"cmp"
	"fmt"
	"html"
	"strings"
)

// panel is a group of bars of one cell.
type panel struct {
	file  int // index of the File
	title string
	shape Shape
	bars  []bar
}

// bar is a series by its name in the results, and its name in the picture.
type bar struct{ series, name string }

// panels compare sluice with other limiters. Each panel is one session: same machine, same minutes, same client.
var panels = []panel{
	{0, "1 node, 1 check per call", Shape{Nodes: 1, Callers: 64, Checks: 1, Keys: 100_000, Distribution: "uniform", Domain: "allowed"},
		[]bar{{"sluice ×1", "sluice"}, {"gubernator ×1", "gubernator"}}},
	{0, "3 nodes, 1 check per call, random node, no replicas", Shape{Nodes: 3, Callers: 64, Checks: 1, Keys: 100_000, Distribution: "uniform", Domain: "allowed"},
		[]bar{{"sluice ×3", "sluice"}, {"gubernator ×3", "gubernator"}}},
	{1, "1 node, single checks from Go", Shape{Nodes: 1, Callers: 64, Checks: 1, Keys: 100_000, Distribution: "uniform", Domain: "allowed", Note: "APIs and clients as the name says"},
		[]bar{{"sluice ×1, Go client", "sluice, Go client"}, {"sluice ×1, gRPC API", "sluice, gRPC API"},
			{"redis, Lua by rueidis", "Redis, rueidis"}, {"redis, redis_rate", "Redis, redis_rate"}}},
}

// DrawBars returns an SVG with the medians of checks a second and of p99 of the panels, from rows.json and defaults.json.
func DrawBars(files ...*File) (string, error) {
	const wide, line, from, full = 720, 26, 150, 330
	var b strings.Builder
	y := 0
	text := func(x, y int, extra, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#222222"%s>%s</text>`+"\n", x, y, extra, html.EscapeString(s))
	}
	for _, p := range panels {
		f := files[p.file]
		cell := cmp.Or(find(f.Cells, func(c *Cell) bool { return c.Shape == p.shape }), &Cell{})
		y += 34
		text(12, y, ` font-weight="bold"`, fmt.Sprintf("%s (%s, %s, %d cores for all)", p.title, f.Date.Format("2006-01-02"), f.Machine.CPU, f.Machine.Cores))
		most := 0.0
		for i := range cell.Series {
			for _, bar := range p.bars {
				if cell.Series[i].Name == bar.series {
					most = max(most, cell.Series[i].Of(Checks).Median)
				}
			}
		}
		y += 8
		for _, bar := range p.bars {
			s := find(cell.Series, func(s *Series) bool { return s.Name == bar.series })
			if s == nil {
				return "", fmt.Errorf("%s: no results of %s", p.title, bar.series)
			}
			checks, colour := int(s.Of(Checks).Median), "#9aa4ad"
			if strings.HasPrefix(bar.name, "sluice") {
				colour = "#0b6fb8"
			}
			width := checks * full / int(most)
			text(12, y+17, "", bar.name)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="18" fill="%s"/>`+"\n", from, y+3, width, colour)
			text(from+width+8, y+17, "", fmt.Sprintf("%d,%03d checks/s, p99 %.1f ms", checks/1000, checks%1000, s.Of(P99).Median/1000))
			y += line
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">
<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>
%[3]s</svg>
`, wide, y+16, b.String()), nil
}

// find returns the first element of list for which is reports true, or nil.
func find[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}
