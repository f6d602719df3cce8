package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/internal/longwire"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	"github.com/sluicecluster/sluice/test/process"
)

// farRegions are clusters of two nodes each, far apart: each reaches the others' peer ports by wires of its own.
type farRegions struct {
	t     *testing.T
	nodes map[string][]*process.Node
	wires map[[2]string][]*longwire.Wire // from, to
	// lists are the files of --regions-file, by region, and lines what each has of each other.
	lists map[string]string
	lines map[[2]string]string
}

// newFarRegions starts clusters of these regions, each delay away from the others, one way.
func newFarRegions(t *testing.T, rules string, delay time.Duration, regions ...string) *farRegions {
	t.Helper()
	const size = 2
	f := &farRegions{t: t, nodes: map[string][]*process.Node{}, wires: map[[2]string][]*longwire.Wire{}, lists: map[string]string{}, lines: map[[2]string]string{}}
	configs, peers := map[string][]process.Config{}, map[string][]string{}
	for _, r := range regions {
		for i := range size {
			host := process.OwnHost()
			port := strconv.Itoa(process.FreePorts(t, host)[0])
			configs[r] = append(configs[r], process.Config{Name: fmt.Sprintf("%s-%d", r, i+1), Host: host, Rules: rules, Args: []string{"--peer-port", port}})
			peers[r] = append(peers[r], net.JoinHostPort(host, port))
		}
	}
	for _, from := range regions {
		for _, to := range regions {
			if to == from {
				continue
			}
			var addrs []string
			for _, target := range peers[to] {
				w, err := longwire.New(longwire.Config{Listen: "127.0.0.1:0", Target: target, Delay: delay})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(w.Close)
				f.wires[[2]string{from, to}] = append(f.wires[[2]string{from, to}], w)
				addrs = append(addrs, w.Addr())
			}
			f.lines[[2]string{from, to}] = to + "=" + strings.Join(addrs, ",")
		}
		f.lists[from] = filepath.Join(t.TempDir(), "regions")
		f.list(from, regions...)
		for i := range configs[from] {
			configs[from][i].Args = append(configs[from][i].Args, "--region", from, "--regions-file", f.lists[from])
		}
	}
	for _, r := range regions {
		first := process.Start(t, configs[r][0])
		configs[r][1].Join = []string{first.Gossip}
		f.nodes[r] = []*process.Node{first, process.Launch(t, configs[r][1])}
	}
	for _, r := range regions {
		f.nodes[r][1].WaitReady()
		process.WaitAgreed(t, f.nodes[r], 10*time.Second)
	}
	return f
}

// list writes the list of regions of one.
func (f *farRegions) list(from string, regions ...string) {
	f.t.Helper()
	text := "# the other regions\n"
	for _, to := range regions {
		text += f.lines[[2]string{from, to}] + "\n"
	}
	if err := os.WriteFile(f.lists[from], []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// cut cuts a region off, or links it again.
func (f *farRegions) cut(region string, off bool) {
	for way, wires := range f.wires {
		if way[0] == region || way[1] == region {
			for _, w := range wires {
				w.Cut(off, off)
			}
		}
	}
}

// regionsOf returns what a node reports of the other regions, by name, and the health of its cluster.
func regionsOf(n *process.Node) (map[string]*adminv1alpha1.RegionReport, *adminv1alpha1.Health, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := n.Operator().Status(ctx, &adminv1alpha1.StatusRequest{})
	if err != nil {
		return nil, nil, err
	}
	found := map[string]*adminv1alpha1.RegionReport{}
	for _, report := range s.Nodes {
		if report.Name == n.Name {
			for _, r := range report.Regions {
				found[r.Name] = r
			}
		}
	}
	return found, s.Members.Health, nil
}

// wait waits until all nodes see each other region as state says.
func (f *farRegions) wait(within time.Duration, what string, state func(from, to string) string) {
	f.t.Helper()
	began := time.Now()
	process.Eventually(f.t, within, what, func() error {
		for from, nodes := range f.nodes {
			for _, n := range nodes {
				found, _, err := regionsOf(n)
				if err != nil {
					return err
				}
				for to := range f.nodes {
					if r := found[to]; to != from && (r.GetState() != state(from, to) || r.State == "linked" && len(r.Nodes) < 2) {
						return fmt.Errorf("%s sees %s so: %v", n.Name, to, r)
					}
				}
			}
		}
		return nil
	})
	f.t.Logf("%s after %v", what, time.Since(began).Round(100*time.Millisecond))
}

// waitDecides waits until all nodes of region at say that it decides the keys with that home.
func (f *farRegions) waitDecides(within time.Duration, at, home string) {
	f.t.Helper()
	began := time.Now()
	process.Eventually(f.t, within, fmt.Sprintf("region %s decides the keys of %s", at, home), func() error {
		for _, n := range f.nodes[at] {
			if decides, err := decidesOf(n); err != nil || !slices.Contains(decides, home) {
				return fmt.Errorf("%s says that it decides the keys of %v: %v", n.Name, decides, err)
			}
		}
		return nil
	})
	f.t.Logf("region %s decides the keys of %s after %v", at, home, time.Since(began).Round(100*time.Millisecond))
}

// waitStarted waits until all regions are linked, and each decides the keys with its home.
func (f *farRegions) waitStarted() {
	f.t.Helper()
	f.wait(30*time.Second, "all regions are linked", func(string, string) string { return "linked" })
	for r := range f.nodes {
		f.waitDecides(20*time.Second, r, r)
	}
}

// decidesOf returns the homes whose keys a node's region decides, as the node knows.
func decidesOf(n *process.Node) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := n.Operator().Status(ctx, &adminv1alpha1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	for _, report := range s.Nodes {
		if report.Name == n.Name {
			return report.Decides, nil
		}
	}
	return nil, fmt.Errorf("no report of %s", n.Name)
}

// TestRegions: clusters of three regions find each other over 60 ms, show that one is cut off, and find it again. Nothing of that
// touches readiness or the clusters themselves.
func TestRegions(t *testing.T) {
	t.Parallel()
	f := newFarRegions(t, "", 30*time.Millisecond, "eu", "us", "ap")
	linked := func(string, string) string { return "linked" }
	f.wait(30*time.Second, "all regions are linked", linked)
	eu := f.nodes["eu"][0]
	found, health, err := regionsOf(eu)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range found {
		if rtt := time.Duration(r.RttNs); rtt < 60*time.Millisecond || rtt > 300*time.Millisecond || r.BytesIn == 0 || r.BytesOut == 0 || r.Reason != "" {
			t.Errorf("%s: %v", name, r)
		}
		if want := name + "-1 " + name + "-2"; strings.Join(r.Nodes, " ") != want {
			t.Errorf("%s: %v", name, r)
		}
	}
	if health.Status != "healthy" {
		t.Errorf("%v", health)
	}
	command := func(args ...string) string {
		out, _ := exec.Command(process.Binary, append(args, "--addr", eu.GRPC)...).CombinedOutput()
		return string(out)
	}
	if text := command("status"); !strings.Contains(text, "\neu *") || !strings.Contains(text, "\nap      linked  1       2 of 2       ap-1 ap-2") {
		t.Errorf("%s", text)
	}
	before := eu.Log.String()
	const idle = 10 * time.Second // one message more or less is 1 %
	traffic := func() (sum uint64) {
		found, _, _ := regionsOf(eu)
		return found["us"].GetBytesIn() + found["us"].GetBytesOut()
	}
	bytes := traffic()
	<-time.After(idle)
	perSecond := float64(traffic()-bytes) / idle.Seconds()
	if t.Logf("an idle link takes %.0f bytes a second", perSecond); perSecond > 2000 {
		t.Errorf("an idle link takes %.0f bytes a second", perSecond)
	}

	f.cut("us", true)
	f.wait(10*time.Second, "the cut is shown", func(from, to string) string {
		if from == "us" || to == "us" {
			return "unreached"
		}
		return "linked"
	})
	if _, body, err := eu.Get("/healthz"); err != nil || !strings.Contains(body, `"regions":["region us is unreached: `) {
		t.Errorf("%s, %v", body, err)
	}
	if code, body, err := eu.Get("/readyz"); err != nil || code != http.StatusOK {
		t.Errorf("%d %s, %v", code, body, err)
	}
	if _, body, err := eu.Get("/metrics"); err != nil || !strings.Contains(body, `sluice_region_reachable{region="us"} 0`) || !strings.Contains(body, `sluice_region_reachable{region="ap"} 1`) {
		t.Errorf("%v", err)
	}
	if text := command("status"); !strings.Contains(text, "Degraded: ") || !strings.Contains(text, "region us is unreached") || !strings.Contains(text, "docs/internals/regions.md#reasons") {
		t.Errorf("%s", text)
	}
	f.cut("us", false)
	f.wait(15*time.Second, "the region is linked again", linked)
	for _, nodes := range f.nodes {
		process.WaitAgreed(t, nodes, time.Second)
		for _, n := range nodes {
			if n := strings.Count(n.Log.String(), "rejected"); n > 0 {
				t.Errorf("%d lines about rejections", n)
			}
		}
	}
	log := strings.TrimPrefix(eu.Log.String(), before)
	if lost, back := strings.Count(log, "region not reached"), strings.Count(log, "region reached"); lost != 1 || back != 1 {
		t.Errorf("logged %d times that a region is not reached, and %d times that it is", lost, back)
	}
}

// TestRegionMistakes: a node whose list of regions is wrong in many ways says of each region what is wrong, in its status and once
// in its log, and its cluster goes on.
func TestRegionMistakes(t *testing.T) {
	process.OnlyLong(t)
	t.Parallel()
	secret := func(text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(strings.Repeat(text, 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, other := secret("a"), secret("b")
	alone := func(name, region, list, secret string) *process.Node {
		c := process.Config{Name: name, Args: []string{"--secret-file", secret}}
		if region != "" {
			c.Args = append(c.Args, "--region", region, "--regions", list)
		}
		return process.Launch(t, c)
	}
	const nowhere = "eu=127.0.0.1:1"
	good := alone("good-1", "good", nowhere, one)
	elsewhere := alone("misnamed-1", "misnamed", nowhere, one)
	none := alone("none-1", "", "", one)
	unlisted := alone("unlisted-1", "unlisted", "us=127.0.0.1:1", one)
	othersecret := alone("othersecret-1", "othersecret", nowhere, other)
	twin1, twin2 := alone("twin-1", "twin", nowhere, one), alone("twin-2", "twin", nowhere, one)
	namesake := alone("namesake-1", "eu", "us=127.0.0.1:1", one)
	late := process.Launch(t, process.Config{Name: "late-1", Binary: process.ShiftingBinary(t), Env: []string{"SLUICE_CLOCK_SHIFT=-3s"}, Args: []string{
		"--secret-file", one, "--region", "late", "--regions", nowhere,
	}})
	host := process.OwnHost()
	port := strconv.Itoa(process.FreePorts(t, host)[0])
	list := strings.Join([]string{
		"good=" + good.Peer, "renamed=" + elsewhere.Peer, "none=" + none.Peer, "unlisted=" + unlisted.Peer, "othersecret=" + othersecret.Peer,
		"twin=" + twin1.Peer, twin2.Peer, "namesake=" + namesake.Peer, "own=" + net.JoinHostPort(host, port), "down=127.0.0.1:1", "late=" + late.Peer,
	}, ",")
	for _, n := range []*process.Node{good, elsewhere, none, unlisted, othersecret, twin1, twin2, namesake, late} {
		n.WaitReady()
	}
	eu := process.Start(t, process.Config{Name: "eu-1", Host: host, Args: []string{"--peer-port", port, "--secret-file", one, "--region", "eu", "--regions", list}})
	second := process.Start(t, process.Config{Name: "eu-2", Join: []string{eu.Gossip}, Args: []string{"--secret-file", one, "--region", "eu", "--regions", list}})
	process.WaitAgreed(t, []*process.Node{eu, second}, 10*time.Second)

	wants := []struct{ region, state, reason string }{
		{"good", "linked", ""},
		{"renamed", "unreached", `node "misnamed-1" there says that it is of region "misnamed"; correct --regions here, or --region there`},
		{"none", "unreached", `node "none-1" there has no region; give it --region=none`},
		{"unlisted", "unreached", `is of region "eu", which --regions of this one, of region "unlisted", does not have`},
		{"othersecret", "unreached", "secret not accepted"},
		{"twin", "unusable", `two clusters say that they are region "twin": node twin-1`},
		{"namesake", "unreached", `two clusters say that they are region "eu": this one, and that of node "namesake-1"`},
		{"own", "unreached", `it is the address of node "eu-1" of this region, "eu"; correct --regions`},
		{"down", "unreached", "connection refused"},
		{"late", "linked", "the clock of node late-1 is -3.0s off this node's, more than --max-clock-skew 500ms"},
	}
	for _, n := range []*process.Node{eu, second} {
		process.Eventually(t, 20*time.Second, n.Name+" has all reasons", func() error {
			found, _, err := regionsOf(n)
			for _, w := range wants {
				if r := found[w.region]; err != nil || r.GetState() != w.state || !strings.Contains(r.Reason, w.reason) || w.reason == "" && r.Reason != "" {
					return fmt.Errorf("%v, %s: %v; want %s, %s", err, w.region, r, w.state, w.reason)
				}
			}
			return nil
		})
		<-time.After(3 * time.Second) // some attempts more
		for _, w := range wants {
			lines := 0
			for line := range strings.Lines(n.Log.String()) {
				if strings.Contains(line, "level=ERROR") && strings.Contains(line, "region="+w.region+" ") {
					lines++
				}
			}
			if want := map[bool]int{true: 0, false: 1}[w.region == "good" || w.region == "down"]; lines != want {
				t.Errorf("%s: %d errors about %s in the log; want %d", n.Name, lines, w.region, want)
			}
		}
	}

	// A node of the wrong region cannot join, whichever way it tries.
	outsider := process.Launch(t, process.Config{Name: "eu-3", Join: []string{eu.Gossip}, Args: []string{"--secret-file", one, "--region", "good", "--regions", nowhere}})
	process.Eventually(t, 20*time.Second, "the outsider says why it is not ready", func() error {
		_, body, err := outsider.Get("/readyz")
		if err != nil || !strings.Contains(body, `region is \"eu\", ours is \"good\"`) {
			return fmt.Errorf("%s, %v", body, err)
		}
		return nil
	})
	if text := eu.Log.String() + second.Log.String(); !strings.Contains(text, `region is \\\"good\\\", ours is \\\"eu\\\"`) && !strings.Contains(text, `region is \"good\", ours is \"eu\"`) {
		t.Error("the cluster does not say that it has rejected the outsider")
	}
	process.WaitAgreed(t, []*process.Node{eu, second}, time.Second)
}

// TestRegionReservations: a reservation of a key that another region has is spent and settled at
// any node of any region.
func TestRegionReservations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	const text = "domain: llm\ndescriptors:\n" +
		"  - {key: auto, scope: global, home: auto, limits: [{algorithm: fixed_window, count: 100, period: 12h}]}\n" +
		"  - {key: eu, scope: global, home: eu, limits: [{algorithm: fixed_window, count: 100, period: 12h}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 5*time.Millisecond, "eu", "us")
	f.waitStarted()
	var clients []*sluice.Client
	for _, n := range slices.Concat(f.nodes["eu"], f.nodes["us"]) {
		c, err := sluice.New(n.GRPC, sluice.WithFailurePolicy(sluice.FailClosed()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	failed := 0
	for i := range 96 {
		c, other := clients[i%4], clients[i/4%4]
		key := c.Key("llm", []string{"auto", "eu"}[i/16%2], strconv.Itoa(i))
		x, err := c.Reserve(t.Context(), sluice.ReserveRequest{Keys: []sluice.Key{key}, Units: 30})
		if err != nil {
			t.Fatalf("key %d: %v", i, err)
		}
		spent, err := x.Spend(t.Context(), 5)
		settled, err2 := other.Settle(t.Context(), x.ID, 5)
		d, err3 := key.Check(t.Context(), 0)
		if err != nil || err2 != nil || err3 != nil || !spent.Allowed || settled.Returned != 20 || d.Remaining != 90 {
			failed++
			t.Logf("key %d: spent %+v, %v; settled %+v, %v; %+v, %v; want 20 returned and 90 left", i, spent, err, settled, err2, d, err3)
		}
	}
	if failed > 0 {
		t.Errorf("%d of 96 reservations", failed)
	}
}
