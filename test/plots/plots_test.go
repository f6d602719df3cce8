// Package plots draws the pictures of docs/use/algorithms.md and docs/start/getting-started.md that show which checks each algorithm admits: it
// makes the same checks under every algorithm, at invented times, and draws the decisions as SVG. `go test ./test/plots -args -write` writes them.
package plots

import (
	"bytes"
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

var write = flag.Bool("write", false, "write the pictures to docs/img")

// pictures are all pictures, by file name.
var pictures = map[string]func() ([]byte, error){
	"same-demand.svg":    sameDemand,
	"admitted-spike.svg": admittedSpike,
}

// TestPicturesAreCurrent: docs show what the algorithms do now.
func TestPicturesAreCurrent(t *testing.T) {
	for name, draw := range pictures {
		data, err := draw()
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(data, new(struct{})); err != nil {
			t.Errorf("%s is no XML: %v", name, err)
		}
		file := filepath.Join("../../docs/img", name)
		if *write {
			if err := os.WriteFile(file, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(data, committed) {
			t.Errorf("docs/img/%s is not what is drawn now: run go test ./test/plots -args -write, and read docs that show it again", name)
		}
	}
}

// TestBounds: what docs/use/algorithms.md says of any time of one period holds for the demands that are drawn.
func TestBounds(t *testing.T) {
	for _, d := range []struct {
		name   string
		times  []time.Duration
		count  int64
		period time.Duration
	}{{"meeting", meeting, 10, time.Minute}, {"spike", spike, 100, 10 * time.Second}} {
		bounds := map[string]int64{
			"token_bucket": 2 * d.count, "leaky_bucket": 2 * d.count, "leaky_queue": 2 * d.count, "fixed_window": 2 * d.count,
			"sliding_log": d.count, "sliding_counter": 2*d.count - 1, "sliding_window": d.count,
		}
		for _, a := range algorithms {
			list, err := decide(bucket.Limit{Algorithm: a.kind, Count: d.count, Period: d.period}, d.times)
			if err != nil {
				t.Fatal(err)
			}
			got := int64(most(admitted(list), d.period))
			if got > bounds[a.name] || got < d.count {
				t.Errorf("%s, %s: at most %d within a period, want %d to %d", d.name, a.name, got, d.count, bounds[a.name])
			}
		}
	}
}

// TestMost holds counting against a look at every window.
func TestMost(t *testing.T) {
	var list []time.Duration
	for i := range 200 {
		list = append(list, time.Duration(i*i%977)*time.Millisecond)
	}
	slices.Sort(list)
	const w = 100 * time.Millisecond
	want := 0
	for _, end := range list {
		n := 0
		for _, t := range list {
			if t > end-w && t <= end {
				n++
			}
		}
		want = max(want, n)
	}
	if got := most(list, w); got != want || want < 10 {
		t.Errorf("most is %d, want %d", got, want)
	}
}
