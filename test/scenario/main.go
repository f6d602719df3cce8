// Command scenario runs what takes minutes to hours, by name:
//
//	go run ./test/scenario                     lists the scenarios
//	go run ./test/scenario change              runs one
//	go run ./test/scenario change -run Crash -count 5
//
// Flags after the name are those of go test, for the scenario's tests; many also read their
// environment, as the list says. Scenarios talk to loopback addresses, and to network namespaces
// that they make, alone.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// scenario is commands that run one after the other, from the root of the tree.
type scenario struct {
	name, does string
	environ    []string // where it is not set by the caller
	commands   []string
}

// test is the start of the commands that take the caller's flags.
const (
	test        = "go test -count 1 -timeout 0 "
	integration = "GOWORK=off go -C test/integration test -count 1 -timeout 0 "
)

var scenarios = []scenario{
	{name: "audit", does: "every algorithm's quota, exact over three processes", commands: []string{test + "-run Audit -v ./test/e2e"}},
	{name: "change", does: "quotas over joins, leaves, restarts, crashes, pauses and unequal rules of real processes", commands: []string{test + "-run Change -v ./test/change"}},
	{
		name: "upgrade", does: "clusters with nodes of this tree and of BASE (the last release, or the last commit), under load; TESTS, RUNS",
		commands: []string{"tools/upgrade-test"},
	},
	{name: "soak", does: "load for MINUTES=20 while nodes join, leave and die at random (SEED=1): no over-admission, no leaks", commands: []string{test + "-run Soak -v ./test/change"}},
	{name: "hot", does: "one key that all nodes share: never over its limit, and how fast", commands: []string{test + "-run HotKey|ColdKey -v ./test/load", test + "-run EventualFar|EventualCut -v ./test/e2e"}},
	{name: "console-cost", does: "CPU of three watchers of the console under load, in ROUNDS=10 pairs (LOAD='--batch 10')", commands: []string{test + "-run ConsoleCost -v ./test/load"}},
	{name: "flood", does: "every check of a new key for FLOOD=5m: memory stays within 1.25 of --memory-limit (FLOOD_LIMIT=256 MiB)", environ: []string{"FLOOD=5m"}, commands: []string{test + "-run Flood -v ./test/hostile"}},
	{
		name: "hostile", does: "garbage, idle and slow connections, huge messages at each port, SIEGE=10s each: others are served", environ: []string{"SIEGE=10s"},
		commands: []string{test + "-run Outsiders|SilentPeer|OneConnection|CompleteMessages|HalfBodies -v ./test/hostile"},
	},
	{name: "deadlines", does: "callers with 20, 50 and 100 ms while an owner is stopped, killed or cut off (root, ip)", commands: []string{test + "-run Deadlines -v ./test/network"}},
	{name: "cut", does: "three hosts, one cut off for 60 s, and slots behind a cut (Linux, root, ip)", commands: []string{test + "-run CutOff -v ./test/network"}},
	{name: "regions", does: "three regions far from each other, and their faults (Linux, root, ip)", commands: []string{test + "-run FarRegions -v ./test/network"}},
	{
		name: "faults", does: "every fault of network and processes against its bound (CELLS='^cut' NODES=5 ROUNDS=3 FORCE=1 FAULT_TCP=cubic RESULTS=FILE; Linux, root, ip)",
		environ: []string{"RESULTS=" + results, "FAULT_LOGS=bin/faults"}, commands: []string{test + "-run Matrix -v ./test/faults"},
	},
	{name: "faults-short", does: "its ten shortest scenarios with three nodes, once each, without a record", environ: []string{"FAULT_SHORT=1", "FAULT_LOGS=bin/faults"}, commands: []string{test + "-run Matrix ./test/faults"}},
	{
		name: "starts", does: "restarts, cold starts by names that are wrong, late or old, in a network partition, two processes at once, as faults; ROUNDS",
		environ:  []string{"FORCE=1", "FAULT_LOGS=bin/faults", "CELLS=^(restart-each|names-.*|seed-restarted|restart-in-cut|start-in-cut|overlap-.*)/3/"},
		commands: []string{test + "-run Matrix -v ./test/faults"},
	},
	{
		name: "guards", does: "failures that the protocol's rules prevent, without each rule: they are found",
		commands: []string{test + "-tags guards -run Guard|RejectionMemory ./bucket ./cluster ./cluster/handoff ./test/sim"},
	},
	{name: "sim", does: "seeded schedules of faults; after -args -seeds 2000 -from 0", commands: []string{test + "-run Test(Lease|Slot)?Seeds$ -v ./test/sim"}},
	{name: "proxies", does: "the example files of nginx, HAProxy and Caddy, run as they stand (Linux)", commands: []string{integration + "./proxies", test + "-run OperatorsThroughProxies ./internal/node"}},
	{name: "console", does: "the console in headless Chromium, against three processes", commands: []string{integration + "./browser"}},
	{name: "alerts", does: "alerts, dashboard and the example for Prometheus, by promtool", commands: []string{test + "-run Alert|Dashboard|Promtool|Provision|Metrics ./internal/node"}},
	{name: "release", does: "a release, twice from nothing, and its modules as others use them (TARGETS=linux/arm64)", commands: []string{"tools/release-test", "GOWORK=off go -C tools test -count 1 -v ./modules"}},
}

// results is where results of faults are kept.
const results = "bench/results/faults.jsonl"

func main() {
	if len(os.Args) < 2 {
		list(os.Stdout)
		return
	}
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == os.Args[1] })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "scenario: there is no %q; they are:\n", os.Args[1])
		list(os.Stderr)
		os.Exit(2)
	}
	if err := scenarios[i].run(os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "scenario: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func list(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range scenarios {
		fmt.Fprintf(table, "%s\t%s\n", s.name, s.does)
	}
	table.Flush()
}

// run runs the scenario's commands until one fails.
func (s *scenario) run(flags []string) error {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/sluicecluster/sluice").Output()
	if err != nil {
		return fmt.Errorf("run this in a checkout of sluice: %w", err)
	}
	dir := string(bytes.TrimSpace(root))
	env := []string{"SLUICE_LONG=1"}
	for _, e := range s.environ {
		name, value, _ := strings.Cut(e, "=")
		if strings.HasPrefix(value, "bin/") || value == results {
			value = filepath.Join(dir, value) // tests run in their own directories
		}
		if _, ok := os.LookupEnv(name); !ok {
			env = append(env, name+"="+value)
		}
	}
	if s.name == "faults" {
		env = append(env, "FAULT_COMMIT="+productCommit(dir))
	}
	for _, c := range s.commands {
		words := strings.Fields(c)
		for strings.Contains(words[0], "=") {
			env, words = append(env, words[0]), words[1:]
		}
		args := words
		if strings.Contains(c, " test ") {
			args = withFlags(words, flags)
		}
		fmt.Println(strings.Join(args, " "))
		command := exec.Command(args[0], args[1:]...)
		command.Dir, command.Env, command.Stdin, command.Stdout, command.Stderr = dir, append(os.Environ(), env...), os.Stdin, os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			return err
		}
	}
	return nil
}

// withFlags puts flags of go test before the packages, and those of tests, from -args on, at the
// end.
func withFlags(words, flags []string) []string {
	packages := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })
	args := slices.Index(flags, "-args")
	if args < 0 {
		args = len(flags)
	}
	return slices.Concat(words[:packages], flags[:args], words[packages:], flags[args:])
}

// productCommit is the last commit that changed what nodes run, which results of faults are about,
// with a + if files differ.
func productCommit(dir string) string {
	product := []string{"--", "*.go", "go.mod", ":!*_test.go", ":!bench", ":!test"}
	log := exec.Command("git", append([]string{"log", "-1", "--format=%h", "--abbrev=12"}, product...)...)
	log.Dir = dir
	commit, err := log.Output()
	if err != nil {
		return ""
	}
	diff := exec.Command("git", append([]string{"diff", "--quiet", "HEAD"}, product...)...)
	diff.Dir = dir
	name := string(bytes.TrimSpace(commit))
	if diff.Run() != nil {
		name += "+"
	}
	return name
}
