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
	"time"

	"github.com/dustin/go-humanize"

	"github.com/sluice-project/sluice/internal/shed"
)

const (
	// leastMemory is the smallest --memory-limit: an empty node has about half of it.
	leastMemory = 64 << 20
	// besideCounters is what a node needs besides counters and garbage.
	besideCounters = 44 << 20
	// codeBytes is what the pages of the executable take, which the collector does not count.
	codeBytes = 25 << 20
	// unknownMemory is the --memory-limit of a machine whose memory is not known.
	unknownMemory = 512 << 20
	// leastCounter is the accounted memory of the smallest counter: so many more are no counters.
	leastCounter = 200
)

// memoryLimit returns --memory-limit, or the usual one.
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

// counterBytes is the cap of the counters' accounted memory: half of what --memory-limit leaves beside the rest. The other
// half is what accounts leave out, and garbage until it is collected.
func (c *Config) counterBytes() (int64, error) {
	limit, err := c.memoryLimit()
	return (limit - besideCounters) / 2, err
}

// part returns the so manieth part of --memory-limit, in bytes, but at most most: for what grows with what others send.
func (c *Config) part(divisor, most int64) int {
	limit, _ := c.memoryLimit() // it was valid at the start
	return int(min(limit/divisor, most))
}

// counterEntries is the cap of the counters' number: --max-entries, or what their memory has room for.
func (c *Config) counterEntries(bytes int64) int {
	if c.MaxEntries > 0 {
		return c.MaxEntries
	}
	return int(bytes / leastCounter)
}

// limitMemory has the collector keep the process within --memory-limit. GOMEMLIMIT in the environment wins.
func (c *Config) limitMemory() {
	if limit, err := c.memoryLimit(); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit - codeBytes)
	}
}

// usualMemory is --memory-limit if it is not given: half of what the process's control group may use, or if that has no limit a
// quarter of the machine's memory. root is the file system.
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

// machineMemory returns the machine's memory, 0 if it is not known.
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

// groupMemory returns the least memory limit of the process's control group and those around it, of version 2 and 1; 0 for none.
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
		// In a container the path may be that outside of it, and the container's own group lies at the root.
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

// caps are the bounds of what the table accounts for: of domains, by the rules, and of callers.
type caps struct {
	mu struct {
		sync.Mutex
		domains, callers map[string]int64
	}
}

// capAccounts takes the bounds of domains, or those of callers, or neither where nil, and puts all into force.
func (n *Node) capAccounts(domains, callers map[string]int64) {
	n.caps.mu.Lock()
	defer n.caps.mu.Unlock()
	if domains != nil {
		n.caps.mu.domains = domains
	}
	if callers != nil {
		n.caps.mu.callers = callers
	}
	if n.table == nil {
		return // it is about to be made
	}
	all := maps.Clone(n.caps.mu.callers)
	if all == nil {
		all = make(map[string]int64)
	}
	maps.Copy(all, n.caps.mu.domains)
	n.table.SetDomains(all)
}

// A node's heap is mostly counters that live long, so the garbage collector is
// told to let little pile up beside them; but a small heap gets some room all
// the same, or the collector would run all the time for what calls allocate.
const (
	collectRoom    = 48 << 20 // bytes of garbage that are let be beside nothing; a sixteenth of the live heap less beside more
	collectPercent = 30       // of the live heap, less half of that room, are let be if that is more
)

// gcTuner keeps the garbage collector's target in step with the live heap of this process.
// GOGC in the environment wins. GOMEMLIMIT works on top, as ever.
type gcTuner struct {
	sample []metrics.Sample
	target int
}

// newGCTuner returns nil if GOGC is set.
func newGCTuner() *gcTuner {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &gcTuner{sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
}

// look sets the target anew if the heap has changed enough. c may be nil.
func (c *gcTuner) look() {
	if c == nil {
		return
	}
	metrics.Read(c.sample)
	if target := collectorTarget(int64(c.sample[0].Value.Uint64())); target != c.target {
		debug.SetGCPercent(target)
		c.target = target
	}
}

// during has f run with looks beside it. c may be nil.
func (c *gcTuner) during(f func()) {
	over := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		tick := time.NewTicker(shed.Tick)
		defer tick.Stop()
		for {
			c.look()
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	defer looks.Wait()
	defer close(over)
	f()
}

// collectorTarget returns the GC percentage for a live heap, in steps of a sixteenth
// so that it changes rarely: setting it stops the world for a moment.
func collectorTarget(live int64) int {
	if live < collectRoom/16 {
		return 1600 // this or nothing collected yet
	}
	room := max(collectRoom-live/16, live*collectPercent/100-collectRoom/2)
	percent := int64(1600)
	for next := percent * 15 / 16; live*next/100 >= room; next = percent * 15 / 16 {
		percent = next
	}
	return int(percent)
}
