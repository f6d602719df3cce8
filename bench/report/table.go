package report

import (
	"fmt"
	"io"
	"strings"
)

// Row is one line of what sluice is to reach.
type Row struct {
	Work string `json:"work"`
	// Want says the bound, for example "≥ 0.90"; empty for what is only told.
	Want string `json:"want,omitempty"`
	Got  Spread `json:"got"`
	// Unit stands behind the figures; empty for ratios.
	Unit string `json:"unit,omitempty"`
	Met  bool   `json:"met"`
	Note string `json:"note,omitempty"`
}

// AtLeast is a row that is met from bound up.
func AtLeast(work string, bound float64, got Spread, unit string) Row {
	return Row{Work: work, Want: "≥ " + Number(bound), Got: got, Unit: unit, Met: got.Median >= bound}
}

// AtMost is a row that is met up to bound.
func AtMost(work string, bound float64, got Spread, unit string) Row {
	return Row{Work: work, Want: "≤ " + Number(bound), Got: got, Unit: unit, Met: got.Median <= bound}
}

// Told is a row without a bound.
func Told(work string, got Spread, unit string) Row {
	return Row{Work: work, Got: got, Unit: unit, Met: true}
}

// WriteRows writes rows as a Markdown table.
func WriteRows(w io.Writer, rows []Row) error {
	lines := [][]string{{"work", "wanted", "median", "lowest to highest", "", ""}}
	for _, r := range rows {
		with := func(figure string) string { return strings.TrimSpace(figure + " " + r.Unit) }
		want, verdict := "", ""
		if r.Want != "" {
			want, verdict = with(r.Want), "reached"
			if !r.Met {
				verdict = "**not reached**"
			}
		}
		lines = append(lines, []string{r.Work, want, with(Number(r.Got.Median)), Number(r.Got.Low) + " to " + Number(r.Got.High), verdict, r.Note})
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

// remarks are what a reader must know before believing a series.
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
