package browser

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var pictures = flag.String("pictures", "", "directory to write pictures of the situations to")

// looks checks that nothing is cut or hangs over in both widths and colour schemes, and takes pictures of it.
func (b *tab) looks(name string) {
	b.t.Helper()
	for _, width := range []int64{1280, 390} {
		for _, dark := range []bool{false, true} {
			b.colors(dark)
			b.do(chromedp.EmulateViewport(width, 860))
			if wide := js[string](b, "%s", sideways); wide != "" {
				b.t.Errorf("%s: %d wide, the page scrolls sideways: %s", name, width, wide)
			}
			if *pictures == "" {
				continue
			}
			b.do(chromedp.EmulateViewport(width, js[int64](b, "Math.max(860, document.documentElement.scrollHeight)")))
			picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			if err != nil {
				b.t.Fatal(err)
			}
			file := fmt.Sprintf("%s-%d-%s.png", name, width, map[bool]string{false: "light", true: "dark"}[dark])
			if err := os.WriteFile(filepath.Join(*pictures, file), picture, 0o644); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	b.do(chromedp.EmulateViewport(1280, 860))
}

// load asks checks of nodes at a steady rate, and counts them by slots of 5 s: those that were in a slot whole, and those of which
// some part was.
type load struct {
	mu          sync.Mutex
	whole, part map[int64]float64
	nodes       []*process
}

// run asks until ctx ends. A node that does not answer any more is left out.
func (l *load) run(ctx context.Context, done *sync.WaitGroup) {
	l.whole, l.part = make(map[int64]float64), make(map[int64]float64)
	for _, p := range l.nodes {
		done.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				began := time.Now().Unix() / 5
				user := fmt.Sprintf("u-%d", time.Now().UnixNano()%7)
				if _, err := p.check("", entry{"user", user}); err != nil {
					return
				}
				ended := time.Now().Unix() / 5
				l.mu.Lock()
				for s := began; s <= ended; s++ {
					l.part[s]++
				}
				if began == ended {
					l.whole[began]++
				}
				l.mu.Unlock()
			}
		})
	}
}

// slot is what the tooltip of a chart says.
type slot struct {
	At     int64
	Nodes  int
	Values map[string]*float64
}

// read moves the pointer over a chart, and returns what it says from the left to the right.
func (b *tab) read(chart string) (list []slot) {
	b.t.Helper()
	said := js[string](b, `(() => {
		const box = document.querySelector(%q), r = box.getBoundingClientRect(), out = [];
		for (let i = 0; i < 60; i++) {
			box.dispatchEvent(new PointerEvent("pointermove", { clientX: r.left + 52 + (i + 0.5) / 60 * (r.width - 52) }));
			const d = box.querySelector(".tip").dataset;
			out.push({ At: +d.slot, Nodes: +d.nodes, Values: JSON.parse(d.values) });
		}
		box.dispatchEvent(new PointerEvent("pointerleave"));
		return JSON.stringify(out);
	})()`, chart)
	if err := json.Unmarshal([]byte(said), &list); err != nil || len(list) != 60 || list[59].At-list[0].At != 59*5 {
		b.t.Fatalf("%s says %s: %v", chart, said, err)
	}
	return list
}

// compare compares what the chart shows with the load, from slot first on, in slots of so many nodes. It returns the number of them.
func (l *load) compare(b *tab, first int64, nodes int) (n int) {
	b.t.Helper()
	for _, s := range b.read("#chart") {
		if s.At/5 < first || s.Nodes != nodes {
			continue
		}
		shown := 0.0
		for _, v := range s.Values {
			shown += *v
		}
		l.mu.Lock()
		least, most := l.whole[s.At/5]/5, l.part[s.At/5]/5
		l.mu.Unlock()
		if shown < 0.9*least || shown > 1.1*most {
			b.t.Errorf("at %v the chart shows %v checks per second, the load was %v to %v", time.Unix(s.At, 0).Format(time.TimeOnly), shown, least, most)
		}
		n++
	}
	return n
}

// TestSituations: under load, with a node lost, without quorum and without its node, the page says how the cluster is, and shows as
// known only what is.
func TestSituations(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	defer stop()
	l := &load{nodes: nodes}
	l.run(ctx, &done)
	first := time.Now().Unix()/5 + 1 // the first whole slot
	sleepUntil(first + 4)

	// Opened within a slot, all that it shows is right at once, and stays so.
	time.Sleep(1200 * time.Millisecond)
	b := open(t, nodes[0], 1280, 860, false)
	b.shows("#status", "Healthy")
	b.shows("#summary", "3 of 3 nodes")
	b.truly("the chart is there", `document.querySelector("#chart path.pa")`)
	if n := l.compare(b, first, 3); n < 3 {
		t.Errorf("the chart has %d slots, want 3", n)
	}
	for _, s := range b.read("#chart") {
		if begun := s.At/5 >= first-6; !begun && (s.Nodes != 0 || s.Values["allowed"] != nil) {
			t.Errorf("before the cluster began, at %d, the chart shows %v of %d nodes", s.At, s.Values, s.Nodes)
		}
	}
	last := b.read("#chart")[59].At
	b.truly("three more slots", fmt.Sprintf(`(() => { const c = document.querySelector("#chart"); c.dispatchEvent(new PointerEvent("pointermove", { clientX: 1e4 })); return +c.querySelector(".tip").dataset.slot >= %d })()`, last+15))
	if n := l.compare(b, first, 3); n < 6 {
		t.Errorf("the chart has %d slots, want 6", n)
	}
	for _, s := range b.read("#latency")[57:] {
		p50, p99 := s.Values["p50"], s.Values["p99"]
		if p50 == nil || p99 == nil || *p50 <= 0 || *p99 < *p50 {
			t.Errorf("latency %+v", s.Values)
		}
	}
	b.truly("the tiles show the load", `Math.abs(parseFloat(document.querySelector("#t-all").textContent) - 150) < 30`)
	for _, view := range []string{"overview", "nodes", "rules", "keys"} {
		b.view(view)
		b.looks("healthy-" + view)
	}
	b.inspect("shop", "user=u-1")
	b.shows("#inspection", "Counter now")
	b.looks("healthy-inspect")
	b.view("overview")

	// A node dies. The page that was open knows what it had counted; one that is opened now says that it does not.
	if err := nodes[2].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	died := time.Now().Unix() / 5
	b.shows("#status", "Degraded")
	b.shows("#causes", "n3")
	sleepUntil(died + 3)
	if n := l.compare(b, first, 3); n < 5 {
		t.Errorf("%d slots are left of the three nodes", n)
	}
	b.looks("node-lost")
	fresh := open(t, nodes[1], 1280, 860, false)
	fresh.shows("#status", "Degraded")
	fresh.shows("#chart + .note", "of 3 at")
	if marks := js[int](fresh, `document.querySelectorAll("#chart rect.partial").length`); marks < 5 {
		t.Errorf("%d slots are marked as those of some nodes only", marks)
	}
	fresh.looks("node-lost-opened-after")

	// A second one: no quorum.
	if err := nodes[1].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.shows("#status", "No quorum")
	b.truly("it leads to the runbook", `document.querySelector("#causes a").href.endsWith("#sluicewithoutquorum")`)
	b.looks("no-quorum")
	b.view("nodes")
	b.looks("no-quorum-nodes")
	b.view("overview")

	// The page's own node hangs, goes on, and is killed.
	stop()
	if err := nodes[0].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.shows("#status", "n1 does not respond")
	b.shows("#age", "last update")
	b.looks("node-stopped")
	if err := nodes[0].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.shows("#status", "No quorum")
	b.shows("#age", "live")
	if err := nodes[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.shows("#status", "No connection to n1")
	b.looks("node-killed")
}

// sleepUntil waits for the end of a slot, and until the page has it.
func sleepUntil(slot int64) { time.Sleep(time.Until(time.Unix(5*slot, 0).Add(2 * time.Second))) }

// TestElsewhere: opened from another machine, the page says what helps there with this node.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	const name = "sluice.example"
	p := startCluster(t, "--allowed-hosts", name)[0]
	host, _, _ := strings.Cut(p.http, ":")
	b := openAt(t, "http://"+name+":7461/", 1280, 860, false, chromedp.Flag("host-resolver-rules", "MAP "+name+" "+host))
	b.shows("#status", "Not signed in")
	b.shows("#ways", "ssh -L 7461:"+p.http+" "+name)
	b.shows("#ways", "sluice console --addr "+p.grpc)
	b.shows("#ways", "no access control list")
	if text := b.text("main"); strings.Contains(text, "kubectl") || strings.Contains(text, "With a token") {
		t.Errorf("it says what does not help here: %s", text)
	}
	b.looks("elsewhere")
}

// TestNotices: a healthy cluster that runs without a protection says so, and that it is a notice.
func TestNotices(t *testing.T) {
	t.Parallel()
	b := open(t, startCluster(t, "--admin-addr", "127.0.0.1:0", "--admin-anywhere")[0], 1280, 860, false)
	b.shows("#status", "Healthy")
	b.shows("#causes", "Notice: n1: --admin-anywhere: the operators' token is sent to")
	b.looks("notices")
}

// TestRegions: the page shows the other regions, as long as a node of them answers, and which of them decides; a region that was not asked
// yet is no outage. Without regions there is no such section.
func TestRegions(t *testing.T) {
	t.Parallel()
	const file = "testdata/shop.yaml"
	hosts := map[string][]string{"eu": ownHosts(), "us": ownHosts()}
	list := "eu=" + strings.Join(hosts["eu"], ",") + ",us=" + strings.Join(hosts["us"], ",") + ",ap=" + ownHosts()[0]
	start := func(region string) []*process {
		return startClusterAt(t, hosts[region], "--rules", file, "--region", region, "--regions", list, "--region-weights", "us=3")
	}
	row := func(region string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#region-rows tr")].find((r) => r.textContent.startsWith(%q))`, region)
	}
	b := open(t, start("eu")[0], 1280, 860, false)
	b.shows("#age", "live")
	b.view("nodes")
	b.truly("three regions, this one first", `document.querySelectorAll("#region-rows tr").length === 3 && document.querySelector("#region-rows th").innerText.startsWith("eu\nthis region")`)
	b.truly("no other one runs", `document.querySelectorAll("#region-rows tr.gone .no").length >= 2`)
	b.shows("#region-rows", "connection refused")
	b.truly("how long", row("ap")+`.innerText.match(/for [0-9.]+ s/)`)
	b.truly("weights", row("us")+`.querySelector("[data-label=Weight]").innerText === "3"`)
	b.shows("#causes", "region us is unreached")
	b.looks("regions-alone")

	us := start("us")
	b.truly("us is linked", row("us")+`.querySelector(".yes")?.innerText === "linked"`)
	b.shows("#say", "region us is linked")
	b.truly("a round trip", row("us")+`.querySelector("[data-label='Round trip']").innerText.match(/(µs|ms|s)$/)`)
	for _, region := range []string{"eu", "us"} {
		b.truly(region+" decides its keys", row(region)+fmt.Sprintf(`.querySelector("[data-label='Keys decided by']").innerText === %q`, region))
	}
	b.looks("regions-linked")
	for _, fault := range js[[]string](b, "%s", faults) {
		t.Error(fault)
	}

	for _, p := range us {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	b.truly("us is lost", row("us")+`.querySelector(".no")?.innerText === "unreached"`)
	b.shows("#say", "region us is unreached")
	b.truly("alone, eu decides no keys, and it says what to do", row("eu")+`.innerText.match(/sluice regions promote eu --home HOME --stopped[^]*no region/)`)
	b.looks("regions-lost")
	for _, fault := range js[[]string](b, "%s", faults) {
		t.Error(fault)
	}

	// What a node says that has just started, and one without regions.
	js[bool](b, `import("/console/views.js").then((v) => (window.views = v), 0) && true`)
	b.truly("the module is there", "window.views")
	state := func(regions, seen string) string {
		return js[string](b, `(() => { views.onState({ ...views.state(), regions: %s }); return %s; })()`, regions, seen)
	}
	if got := state(`[{ name: "eu", self: true, weight: 1 }, { name: "us", state: "unknown", in_state: 1, linked: 0, of: 0, rtt: 0, weight: 1, decided_by: "" }]`,
		`document.querySelector("#region-rows tr:nth-child(2)").innerText + document.querySelectorAll("#region-rows .no, #region-rows .gone").length`); !strings.Contains(got, "not known yet") || !strings.HasSuffix(got, "0") {
		t.Errorf("before it is asked, a region is shown as %q", got)
	}
	if got := state("undefined", `String(document.querySelector("#regions").hidden)`); got != "true" {
		t.Errorf("without regions, the section is hidden: %s", got)
	}
}

// TestPod: in Kubernetes, it says how to reach the pod.
func TestPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	pod, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const name = "sluice.example"
	p := startCluster(t, "--allowed-hosts", name)[0]
	host, _, _ := strings.Cut(p.http, ":")
	b := openAt(t, "http://"+name+":7461/", 1280, 860, false, chromedp.Flag("host-resolver-rules", "MAP "+name+" "+host))
	b.shows("#ways", "kubectl port-forward "+pod+" 7461")
	b.shows("#ways", "kubectl exec "+pod+" -- /sluice console")
	if text := b.text("#ways"); strings.Contains(text, "ssh") {
		t.Errorf("it says what does not help here: %s", text)
	}
	b.looks("pod")
}

// TestEmpty: a cluster without rules and without checks.
func TestEmpty(t *testing.T) {
	t.Parallel()
	b := open(t, startCluster(t, "--rules", "")[0], 1280, 860, false)
	b.shows("#status", "Healthy")
	b.looks("empty-overview")
	b.view("rules")
	b.shows("#rule-none", "This cluster has no rules")
	b.looks("empty-rules")
	b.view("keys")
	b.shows("#limited-rows", "none")
	b.looks("empty-keys")
}
