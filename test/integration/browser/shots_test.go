package browser

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var (
	shots     = flag.String("shots", "", "directory to write the console's pictures to")
	shotsLoad = flag.Duration("shots-load", 320*time.Second, "how long the nodes in the pictures have had load")
)

// shopping is a load like that of a shop, until ctx ends. It is drawn from a seed, so that pictures are alike.
func shopping(ctx context.Context, nodes []*process, done *sync.WaitGroup) {
	const callers = 6
	for c := range callers {
		done.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(c)))
			pick := func(names ...string) string { return names[min(len(names)-1, int(r.ExpFloat64()*1.4))] }
			for n := 0; ctx.Err() == nil; n++ {
				d := []entry{{"user", fmt.Sprintf("u-%d", int(r.ExpFloat64()*6))}}
				switch r.IntN(6) {
				case 0:
					d = append(d, entry{"action", "checkout"})
				case 1, 2:
					d = []entry{{"path", pick("/search", "/", "/cart", "/item")}}
				case 3:
					d = []entry{{"remote_address", fmt.Sprintf("203.0.%d.%d", 112+int(r.ExpFloat64()), r.IntN(250))}}
				case 4:
					d = []entry{{"plan", "gold"}}
				}
				_, _ = nodes[n%len(nodes)].check("", d...) // a node may have been stopped
				// Busier and calmer in turns.
				busy := time.Now().Unix() / 15 % 3
				time.Sleep(time.Duration(4+6*busy+r.Int64N(10)) * time.Millisecond)
			}
		})
	}
}

func TestShots(t *testing.T) {
	if *shots == "" {
		t.Skip("without -shots no pictures are written")
	}
	nodes := startCluster(t)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	defer stop()
	shopping(ctx, nodes, &done)
	time.Sleep(*shotsLoad)
	for _, c := range []struct {
		name, view    string
		width, height int64
		dark          bool
	}{
		{"console-wide-light", "overview", 1280, 760, false}, {"console-wide-dark", "overview", 1280, 760, true},
		{"console-nodes", "nodes", 1280, 400, false}, {"console-rules", "rules", 1280, 400, false}, {"console-inspect", "inspect", 1280, 400, false},
		{"console-narrow-light", "overview", 390, 844, false}, {"console-narrow-dark", "rules", 390, 844, true},
	} {
		b := open(t, nodes[0], c.width, c.height, c.dark)
		b.shows("#status", "Healthy")
		if c.view == "inspect" {
			b.inspect("shop", "user=u-0 action=checkout")
			b.shows("#inspection", "Counter now")
		}
		b.view(c.view)
		b.shows("#member-rows", "n3")
		b.truly("figures of a second", `document.querySelector("#t-all").textContent !== "–"`)
		b.truly("the busiest keys are known", `document.querySelector("#frequent-rows .num")`)
		js[bool](b, "document.activeElement.blur() ?? (scrollTo(0, 0), true)")
		time.Sleep(1500 * time.Millisecond) // for the utilization, which comes with the next figures
		b.do(chromedp.EmulateViewport(c.width, js[int64](b, `Math.ceil(document.querySelector("footer").getBoundingClientRect().top)`)))
		picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*shots, c.name+".png"), smaller(t, picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// smaller returns a PNG with 256 of its colours alone, which nobody can tell from the page's own: a third of the bytes.
func smaller(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	area := from.Bounds()
	often := make(map[color.Color]int)
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			often[from.At(x, y)]++
		}
	}
	// The most frequent, but none that is hardly another than one of them: the rare ones are what catches the eye.
	var chosen color.Palette
	for _, c := range slices.SortedFunc(maps.Keys(often), func(a, b color.Color) int { return often[b] - often[a] }) {
		if len(chosen) < 256 && (len(chosen) == 0 || distance(c, chosen.Convert(c)) > 10) {
			chosen = append(chosen, c)
		}
	}
	to := image.NewPaletted(area, chosen)
	place := make(map[color.Color]uint8, len(often))
	for c := range often {
		place[c] = uint8(to.Palette.Index(c))
	}
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			to.SetColorIndex(x, y, place[from.At(x, y)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// distance is that of the two colours' channels together, of 255 each.
func distance(a, b color.Color) (d int) {
	x, y := color.RGBAModel.Convert(a).(color.RGBA), color.RGBAModel.Convert(b).(color.RGBA)
	for _, c := range [][2]uint8{{x.R, y.R}, {x.G, y.G}, {x.B, y.B}} {
		d += max(int(c[0]), int(c[1])) - min(int(c[0]), int(c[1]))
	}
	return d
}
