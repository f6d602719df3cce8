package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"
)

// Measurements of docs/internals/benchmarks.md and bench/results, as docs/operate/sizing.md explains them.
const (
	keyBytes   = 120       // of --memory-limit for a counter: about 80 resident, and half as much in reserve
	baseBytes  = 44 << 20  // of --memory-limit for what are no counters
	leastBytes = 128 << 20 // of --memory-limit: a node without counters takes 60 to 80 MiB
	usedCPU    = 0.6       // of the CPU at most, so that responses are in time
)

// callCosts are for calls of so many checks: CPU seconds of all nodes for a million checks of 10,000 keys without replicas, with 1, 3
// and 9 nodes; the factors for replicas, for two instead of one, and for 10 million keys; bytes between nodes for a check without and
// with replicas. 9 nodes with 1000 checks are not measured: the growth is that with 100.
var callCosts = []struct{ checks, cpu1, cpu3, cpu9, replica, second, keys, bytes, replicated float64 }{
	{1, 25, 51, 109, 1.06, 1.1, 1.05, 50, 330},
	{100, 1.4, 2.5, 5.3, 1.75, 1.5, 1.45, 20, 80},
	{1000, 1.3, 1.8, 3.8, 1.75, 1.5, 1.45, 20, 80},
}

// sizing is a load and what it needs while one of the nodes is lost.
type sizing struct {
	Rate        float64 `json:"checks_per_second"`
	Keys        float64 `json:"keys"`
	Batch       float64 `json:"checks_per_call"`
	Nodes       int     `json:"nodes"`
	Replicas    int     `json:"replicas"`
	UsedCores   float64 `json:"used_cores"` // of all nodes
	Cores       float64 `json:"cores_per_node"`
	Counters    float64 `json:"counters_per_node"`
	MemoryLimit int64   `json:"memory_limit_mib"`
	Container   int64   `json:"container_mib"`
	Traffic     float64 `json:"bytes_per_second_between_nodes"`
}

func newSizing() *cobra.Command {
	var s sizing
	var output string
	cmd := &cobra.Command{
		Use:   "sizing --rate N --keys N",
		Short: "Estimate the CPU, memory and network for a load",
		Long: `Estimate what a load needs, so that the other nodes carry it while one is lost. The figures
are measured on one cloud machine: measure yours with sluice bench before you buy.`,
		Example: "  sluice sizing --rate 20000 --keys 2000000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, b := range []struct {
				flag             string
				value, low, high float64
			}{
				{"rate", s.Rate, 1, 1e8}, {"keys", s.Keys, 1, 1e10}, {"batch", s.Batch, 1, 1000},
				{"nodes", float64(s.Nodes), 1, 99}, {"replicas", float64(s.Replicas), 0, 2},
			} {
				if !(b.value >= b.low && b.value <= b.high) {
					return usageError(fmt.Errorf("--%s: %v is not from %v to %.0f", b.flag, b.value, b.low, b.high))
				}
			}
			if s.Nodes == 2 {
				return usageError(fmt.Errorf("--nodes: 2 do not survive the loss of one; give 1, or 3 and more"))
			}
			s.estimate()
			return write(cmd.OutOrStdout(), output, s.text(), &s)
		},
	}
	cmd.Flags().Float64Var(&s.Rate, "rate", 0, "checks a second at the peak")
	cmd.Flags().Float64Var(&s.Keys, "keys", 0, "keys in use within the period of their limit")
	cmd.Flags().Float64Var(&s.Batch, "batch", 1, "checks in a call")
	cmd.Flags().IntVar(&s.Nodes, "nodes", 3, "number of nodes")
	cmd.Flags().IntVar(&s.Replicas, "replicas", 1, "replicas of a counter: 1, 2, or 0 where all periods are below 10s")
	registerOutput(cmd.Flags(), &output)
	return cmd
}

func (s *sizing) estimate() {
	i := 0
	if s.Batch > callCosts[1].checks {
		i = 1
	}
	a, b := callCosts[i], callCosts[i+1]
	// between is at x on the line between two points, all as logarithms.
	between := func(x, x0, y0, x1, y1 float64) float64 { return y0 * math.Pow(y1/y0, math.Log(x/x0)/math.Log(x1/x0)) }
	call := func(ya, yb float64) float64 { return between(s.Batch, a.checks, ya, b.checks, yb) }
	left := max(1, s.Nodes-1)
	s.Replicas = min(s.Replicas, s.Nodes-1)
	cpu := call(a.cpu1, b.cpu1)
	if s.Nodes > 1 {
		cpu = between(float64(s.Nodes), 3, call(a.cpu3, b.cpu3), 9, call(a.cpu9, b.cpu9))
		extra := call(a.replicated, b.replicated) - call(a.bytes, b.bytes)
		s.Traffic = 50e3 + s.Rate*(call(a.bytes, b.bytes)+extra*float64(s.Replicas)) // 50 kB a second when idle
	}
	cpu *= []float64{1, call(a.replica, b.replica), call(a.replica*a.second, b.replica*b.second)}[s.Replicas]
	cpu *= between(min(max(s.Keys, 1e4), 1e7), 1e4, 1, 1e7, call(a.keys, b.keys))
	s.UsedCores = s.Rate * cpu / 1e6
	s.Cores = math.Max(0.1, math.Ceil(10*s.UsedCores/usedCPU/float64(left))/10)
	s.Counters = math.Ceil(s.Keys * float64(1+min(s.Replicas, left-1)) / float64(left))
	s.MemoryLimit = int64(math.Ceil(math.Max(leastBytes, s.Counters*keyBytes+baseBytes) / (1 << 20)))
	s.Container = (s.MemoryLimit*5 + 3) / 4
}

func (s *sizing) text() string {
	return fmt.Sprintf(`CPU       %.2f cores in use at the peak; %.1f for each of %d nodes
memory    %.0f counters, %d MiB for each node
network   %.1f MB/s between nodes

sluice serve --memory-limit %dMiB --replicas %d
resources: {requests: {cpu: %.0fm, memory: %dMi}, limits: {memory: %dMi}}
`, s.UsedCores, s.Cores, s.Nodes, s.Counters, s.Container, s.Traffic/1e6, s.MemoryLimit, max(1, s.Replicas), s.Cores*1000, s.Container, s.Container)
}
