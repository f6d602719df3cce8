// Command flat is an experiment, and no part of sluice: would the table be better as flat
// memory, open addressing without a pointer, than as simplelru's list and map? It compares
//
//   - bucket: the table that sluice has,
//   - lru: the same layout, an LRU list and a map per shard, with the toy decision of the others,
//   - clock: flat slots, evicted by the clock algorithm,
//   - sampled: flat slots, of which the longest unused of eight is evicted,
//
// by resident bytes per key, ns per take, the collector's share of CPU, and hits
// under eviction. Every measurement is a process of its own. The slots of the flat
// tables and the counters of lru have the 64 bytes of bucket's counter; what bucket
// keeps behind pointers (logs, further limits) would need a map beside.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bench/report"
)

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "flat:", err)
		os.Exit(1)
	}
}

func command() error {
	var (
		keys   = flag.String("keys", "1000000,10000000,30000000", "`numbers` of keys, comma separated")
		kinds  = flag.String("kinds", "bucket,lru,clock,sampled", "`tables` to compare")
		window = flag.Duration("window", 5*time.Second, "length of each measurement")
		out    = flag.String("out", "results/flat.json", "JSON `file` for the results")
		child  = flag.Bool("child", false, "measure the one kind and number given, here")
	)
	flag.Parse()
	list := strings.Split(*kinds, ",")
	if *child {
		n, err := strconv.Atoi(*keys)
		if err != nil {
			return err
		}
		r, err := measure(list[0], n, *window)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	var all results
	fmt.Println("| table | keys | resident bytes per key | ns per take, at random | ns, 1000 keys | under load: M takes/s | of CPU the collector |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, n := range strings.Split(*keys, ",") {
		for _, kind := range list {
			r, err := apart(kind, n, *window)
			if err != nil {
				return err
			}
			all.Memory = append(all.Memory, *r)
			fmt.Printf("| %s | %d | %.0f | %.0f | %.0f | %.2f | %.1f %% |\n",
				r.Kind, r.Keys, r.BytesPerKey, r.RandomNs, r.CachedNs, r.LoadPerSecond/1e6, 100*r.GCShare)
		}
	}
	fmt.Printf("\n| hits at %d places for %d keys | %s |\n|---|%s\n", places, universe, strings.Join(list, " | "), strings.Repeat("---|", len(list)))
	for _, s := range []float64{1.01, 1.1, 1.3} {
		trace := newTrace(s)
		row := []string{fmt.Sprintf("Zipf, exponent %v", s)}
		for _, kind := range list {
			h, err := hits(kind, trace)
			if err != nil {
				return err
			}
			all.Hits = append(all.Hits, hitRate{kind, s, h})
			row = append(row, fmt.Sprintf("%.2f %%", 100*h))
		}
		fmt.Printf("| %s |\n", strings.Join(row, " | "))
	}
	return report.Save(*out, &all)
}

// results are what the command saves.
type results struct {
	Memory []measured `json:"memory"`
	Hits   []hitRate  `json:"hits"`
}

type hitRate struct {
	Kind     string  `json:"kind"`
	Exponent float64 `json:"zipf_exponent"`
	Hits     float64 `json:"hits"`
}

// apart measures in a process of its own, so that memory is the table's alone.
func apart(kind, keys string, window time.Duration) (*measured, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-child", "-kinds", kind, "-keys", keys, "-window", window.String())
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s, %s keys: %w", kind, keys, err)
	}
	r := &measured{}
	return r, json.Unmarshal(text, r)
}
