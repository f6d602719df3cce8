package consoletest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var (
	shots     = flag.String("shots", "", "directory to write the console's pictures to")
	shotsLoad = flag.Duration("shots-load", 150*time.Second, "how long the nodes in the pictures have had load")
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
		name          string
		width, height int64
		dark          bool
	}{
		{"console-wide-light", 1280, 900, false}, {"console-wide-dark", 1280, 900, true},
		{"console-narrow-light", 390, 844, false}, {"console-narrow-dark", 390, 844, true},
	} {
		b := open(t, nodes[0], c.width, c.height, c.dark)
		b.shows("#link-text", "Live")
		b.shows("#member-rows", "n3")
		b.inspect("shop", "user=u-0 action=checkout")
		b.shows("#inspection", "Counter now")
		js[bool](b, "document.activeElement.blur() ?? (scrollTo(0, 0), true)")
		time.Sleep(1500 * time.Millisecond) // for figures of a second
		b.do(chromedp.EmulateViewport(c.width, js[int64](b, "document.documentElement.scrollHeight")))
		picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*shots, c.name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
