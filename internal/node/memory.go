package node

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/shed"
)

const (
	leastMemory    = 64 << 20  // the smallest --memory-limit: an empty node uses about half of it
	besideCounters = 44 << 20  // used besides counters and garbage
	codeBytes      = 25 << 20  // pages of the executable, which the garbage collector does not count
	leastHeap      = 16 << 20  // what the collector may always leave
	unknownMemory  = 512 << 20 // the --memory-limit if the machine's memory is unknown
)

// memoryLimit returns --memory-limit or its default.
func (c *Config) memoryLimit() (int64, error) {
	if c.Bounds.MemoryLimit == "" {
		return usualMemory(os.DirFS("/")), nil
	}
	n, err := humanize.ParseBytes(c.Bounds.MemoryLimit)
	switch {
	case err != nil || n > math.MaxInt64:
		return 0, fmt.Errorf("--memory-limit: %q is not a size such as 512MiB", c.Bounds.MemoryLimit)
	case n < leastMemory:
		return 0, fmt.Errorf("--memory-limit: %s is less than a node needs; want at least %s", humanize.IBytes(n), humanize.IBytes(leastMemory))
	}
	return int64(n), nil
}

// counterBytes is the cap of the counters' accounted memory: three quarters of --memory-limit without besideCounters. The rest is
// for memory that is not accounted, and garbage until it is collected.
func (c *Config) counterBytes() (int64, error) {
	limit, err := c.memoryLimit()
	return (limit - besideCounters) / 4 * 3, err
}

// part returns --memory-limit / divisor, at most most: the bound of a structure that grows with requests.
func (c *Config) part(divisor, most int64) int {
	limit, _ := c.memoryLimit() // validated
	return int(min(limit/divisor, most))
}

// counterEntries is the cap of the counters' number: --max-entries, or as many of the smallest as fit into bytes.
func (c *Config) counterEntries(bytes int64) int {
	if c.MaxEntries > 0 {
		return c.MaxEntries
	}
	return int(bytes / bucket.LeastBytes)
}

// usualMemory is the default of --memory-limit: half of the limit of the process's control group, or without one a quarter of
// the machine's memory. root is the file system.
func usualMemory(root fs.FS) int64 {
	machine := machineMemory(root)
	limit := int64(unknownMemory)
	switch group := groupMemory(root); {
	case group > 0 && (machine == 0 || group < machine):
		limit = group / 2
	case machine > 0:
		limit = machine / 4
	}
	return max(limit, leastMemory)
}

// machineMemory returns the machine's memory, 0 if unknown.
func machineMemory(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			n, _ := strconv.ParseInt(f[1], 10, 53)
			return n << 10
		}
	}
	return 0
}

// groupMemory returns the least memory limit of the process's control group and its parents, of version 2 and 1; 0 for none.
func groupMemory(root fs.FS) (least int64) {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		at, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			at, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		// In a container the path may be that of the host, and the container's own group is at the root.
		for group := path.Join("/", parts[2]); ; group = path.Dir(group) {
			text, _ := fs.ReadFile(root, path.Join(at, group, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && (least == 0 || n < least) {
				least = n
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// caps are the most counters of domains, by the rules, and of callers.
type caps struct {
	sync.Mutex
	domains, callers map[string]int64
}

// capAccounts replaces the caps of domains and of callers, each unless nil, and puts all into force.
func (n *Node) capAccounts(domains, callers map[string]int64) {
	n.caps.Lock()
	defer n.caps.Unlock()
	if domains != nil {
		n.caps.domains = domains
	}
	if callers != nil {
		n.caps.callers = callers
	}
	if n.table == nil {
		return // openCluster makes it later
	}
	all := make(map[string]int64)
	maps.Copy(all, n.caps.callers)
	maps.Copy(all, n.caps.domains)
	n.table.SetDomains(all)
}

// A small heap gets some room for garbage, or the collector would run all the time for that of calls; a large one gets little
// beside it.
const (
	collectRoom    = 48 << 20 // bytes of garbage beside an empty heap, less a sixteenth of the live heap
	collectPercent = 30       // percent of the live heap, less half of that room, if that is more
)

// gcTuner keeps the garbage collector's target in step with the live heap of this process, and its limit in step with the memory
// that counters have outside the heap. GOGC and GOMEMLIMIT in the environment win.
type gcTuner struct {
	sample     []metrics.Sample
	target     int  // percentage in force
	keepTarget bool // GOGC is set
	// limit is --memory-limit without codeBytes, 0 if GOMEMLIMIT is set; reserved is what counters had of it at the last look.
	limit, reserved int64
	table           atomic.Pointer[bucket.Table]
}

func newGCTuner(c *Config) *gcTuner {
	t := &gcTuner{sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}, keepTarget: os.Getenv("GOGC") != ""}
	if limit, err := c.memoryLimit(); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		t.limit = limit - codeBytes
		debug.SetMemoryLimit(t.limit)
	}
	return t
}

// adjust sets target and limit if the heap or the counters have changed enough. c may be nil.
func (c *gcTuner) adjust() {
	if c == nil {
		return
	}
	metrics.Read(c.sample)
	if target := collectorTarget(int64(c.sample[0].Value.Uint64())); target != c.target && !c.keepTarget {
		debug.SetGCPercent(target)
		c.target = target
	}
	if t := c.table.Load(); t != nil && c.limit > 0 {
		const enough = 1 << 20
		if reserved := t.OffHeap(); reserved > c.reserved+enough || reserved < c.reserved-enough {
			debug.SetMemoryLimit(max(c.limit-reserved, leastHeap))
			c.reserved = reserved
		}
	}
}

// during runs f, and looks at intervals until f returns. c may be nil.
func (c *gcTuner) during(f func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	tick := time.NewTicker(shed.Tick)
	defer tick.Stop()
	for {
		c.adjust()
		select {
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// collectorTarget returns the GC percentage for a live heap, in steps of a sixteenth so that it changes rarely: setting it stops
// the world for a moment.
func collectorTarget(live int64) int {
	if live < collectRoom/16 {
		return 1600 // also before the first collection
	}
	room := max(collectRoom-live/16, live*collectPercent/100-collectRoom/2)
	percent := int64(1600)
	for next := percent * 15 / 16; live*next/100 >= room; next = percent * 15 / 16 {
		percent = next
	}
	return int(percent)
}
