//go:build linux

// Package faults measures how far beyond its limits a cluster of real processes goes under each fault of the
// network and of processes, and holds it to docs/internals/consistency.md. TestMatrix runs each cell in a process of its
// own; see `go run ./test/scenario faults`.
package faults

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/faultnet"
	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) {
	process.BeSlotCallers()
	os.Exit(m.Run())
}

const kept, beyond, failed, disturbed = "kept", "beyond", "failed", "disturbed"

// cellID names a cell: SCENARIO/NODES/RUN.
type cellID struct {
	scenario   string
	nodes, run int
}

func (id cellID) String() string { return fmt.Sprintf("%s/%d/%d", id.scenario, id.nodes, id.run) }

func parseCellID(text string) (id cellID, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return id, false
	}
	nodes, err1 := strconv.Atoi(parts[1])
	run, err2 := strconv.Atoi(parts[2])
	return cellID{parts[0], nodes, run}, err1 == nil && err2 == nil
}

// seed is the same whenever the cell is run.
func (id cellID) seed() uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, id)
	return uint64(h.Sum32())
}

// chosen returns the cells that the environment asks for: those of CELLS, a pattern, and of NODES, a size, ROUNDS times each; with
// FAULT_SHORT the short ones, once.
func chosen(t *testing.T) (ids []cellID) {
	pattern, err := regexp.Compile(os.Getenv("CELLS"))
	if err != nil {
		t.Fatalf("CELLS: %v", err)
	}
	short := os.Getenv("FAULT_SHORT") != ""
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("ROUNDS"), "0"))
	if err != nil {
		t.Fatalf("ROUNDS: %v", err)
	}
	for _, sc := range scenarios {
		for _, nodes := range sc.sizes {
			runs := cmp.Or(rounds, sc.runs, 2)
			if short {
				runs = 1
			}
			for run := 1; run <= runs; run++ {
				id := cellID{sc.name, nodes, run}
				size := os.Getenv("NODES")
				if !pattern.MatchString(id.String()) || size != "" && size != strconv.Itoa(nodes) || short && (!sc.short || nodes != sc.sizes[0]) {
					continue
				}
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// TestMatrix runs the cells that have no result for this commit yet, or a disturbed one (with FORCE all), and fails if
// any is not kept.
func TestMatrix(t *testing.T) {
	process.OnlyLong(t)
	if os.Getenv("FAULT_CELL") != "" {
		return
	}
	m := &matrix{t: t, file: os.Getenv("RESULTS"), commit: os.Getenv("FAULT_COMMIT"), binary: filepath.Join(t.TempDir(), "sluice")}
	m.read()
	if out, err := exec.Command("go", "build", "-o", m.binary, "github.com/sluicecluster/sluice/cmd/sluice").CombinedOutput(); err != nil {
		t.Fatalf("building the binary: %v\n%s", err, out)
	}
	ids := chosen(t)
	if len(ids) == 0 {
		t.Fatal("no cell matches CELLS and NODES")
	}
	for _, id := range ids {
		r, ok := m.results[id]
		if !ok || r.Commit != m.commit || r.Verdict == disturbed || os.Getenv("FORCE") != "" {
			r = m.runCell(id)
			m.results[id] = r
			m.write()
		}
		groups := ""
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			if f := r.Groups[name]; f.Excess > 0 {
				groups += fmt.Sprintf(" %s +%d (%d/%d)", name, f.Excess, f.Most, f.Limit)
			}
		}
		t.Logf("%-9s %-26s gap %.1fs, whole after %.1fs,%s", r.Verdict, id, r.Gap, r.Whole, cmp.Or(groups, " excess 0"))
		if r.Verdict != kept {
			t.Errorf("%v: %s: %s", id, r.Verdict, strings.Join(r.Why, "; "))
		}
	}
}

// matrix is a file of results, and what is needed to add to it.
type matrix struct {
	t                    *testing.T
	file, commit, binary string
	results              map[cellID]result
}

func (m *matrix) read() {
	m.results = map[cellID]result{}
	data, err := os.ReadFile(m.file)
	if m.file == "" || os.IsNotExist(err) {
		return
	} else if err != nil {
		m.t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			m.t.Fatalf("%s: %v", m.file, err)
		}
		m.results[cellID{r.Cell, r.Nodes, r.Run}] = r
	}
}

// write writes one line for each cell, in the order of the scenarios, at once.
func (m *matrix) write() {
	m.t.Helper()
	if m.file == "" {
		return
	}
	var out bytes.Buffer
	for _, sc := range scenarios {
		for _, nodes := range sc.sizes {
			for run := 1; run <= cmp.Or(sc.runs, 2); run++ {
				if r, ok := m.results[cellID{sc.name, nodes, run}]; ok {
					line, err := json.Marshal(r)
					if err != nil {
						m.t.Fatal(err)
					}
					out.Write(append(line, '\n'))
				}
			}
		}
	}
	if err := os.WriteFile(m.file+".new", out.Bytes(), 0o644); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(m.file+".new", m.file); err != nil {
		m.t.Fatal(err)
	}
}

// runCell runs a cell in a process of its own, holding FAULT_LOCK, if it is set.
func (m *matrix) runCell(id cellID) result {
	m.t.Helper()
	if path := os.Getenv("FAULT_LOCK"); path != "" {
		lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			m.t.Fatal(err)
		}
		defer lock.Close()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			m.t.Fatal(err)
		}
	}
	prefix := fmt.Sprintf("sf%d", os.Getpid())
	defer removeHosts(prefix)
	dir := m.t.TempDir()
	logs := dir
	if path := os.Getenv("FAULT_LOGS"); path != "" {
		logs = filepath.Join(path, strings.ReplaceAll(id.String(), "/", "-"))
		if err := os.MkdirAll(logs, 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestCell$", "-test.v", "-test.timeout", (280*time.Second + scenarioOf(id.scenario).length).String())
	cmd.Env = append(os.Environ(), "FAULT_CELL="+id.String(), "FAULT_PREFIX="+prefix, "FAULT_BINARY="+m.binary,
		"FAULT_LOGS="+logs, "FAULT_RESULT="+filepath.Join(dir, "result.json"))
	out, err := cmd.CombinedOutput()
	if path := filepath.Join(logs, "cell.log"); os.WriteFile(path, out, 0o644) != nil {
		m.t.Errorf("cannot write %s", path)
	}
	var r result
	data, readErr := os.ReadFile(filepath.Join(dir, "result.json"))
	if readErr == nil {
		readErr = json.Unmarshal(data, &r)
	}
	if readErr != nil {
		m.t.Logf("%s", out)
		return result{
			Cell: id.scenario, Nodes: id.nodes, Run: id.run, Commit: m.commit, Seed: id.seed(),
			Verdict: failed, Why: []string{fmt.Sprintf("the process ended without a result: %v", err)},
		}
	}
	return r
}

// removeHosts removes what a cell may have left behind.
func removeHosts(prefix string) {
	names, _ := filepath.Glob("/run/netns/" + prefix + "h*")
	for _, name := range names {
		if err := faultnet.RemoveHost(filepath.Base(name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.RemoveAll(filepath.Join("/etc/netns", filepath.Base(name)))
	}
}
