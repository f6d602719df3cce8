//go:build linux

package network

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/faultnet"
	"github.com/sluicecluster/sluice/test/process"
)

var (
	farLasts = flag.Duration("far-lasts", 40*time.Second, "how long TestFarRegions asks for each kind of rule, in windows of 10 s")
	farLoss  = flag.Float64("far-loss", 0.01, "the share of packets between regions that TestFarRegions loses")
	farRate  = flag.Int("far-rate", 150, "units a second of each limit of TestFarRegions, of which twice as many are wanted")
)

const farWindow = 10 * time.Second

// farDistances are the round trips between regions.
var farDistances = map[[2]string]time.Duration{{"eu", "us"}: 50 * time.Millisecond, {"us", "ap"}: 150 * time.Millisecond, {"eu", "ap"}: 300 * time.Millisecond}

var farNames = []string{"eu", "us", "ap"}

// farRules returns limits of rate units a second in all regions together, and of a third in each region.
func farRules(rate int) string {
	text := "domain: shop\ndescriptors:\n"
	for prefix, scope := range map[string]string{"global": "scope: global, home: eu, ", "auto": "scope: global, home: auto, ", "region": ""} {
		each := rate
		if scope == "" {
			each = rate / len(farNames)
		}
		window := each * int(farWindow.Seconds())
		text += fmt.Sprintf(`  - {key: %[1]s_bucket, %[2]slimits: [{algorithm: token_bucket, count: %[3]d, period: 1s}]}
  - {key: %[1]s_window, %[2]slimits: [{algorithm: fixed_window, count: %[4]d, period: %[5]v}]}
  - {key: %[1]s_sliding, %[2]slimits: [{algorithm: sliding_counter, count: %[4]d, period: %[5]v}]}
`, prefix, scope, each, window, farWindow)
	}
	return text
}

// farLab is regions of size nodes each in network namespaces, on a switch that delays and loses packets between regions.
type farLab struct {
	*lab
	sw    *faultnet.Switch
	dir   string
	size  int
	nodes map[string][]*labNode
}

// hostsOf returns the addresses of a region's nodes.
func (l *farLab) hostsOf(region string) []string {
	i := slices.Index(farNames, region)
	return l.hosts[i*l.size : (i+1)*l.size]
}

// launch starts node i of a region, or starts it again.
func (l *farLab) launch(region string, i int) {
	var list []string
	for _, r := range farNames {
		list = append(list, r+"="+strings.Join(l.hostsOf(r), ","))
	}
	host := slices.Index(l.hosts, l.hostsOf(region)[i]) + 1
	l.nodes[region][i] = l.start(host, "--rules", filepath.Join(l.dir, "rules.yaml"), "--join", strings.Join(l.hostsOf(region), ","),
		"--bootstrap-expect", strconv.Itoa(l.size/2+1), "--region", region, "--regions", strings.Join(list, ","), "--insecure", "region-tls",
		"--operators-dir", filepath.Join(l.dir, strconv.Itoa(host)))
}

// newFarLab starts regions, and waits until each decides the keys of its home.
func newFarLab(t *testing.T, size int, rules string) *farLab {
	t.Helper()
	l := &farLab{
		lab: &lab{t: t, prefix: fmt.Sprintf("sl%d", time.Now().UnixNano()%100000)}, sw: faultnet.New(1), dir: t.TempDir(), size: size, nodes: map[string][]*labNode{},
	}
	t.Cleanup(l.sw.Close)
	for host := 1; host <= size*len(farNames); host++ {
		addr := netip.AddrFrom4([4]byte{10, 78, 0, byte(host)})
		t.Cleanup(func() { faultnet.RemoveHost(l.namespace(host)) })
		if err := l.sw.AddHost(l.namespace(host), netip.PrefixFrom(addr, 24)); err != nil {
			t.Fatal(err)
		}
		l.hosts = append(l.hosts, addr.String())
	}
	printCeiling(t, l)
	for pair, rtt := range farDistances {
		for _, a := range l.hostsOf(pair[0]) {
			for _, b := range l.hostsOf(pair[1]) {
				l.sw.Add(faultnet.Rule{From: netip.MustParseAddr(a), To: netip.MustParseAddr(b), Both: true, Delay: rtt / 2, Loss: *farLoss})
			}
		}
	}
	if err := os.WriteFile(filepath.Join(l.dir, "rules.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range farNames {
		l.nodes[r] = make([]*labNode, size)
		for i := range size {
			l.launch(r, i)
		}
	}
	for _, r := range farNames {
		for _, n := range l.nodes[r] {
			process.Eventually(t, 30*time.Second, n.name+" knows that its region decides", func() error {
				out, _ := exec.Command(process.Binary, "status", "-o", "json", "--addr", "127.0.0.1:7460", "--operators-dir", filepath.Join(l.dir, strconv.Itoa(n.host))).Output()
				var s struct {
					Nodes []struct {
						Name    string   `json:"name"`
						Decides []string `json:"decides"`
						Regions []struct {
							State string   `json:"state"`
							Nodes []string `json:"nodes"`
						} `json:"regions"`
					} `json:"nodes"`
				}
				if err := json.Unmarshal(out, &s); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				if len(s.Nodes) != size {
					return fmt.Errorf("%d nodes", len(s.Nodes))
				}
				for _, n := range s.Nodes {
					if !slices.Contains(n.Decides, r) || len(n.Regions) != 2 || len(n.Regions[0].Nodes) != 2 || len(n.Regions[1].Nodes) != 2 {
						return fmt.Errorf("%+v", n)
					}
				}
				return nil
			})
		}
	}
	return l
}

// printCeiling prints what the switch carries between two hosts without delay and loss.
func printCeiling(t *testing.T, l *farLab) {
	t.Helper()
	var listener net.Listener
	err := faultnet.In(l.namespace(1), func() (err error) {
		listener, err = net.Listen("tcp4", l.hosts[0]+":9000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	exchange := func(there, back int) (rounds int) {
		conn, err := faultnet.Dial(ctx, l.namespace(l.size+1), l.hosts[0]+":9000")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		far, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		defer serving.Wait()
		defer conn.Close()
		serving.Go(func() {
			defer far.Close()
			for buf := make([]byte, there); ; {
				if _, err := io.ReadFull(far, buf); err != nil {
					return
				}
				far.Write(buf[:back])
			}
		})
		buf := make([]byte, there)
		for end := time.Now().Add(time.Second); time.Now().Before(end); rounds++ {
			if _, err := conn.Write(buf); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, buf[:back]); err != nil {
				t.Fatal(err)
			}
		}
		return rounds
	}
	t.Logf("the switch carries %d round trips a second one after the other, and %.0f MB/s in one direction", exchange(64, 64), float64(exchange(64<<10, 1))*(64<<10)/1e6)
}

// farLoad is what was asked of keys, by name.
type farLoad struct {
	admitted map[string]*atomic.Int64
	asked    int
	// far is how many took a round trip to the home, by region and key: those that were admitted, the others, and those of the first two
	// seconds.
	far    map[[2]string]*[3]int
	took   map[string][]time.Duration // by region, sorted
	lasted time.Duration
}

// farDemand is the part of each region in the demand, one after the other for equal times; none: all have as much.
type farDemand []map[string]float64

// pause returns how long a caller of a region waits between two checks of a key at that part of the whole time, so that all callers together
// ask for twice the limit.
func (d farDemand) pause(region string, passed float64, callers int) time.Duration {
	part := 1 / float64(len(farNames))
	if len(d) > 0 {
		part = d[min(int(passed*float64(len(d))), len(d)-1)][region]
	}
	return time.Duration(float64(time.Second) * float64(callers) / (float64(*farRate) * 2 * part))
}

// askAll asks for twice each limit of a kind, for so long from the beginning of a window.
func askAll(t *testing.T, nodes map[string][]*labNode, kind string, demand farDemand, lasts time.Duration) farLoad {
	t.Helper()
	const callers = 6
	keys := []string{"bucket", "window", "sliding"}
	load := farLoad{admitted: map[string]*atomic.Int64{}, took: map[string][]time.Duration{}, far: map[[2]string]*[3]int{}}
	for _, k := range keys {
		load.admitted[k] = new(atomic.Int64)
	}
	<-time.After(time.Until(time.Now().Truncate(farWindow).Add(farWindow)))
	began := time.Now()
	end := began.Truncate(farWindow).Add(lasts)
	var mu sync.Mutex
	var all sync.WaitGroup
	for region, list := range nodes {
		home := max(farDistances[[2]string{"eu", region}], farDistances[[2]string{region, "eu"}])
		for _, k := range keys {
			far := new([3]int)
			load.far[[2]string{region, k}] = far
			check := &sluicev1.Check{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: kind + "_" + k, Value: "all"}}}
			for caller := range callers {
				api := sluicev1.NewRateLimitServiceClient(list[caller%len(list)].conn)
				all.Go(func() {
					pause := demand.pause(region, 0, callers)
					tick := time.NewTicker(pause)
					defer tick.Stop()
					var took []time.Duration
					var admitted, denied, first int
					for now := range tick.C {
						// A check that is asked at the end may be decided in the next window.
						if now.After(end.Add(-2 * time.Second)) {
							break
						}
						if p := demand.pause(region, now.Sub(began).Seconds()/end.Sub(began).Seconds(), callers); p != pause {
							pause = p
							tick.Reset(p)
						}
						start := time.Now()
						resp, err := api.Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
						took = append(took, time.Since(start))
						if err == nil && home > 0 && took[len(took)-1] >= home {
							if resp.GetDecisions()[0].GetAllowed() {
								admitted++
							} else {
								denied++
							}
							if start.Sub(began) < 2*time.Second {
								first++
							}
						}
						switch {
						case err != nil:
							t.Errorf("%s in %s: %v", k, region, err)
							return
						case resp.Decisions[0].Error != nil:
							t.Errorf("%s in %s: %v", k, region, resp.Decisions[0].Error)
							return
						case resp.Decisions[0].Allowed:
							load.admitted[k].Add(1)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					load.took[region] = append(load.took[region], took...)
					load.asked += len(took)
					far[0] += admitted
					far[1] += denied
					far[2] += first
				})
			}
		}
	}
	all.Wait()
	load.lasted = time.Since(began)
	for _, list := range load.took {
		slices.Sort(list)
	}
	return load
}

// sentHome returns how many checks nodes have sent to other regions.
func (l *lab) sentHome(nodes map[string][]*labNode) (sum int) {
	l.t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return l.dial(ctx, addr) }}}
	defer client.CloseIdleConnections()
	pattern := regexp.MustCompile(`(?m)^sluice_region_checks_total\{by="home"\} (\S+)$`)
	for _, list := range nodes {
		for _, n := range list {
			resp, err := client.Get("http://" + l.hosts[n.host-1] + ":7461/metrics")
			if err != nil {
				l.t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			found := pattern.FindSubmatch(body)
			if err != nil || found == nil {
				l.t.Fatalf("%s: the metrics do not count checks that were sent home (%v)", n.name, err)
			}
			v, err := strconv.ParseFloat(string(found[1]), 64)
			if err != nil {
				l.t.Fatal(err)
			}
			sum += int(v)
		}
	}
	return sum
}

// TestFarRegions: three regions of two nodes, 50, 150 and 300 ms apart over a network that loses 1 % of the packets, in which twice as much
// is wanted as limits admit in all of them, by equal parts, nine tenths in one region, or in one after the other. Nothing is admitted beyond the
// limits, little is left unused, and most checks are answered inside their region: see docs/internals/regions.md.
func TestFarRegions(t *testing.T) {
	l := newFarLab(t, 2, farRules(*farRate))
	local := askAll(t, l.nodes, "region", nil, min(*farLasts, 2*time.Minute))
	if sent := l.sentHome(l.nodes); sent != 0 {
		t.Errorf("%d checks of rules without scope were sent to another region", sent)
	}
	for k, n := range local.admitted {
		t.Logf("%s in single regions: %d admitted", k, n.Load())
	}
	local.logTimes(t)
	mostIn := func(r string) map[string]float64 {
		parts := map[string]float64{"eu": 0.05, "us": 0.05, "ap": 0.05}
		parts[r] = 0.9
		return parts
	}
	for _, run := range []struct {
		name, kind string
		demand     farDemand
	}{
		{"equal", "global", nil},
		{"most in the home", "global", farDemand{mostIn("eu")}},
		{"most in us", "global", farDemand{mostIn("us")}},
		{"most in ap", "global", farDemand{mostIn("ap")}},
		{"flips", "global", farDemand{mostIn("us"), mostIn("eu")}},
		{"flips to ap", "global", farDemand{mostIn("eu"), mostIn("ap")}},
		{"home follows", "auto", farDemand{mostIn("ap")}},
		{"home follows flips", "auto", farDemand{mostIn("ap"), mostIn("us")}},
	} {
		t.Run(run.name, func(t *testing.T) { l.global(t, run.kind, run.demand) })
	}
}

// global asks for global rules, and compares what was admitted with the limits.
func (l *farLab) global(t *testing.T, kind string, demand farDemand) {
	before := l.sentHome(l.nodes)
	global := askAll(t, l.nodes, kind, demand, *farLasts)
	windows := int64((*farLasts + farWindow - 1) / farWindow)
	for k, n := range global.admitted {
		most := windows * int64(*farRate) * int64(farWindow.Seconds())
		if k == "bucket" {
			most = int64(float64(*farRate) * (1 + global.lasted.Seconds()))
		}
		used := float64(n.Load()) / min(float64(most), float64(*farRate)*global.lasted.Seconds())
		if t.Logf("%s: %d of %d admitted, %.3f", k, n.Load(), most, used); n.Load() > most || used < 0.95 {
			t.Errorf("%s: %d admitted; want 0.95 to 1 of %d", k, n.Load(), most)
		}
	}
	global.logTimes(t)
	for way, n := range global.far {
		if way[0] != "eu" && kind == "global" {
			t.Logf("%s of %s: %d admitted and %d denied checks took a round trip to eu, %d of them in the first two seconds", way[1], way[0], n[0], n[1], n[2])
		}
	}
	sent := l.sentHome(l.nodes) - before
	if t.Logf("%d of %d checks were sent to another region, %.2f %%", sent, global.asked, 100*float64(sent)/float64(global.asked)); sent*100 > 5*global.asked {
		t.Errorf("%d of %d checks were sent to another region; want 5 %% at most", sent, global.asked)
	}
}

// logTimes logs the times of answers in each region.
func (load *farLoad) logTimes(t *testing.T) {
	for _, r := range farNames {
		list := load.took[r]
		at := func(percent int) time.Duration { return list[len(list)*percent/100].Round(10 * time.Microsecond) }
		t.Logf("%s: %d checks, p50 %v, p99 %v", r, len(list), at(50), at(99))
	}
}
