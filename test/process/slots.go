package process

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// SlotCallers are what a process of callers does. It is told so as JSON by slotCallersEnv.
type SlotCallers struct {
	Target, Domain string
	Keys           [][2]string // of descriptors
	Hold           int         // callers that take a slot of the first key and keep it
	Work           int         // callers that take slots of the keys for a while, again and again
	Each           time.Duration
}

// slotCallersEnv makes the test binary run callers.
const slotCallersEnv = "SLUICE_E2E_SLOT_CALLERS"

// BeSlotCallers is what TestMain begins with: processes that StartSlotCallers has started run
// callers instead of tests.
func BeSlotCallers() {
	if args := os.Getenv(slotCallersEnv); args != "" {
		slotCallers(args)
	}
}

// slotCallers runs callers until the process is killed. They write what they do to standard output.
func slotCallers(args string) {
	var x SlotCallers
	err := json.Unmarshal([]byte(args), &x)
	var c *sluice.Client
	if err == nil {
		c, err = sluice.New(x.Target)
	}
	key := func(i int) sluice.Key { return c.Key(x.Domain, x.Keys[i][0], x.Keys[i][1]) }
	var all sync.WaitGroup
	for range x.Hold {
		all.Go(func() {
			if _, e := c.Acquire(context.Background(), sluice.AcquireRequest{Key: key(0)}); e != nil {
				fmt.Println(e)
			}
		})
	}
	all.Wait()
	fmt.Println("held", err)
	for i := range x.Work {
		go func() {
			k := i % len(x.Keys)
			name := strings.Join(x.Keys[k][:], "=")
			for {
				s, err := c.Acquire(context.Background(), sluice.AcquireRequest{Key: key(k)})
				if err != nil {
					pause.For(context.Background(), 20*time.Millisecond)
					continue
				}
				fmt.Printf("begin %d %s %d\n", time.Now().UnixNano(), name, s.Fence)
				work := x.Each
				if rand.IntN(40) == 0 { // for longer than a slot lasts that is not renewed
					work = 2500 * time.Millisecond
				}
				pause.For(s.Context(), work)
				event := "end"
				if errors.Is(context.Cause(s.Context()), sluice.ErrSlotLost) {
					event = "lost"
				}
				fmt.Printf("%s %d %s %d\n", event, time.Now().UnixNano(), name, s.Fence)
				s.Release()
			}
		}()
	}
	select {}
}

// WorkSlots are callers that take slots of SlotRules.
func WorkSlots(target string) SlotCallers {
	x := SlotCallers{Target: target, Domain: "jobs", Work: 24, Each: 20 * time.Millisecond}
	for i := range 2 {
		for _, kind := range []string{"queue", "lock", "lax"} {
			x.Keys = append(x.Keys, [2]string{kind, fmt.Sprint(i)})
		}
	}
	return x
}

// SlotUse is the use of a slot, from the moment Acquire has returned until just before its context
// had ended, or Release.
type SlotUse struct {
	Key        string // KEY=VALUE
	Fence      uint64
	Begin, End int64 // Unix ns
	lost, open bool
}

// SlotProcess is a process of slotCallers.
type SlotProcess struct {
	t          *testing.T
	Cmd        *exec.Cmd
	Held, over chan struct{}
	mu         sync.Mutex
	uses       []*SlotUse
	done       int   // uses that have ended
	stopped    int64 // when the process was stopped, 0 if it never was
}

// StartSlotCallers runs callers by cmd, which runs this test binary.
func StartSlotCallers(t *testing.T, cmd *exec.Cmd, x SlotCallers) *SlotProcess {
	t.Helper()
	args, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	p := &SlotProcess{t: t, Cmd: cmd, Held: make(chan struct{}), over: make(chan struct{})}
	cmd.Env = append(os.Environ(), slotCallersEnv+"="+string(args))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.over)
		open := map[string]*SlotUse{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var event string
			u := new(SlotUse)
			switch n, _ := fmt.Sscan(lines.Text(), &event, &u.Begin, &u.Key, &u.Fence); {
			case lines.Text() == "held <nil>":
				close(p.Held)
			case n != 4:
				t.Errorf("a caller says %q", lines.Text())
			case event == "begin":
				u.open, open[u.Key+fmt.Sprint(u.Fence)] = true, u
				p.mu.Lock()
				p.uses = append(p.uses, u)
				p.mu.Unlock()
			default:
				p.mu.Lock()
				at := u.Begin
				u = open[u.Key+fmt.Sprint(u.Fence)]
				u.End, u.open, u.lost = at, false, event == "lost"
				p.done++
				p.mu.Unlock()
			}
		}
	}()
	t.Cleanup(p.Kill)
	return p
}

func (p *SlotProcess) signal(s os.Signal) {
	if err := p.Cmd.Process.Signal(s); err != nil {
		p.t.Error(err)
	}
}

// Kill ends the process. What it used is not in use any more.
func (p *SlotProcess) Kill() {
	if p.Cmd.ProcessState != nil {
		return
	}
	_ = p.Cmd.Process.Kill() // it runs
	<-p.over
	_ = p.Cmd.Wait() // it was killed
	for _, u := range p.uses {
		if u.open {
			u.End = time.Now().UnixNano()
		}
	}
}

// Uses returns what was used of a key, in the order in which that began. The process must have been
// killed.
func (p *SlotProcess) Uses(key string) (uses []*SlotUse) {
	for _, u := range p.uses {
		if u.Key == key {
			uses = append(uses, u)
		}
	}
	slices.SortFunc(uses, func(a, b *SlotUse) int { return cmp.Compare(a.Begin, b.Begin) })
	return uses
}

// Count returns the number of uses that have ended.
func (p *SlotProcess) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Progress waits until a process has used so many more slots.
func (p *SlotProcess) Progress(what string, more int) {
	p.t.Helper()
	from := p.Count()
	Until(p.t, what, func() bool { return p.Count() >= from+more })
}

// renewedFor is how long a slot lasts at least from the moment at which its process is stopped: 7/8
// of 2 s from the last heartbeat that was answered, which are 0.4 s apart.
const renewedFor = int64(2*time.Second*7/8 - 450*time.Millisecond)

// slotVerdict is what a referee says of the uses of a kind of keys.
type slotVerdict struct {
	uses, lost int
	// most were in use at a time, mostBeyond with those whose process was stopped beyond their
	// deadline: beyond are all of these.
	most, MostBeyond, Beyond int
	// unordered are uses whose fence is not above that of an earlier one of the key.
	unordered int
	// over is how long more than limit were in use, from first until last.
	over        time.Duration
	first, last time.Time
}

func (v slotVerdict) String() string {
	return fmt.Sprintf("%d uses, %d lost; at most %d at a time, and %d with %d of stopped callers beyond their deadline; over the limit for %v",
		v.uses, v.lost, v.most, v.MostBeyond, v.Beyond, v.over)
}

// judge compares all uses of keys of a kind by the clock. All processes must have been killed.
func judge(processes []*SlotProcess, kind string, limit int) (v slotVerdict) {
	type change struct {
		at           int64
		inUse, stuck int
	}
	byKey := map[string][]*SlotUse{}
	changes := map[string][]change{}
	for _, p := range processes {
		for _, u := range p.uses {
			if !strings.HasPrefix(u.Key, kind) {
				continue
			}
			v.uses++
			byKey[u.Key] = append(byKey[u.Key], u)
			end := u.End
			if beyond := p.stopped + renewedFor; p.stopped > u.Begin && u.End > beyond {
				v.Beyond++
				changes[u.Key] = append(changes[u.Key], change{beyond, 0, 1}, change{u.End, 0, -1})
				end = beyond
			}
			if u.lost {
				v.lost++
			}
			changes[u.Key] = append(changes[u.Key], change{u.Begin, 1, 0}, change{end, -1, 0})
		}
	}
	for key, list := range changes {
		slices.SortFunc(list, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.inUse, b.inUse)) })
		inUse, stuck := 0, 0
		for i, c := range list {
			if inUse > limit {
				v.over += time.Duration(c.at - list[i-1].at)
				if v.last = time.Unix(0, c.at); v.first.IsZero() || v.first.After(time.Unix(0, list[i-1].at)) {
					v.first = time.Unix(0, list[i-1].at)
				}
			}
			inUse, stuck = inUse+c.inUse, stuck+c.stuck
			v.most, v.MostBeyond = max(v.most, inUse), max(v.MostBeyond, inUse+stuck)
		}
		uses, fence := byKey[key], uint64(0)
		slices.SortFunc(uses, func(a, b *SlotUse) int { return cmp.Compare(a.Begin, b.Begin) })
		for _, u := range uses {
			if u.Fence <= fence {
				v.unordered++
			}
			fence = max(fence, u.Fence)
		}
	}
	return v
}

// JudgeAll ends processes and fails the test if more slots were in use than the limits, or for a
// moment after each of the crashes and cuts with async replication.
func JudgeAll(t *testing.T, processes []*SlotProcess, troubles ...time.Time) map[string]slotVerdict {
	t.Helper()
	for _, p := range processes {
		p.Kill()
	}
	verdicts := map[string]slotVerdict{}
	for kind, limit := range map[string]int{"queue": 5, "lock": 1, "lax": 5} {
		v := judge(processes, kind, limit)
		verdicts[kind] = v
		t.Logf("%s: %v", kind, v)
		switch {
		case v.uses == 0 || v.most < limit:
			t.Errorf("%s: not all are in use: this tests nothing", kind)
		case kind == "lock" && v.unordered > 0:
			t.Errorf("%d fences of locks are not above earlier ones", v.unordered)
		case kind == "lax" && v.over > 0:
			t.Logf("async: over the limit of %d between %v and %v, troubles at %v", limit, v.first, v.last, troubles)
			if v.most > 2*limit || len(troubles) == 0 || v.first.Before(troubles[0]) || v.last.After(troubles[len(troubles)-1].Add(4*time.Second)) {
				t.Errorf("%s: %d in use, at times when no replica can have missed it", kind, v.most)
			}
		case v.over > 0:
			t.Errorf("%s: %d in use at a time, want %d", kind, v.most, limit)
		}
	}
	return verdicts
}

// StopBeyond stops p for longer than its slots last, and waits until p goes on after that.
func (p *SlotProcess) StopBeyond(others *SlotProcess) {
	p.t.Helper()
	p.stopped = time.Now().UnixNano()
	p.signal(syscall.SIGSTOP)
	others.Progress("beside a stopped process", 100)
	pause.For(p.t.Context(), 3*time.Second)
	others.Progress("with what it had", 100)
	p.signal(syscall.SIGCONT)
	p.Progress("after it was stopped", 100)
}

const SlotRules = `domain: jobs
descriptors:
  - key: queue
    replication: sync
    limits: [{algorithm: concurrency, count: 5}]
  - key: lock
    replication: sync
    limits: [{algorithm: concurrency, count: 1}]
  - key: pool
    limits: [{algorithm: concurrency, count: 40}]
  - key: lax
    replication: async
    limits: [{algorithm: concurrency, count: 5}]
  - key: crowd
    limits: [{algorithm: concurrency, count: 10000}]
`

// Until polls until ok. Its bound only ends a test that would wait for ever.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
