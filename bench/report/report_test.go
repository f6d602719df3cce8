package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func rounds(checks ...float64) (list []Round) {
	for _, c := range checks {
		list = append(list, Round{CallsPerSecond: c, ChecksPerSecond: c, P99: 5, ServerCPU: 1})
	}
	return list
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{[]float64{3, 1, 2}, Spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}},
		{[]float64{7}, Spread{7, 7, 7}},
	} {
		if got := SpreadOf(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
	if !math.IsNaN(SpreadOf(nil).Median) {
		t.Error("nothing has a median")
	}
}

// TestRatio: ratios are within rounds, so a slow round of both leaves them alone.
func TestRatio(t *testing.T) {
	echo, sluice := Series{Rounds: rounds(100, 10, 100)}, Series{Rounds: rounds(90, 8, 95)}
	if got := sluice.Ratio(&echo, Checks); got != (Spread{0.9, 0.8, 0.95}) {
		t.Error(got)
	}
}

func TestRows(t *testing.T) {
	var b strings.Builder
	err := WriteRows(&b, []Row{
		AtLeast("a", 0.9, Spread{0.91, 0.8, 1}).Beside(Spread{2, 1, 3}),
		AtLeast("b", 0.9, Spread{0.89, 0.8, 1}),
		AtMost("c", 320, Spread{320, 320, 320}, "bytes"),
		AtMost("d", 1.6, Spread{math.NaN(), 0, 0}, ""),
		Told("e", Spread{12345678, 12.34, 123.4}, "%"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `| a | ≥ 0.90 | 0.91 | 0.80 to 1.00 | reached | 2.00 (1.00 to 3.00) |  |
| b | ≥ 0.90 | 0.89 | 0.80 to 1.00 | **not reached** |  |  |
| c | ≤ 320 bytes | 320 bytes | 320 to 320 | reached |  |  |
| d | ≤ 1.60 | NaN | 0.00 to 0.00 | **not reached** |  |  |
| e |  | 12,345,678 % | 12.3 to 123 |  |  |  |
`
	if _, got, _ := strings.Cut(b.String(), "---|\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func cells() []Cell {
	shape := Shape{Nodes: 1, Callers: 64, Checks: 1, Keys: 100_000, Distribution: "uniform", Domain: "allowed"}
	many := shape
	many.Checks = 100
	odd := many
	odd.Note = "odd"
	return []Cell{
		{shape, []Series{{Name: "echo", Rounds: rounds(100, 110)}, {Name: "sluice ×1", Rounds: rounds(90, 95)}, {Name: "dead", Rounds: rounds(1, 0)}}},
		{many, []Series{{Name: "echo", Rounds: rounds(1000, 1100)}, {Name: "sluice ×1", Rounds: rounds(800, 805)}, {Name: "dead", Rounds: rounds(1, 1)}}},
		{odd, []Series{{Name: "sluice, 9 keys", Keys: 9, Rounds: rounds(5)}, {Name: "sluice, 99 keys", Keys: 99, Rounds: rounds(4)}}},
	}
}

func TestCell(t *testing.T) {
	c := cells()[1]
	c.Series[1].Rounds[0].Fallback = 0.5
	c.Series[1].Rounds[1].FailedCalls, c.Series[1].Rounds[1].FirstError = 3, "a|b"
	var b strings.Builder
	if err := WriteCell(&b, &c); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.77 (0.73 to 0.80)", "25.0 % by on_failure, 3 calls failed: a/b"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "x.json")
	f := &File{Revision: "r", Cells: cells(), Rows: []Row{Told("e", Spread{1, 2, 3}, "")}}
	if err := Save(path, f); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Revision != "r" || len(got.Cells) != 3 || got.Cells[2].Series[1].Keys != 99 || got.Rows[0] != f.Rows[0] {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("half a file: %v", err)
	}
}

// TestDraw: every picture is XML whose figures are within it. A curve ends where a
// system gave no answer.
func TestDraw(t *testing.T) {
	names, err := Draw(cells(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, n := range names {
		files = append(files, filepath.Base(n))
		text, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"NaN", "Inf", ">dead<"} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s has %s", n, bad)
			}
		}
		for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", n, err)
			}
		}
	}
	if got := strings.Join(files, " "); got != "bench-keys.svg bench-checks-1.svg bench-ratio-1.svg" {
		t.Errorf("drew %s", got)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		s    scale
		want int
	}{
		{scale{low: 1, high: 1000, log: true}, 4},
		{scale{low: 0, high: 1.05}, 5},
		{scale{low: 0, high: 9}, 10},
	} {
		if got := c.s.ticks(); len(got) != c.want {
			t.Errorf("%+v: %v", c.s, got)
		}
	}
}
