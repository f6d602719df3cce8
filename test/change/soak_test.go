package change

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// Callers ask for MINUTES while nodes join, leave and die at random: no key is over its quota but for what
// crashes may lose, no check is without an answer, and the nodes that were there all the while end as
// they began. `go run ./test/scenario soak` runs it.

const (
	soakStart = 3 // nodes that stay
	soakMost  = 6
	soakIdle  = 4 * time.Second // between two changes, so that copies are complete again
)

func TestSoak(t *testing.T) {
	number := func(name string, otherwise int) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	length, seed := time.Duration(number("MINUTES", 20))*time.Minute, uint64(number("SEED", 1))
	random := rand.New(rand.NewPCG(seed, 0))
	// Whoever has died is soon counted no more, as operators or a short --forget-after see to where nodes come and go: else
	// the dead would be the majority.
	f := newFleet(t, soakStart, "", "--forget-after", "3s")
	steady := f.nodes()
	settle := func() (all []process.Vitals) {
		process.WaitAgreed(t, steady, time.Minute)
		for _, n := range steady {
			all = append(all, n.Vitals())
		}
		return all
	}
	soakLoad(t, f, 10*time.Second, nil) // connections, pools and the collector find their size
	pass(5 * time.Second)
	before := settle()
	show(t, steady, "before", before)

	var losses []time.Time
	counts := map[string]int{}
	found := soakLoad(t, f, length, func(ctx context.Context) {
		for ctx.Err() == nil {
			passing := f.nodes()[soakStart:]
			switch n := random.IntN(3); {
			case n == 0 && len(passing)+soakStart < soakMost || len(passing) == 0:
				counts["joined"]++
				f.grow(1)
			case n == 1:
				counts["left"]++
				f.leave(passing[random.IntN(len(passing))])
			default:
				counts["died"]++
				losses = append(losses, time.Now())
				f.crash(passing[random.IntN(len(passing))])
				process.WaitAgreed(t, f.nodes(), 20*time.Second)
				process.Eventually(t, 30*time.Second, "the dead is counted no more", func() error {
					for _, n := range steady {
						if counted := n.Vitals()["sluice_voters"]; counted != float64(len(f.nodes())) {
							return fmt.Errorf("%s counts %.0f of %d", n.Name, counted, len(f.nodes()))
						}
					}
					return nil
				})
			}
			select {
			case <-time.After(soakIdle):
			case <-ctx.Done():
			}
		}
		if passing := f.nodes()[soakStart:]; len(passing) > 0 {
			f.leave(passing...)
		}
	})
	t.Logf("seed %d: %d joined, %d left, %d died", seed, counts["joined"], counts["left"], counts["died"])
	var allowed int64
	for _, at := range losses {
		allowed += f.allowance(found, at)
	}
	f.judge(found, 5*time.Second, allowed)

	var after []process.Vitals
	process.Eventually(t, 2*time.Minute, "the steady nodes are as they were", func() error {
		after = settle()
		for i, n := range steady {
			if now, then := after[i]["go_goroutines"], before[i]["go_goroutines"]; now > then+30 {
				return fmt.Errorf("%s has %.0f goroutines, before %.0f", n.Name, now, then)
			}
			if now, then := after[i]["process_open_fds"], before[i]["process_open_fds"]; now > then+10 {
				return fmt.Errorf("%s has %.0f descriptors, before %.0f", n.Name, now, then)
			}
			// Counters of the load live for an hour; what is not theirs must not have grown.
			own := func(v process.Vitals) float64 { return v.Resident() - 1.5*v["sluice_counter_bytes"]/process.Mebibyte }
			if now, then := own(after[i]), own(before[i]); now > then*1.25+32 {
				return fmt.Errorf("%s has %.0f MiB beside counters, before %.0f", n.Name, now, then)
			}
		}
		return nil
	})
	show(t, steady, "after", after)
}

func show(t *testing.T, nodes []*process.Node, when string, all []process.Vitals) {
	t.Helper()
	for i, n := range nodes {
		t.Logf("%-6s %s: %v, %.0f counters", when, n.Name, all[i], all[i]["sluice_counters"])
	}
}

// soakLoad audits f for that long, while change runs until its context ends.
func soakLoad(t *testing.T, f *fleet, length time.Duration, change func(context.Context)) outcome {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "checks.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	specs := changeSpecs(false)
	// Keys enough that all the while some of them are not at their limit.
	for i := range specs[0] {
		specs[0][i].Keys = max(smallKeys, int(length/time.Second)*50)
	}
	ctx, settled := context.WithCancel(t.Context())
	defer settled()
	run := func(c audit.Config) *audit.Report {
		c.Targets, c.Domain, c.Callers = f.targets, "soak", 4
		c.Duration, c.Attempt, c.AnswerWithin = length+5*time.Minute, 1500*time.Millisecond, f.answerWithin
		r, err := audit.Run(ctx, c)
		if err != nil {
			t.Error(err)
			return &audit.Report{}
		}
		return r
	}
	found := outcome{log: log.Name()}
	var audits sync.WaitGroup
	audits.Go(func() { found.small = run(audit.Config{Specs: specs[0], Rate: 1000, Log: log}) })
	audits.Go(func() { found.large = run(audit.Config{Specs: specs[1], Rate: 500}) })
	changing, end := context.WithTimeout(t.Context(), length)
	defer end()
	if change != nil {
		change(changing)
	}
	<-changing.Done()
	pass(3 * time.Second)
	settled()
	audits.Wait()
	return found
}
