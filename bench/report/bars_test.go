package report

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write docs/img/bench-bars.svg anew")

// TestBars: the bar chart of the README shows the committed results.
func TestBars(t *testing.T) {
	const picture = "../../docs/img/bench-bars.svg"
	var files []*File
	for _, name := range []string{"rows", "defaults"} {
		f, err := Load("../results/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	want, err := DrawBars(files...)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(picture, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(picture); err != nil || string(got) != want {
		t.Errorf("%s differs from the results (%v); run: GOWORK=off go -C bench test ./report -run Bars -update", picture, err)
	}
}
