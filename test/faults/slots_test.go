//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
)

// slotProcess is a process in the client's namespace that holds slots as users of the Go client do,
// until its end. It ends without a word to the nodes, as if it were killed.
type slotProcess struct {
	c      *cell
	cmd    *exec.Cmd
	stdin  io.Closer
	path   string
	fences map[string]int // that did not rise, by the name of books
}

// holding is a slot, from when Acquire had returned it until its release or the end of its Context.
type holding struct {
	Name, Value string
	From, To    time.Time
	Fence       uint64
}

func (c *cell) startSlots(targets []*target) *slotProcess {
	c.t.Helper()
	p := &slotProcess{c: c, path: filepath.Join(c.dir, "slots.json"), fences: map[string]int{}}
	var addrs []string
	for _, t := range targets {
		addrs = append(addrs, t.addr)
	}
	p.cmd = exec.Command("ip", "netns", "exec", c.namespace(clientHost),
		os.Args[0], "-test.run", "^TestSlots$", "-test.v")
	p.cmd.Env = append(os.Environ(), "FAULT_SLOTS="+strings.Join(addrs, ","), "FAULT_RESULT="+p.path)
	log, err := os.Create(filepath.Join(c.logs, "slots.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// end ends the process, writes its slots into the books, and gives the nodes the time to free them.
func (p *slotProcess) end(books []*book) {
	p.c.t.Helper()
	p.stdin.Close()
	err := p.cmd.Wait()
	ended := time.Now()
	var all []holding
	data, readErr := os.ReadFile(p.path)
	if readErr == nil {
		readErr = json.Unmarshal(data, &all)
	}
	if readErr != nil {
		p.c.t.Fatalf("the process with slots: %v, %v", err, readErr)
	}
	slices.SortFunc(all, func(a, b holding) int { return a.From.Compare(b.From) })
	for _, b := range books {
		if b.use != useSlots {
			continue
		}
		var of []holding
		for _, h := range all {
			if h.Name != b.name() || h.Value != b.value {
				continue
			}
			b.note(h.From, 1, "slot", func() {
				b.hold(h.From, 1)
				b.hold(h.To, -1)
			})
			if slices.ContainsFunc(of, func(before holding) bool {
				return before.To.Before(h.From) && before.Fence >= h.Fence
			}) {
				p.fences[b.name()]++
			}
			of = append(of, h)
		}
	}
	p.c.wait(time.Until(ended.Add(slotsFree)))
}

// TestSlots is the process. It acquires slots and holds them until its standard input ends.
func TestSlots(t *testing.T) {
	addrs := os.Getenv("FAULT_SLOTS")
	if addrs == "" {
		t.Skip("a cell runs this")
	}
	c, err := sluice.New(addrs)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var mu sync.Mutex
	var all []holding
	var running sync.WaitGroup
	for _, policy := range policies {
		for i := range len(bookNames) * workersOfUse {
			b := &book{policy: policy, use: useSlots, value: bookNames[i%len(bookNames)]}
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			running.Go(func() {
				for ctx.Err() == nil {
					slot, err := c.Acquire(ctx, sluice.AcquireRequest{
						Key: c.Key(domain, b.name(), b.value), MaxWait: time.Second,
					})
					if err != nil {
						<-time.After(10 * ms)
						continue
					}
					h := holding{
						Name: b.name(), Value: b.value, From: time.Now(), Fence: slot.Fence,
					}
					select {
					case <-ctx.Done(): // it holds the slot at its end
					case <-slot.Context().Done():
					case <-time.After(50*ms + time.Duration(rng.Int64N(int64(700*ms)))):
					}
					h.To = time.Now()
					if ctx.Err() == nil {
						slot.Release()
					}
					mu.Lock()
					all = append(all, h)
					mu.Unlock()
				}
			})
		}
	}
	running.Wait()
	out, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(os.Getenv("FAULT_RESULT"), out, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // at once: nothing is released
}
