// Package process runs servers under test as processes and reads their cost: processor time and resident memory from /proc,
// and the garbage collector's share from the trace of Go's runtime.
//
// Each Process has two goroutines, one that reads its standard error and one that
// waits for its end; Stop waits for both. Linux only.
package process

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a running server. Make it with Start, end it with Stop.
type Process struct {
	Spec
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its output is read

	mu struct {
		sync.Mutex
		tail []string // the last lines of its standard error
		gc   time.Duration
	}
}

// Spec is a program to start.
type Spec struct {
	Name string
	Path string
	Args []string
	Env  []string // beside the harness's own
}

// Start starts s with the garbage collector's trace. The process is killed when the harness ends without stopping it.
func Start(s Spec) (*Process, error) {
	p := &Process{Spec: s, cmd: exec.Command(s.Path, s.Args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "GODEBUG=gctrace=1"), s.Env...)
	dieWithParent(p.cmd)
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.Name, err)
	}
	go func() {
		defer close(p.done)
		p.read(errs)
		// The last lines say more than the exit status.
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// read takes in standard error until the process closes it.
func (p *Process) read(r io.Reader) {
	for in := bufio.NewScanner(r); in.Scan(); {
		line := in.Text()
		p.mu.Lock()
		if spent, ok := gcTime(line); ok {
			p.mu.gc += spent
		} else {
			p.mu.tail = append(p.mu.tail[max(0, len(p.mu.tail)-19):], line)
		}
		p.mu.Unlock()
	}
}

// Ended is closed once the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// Tail returns the last lines that the process wrote.
func (p *Process) Tail() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.mu.tail...)
}

// Stop ends the process in order, by force after five seconds.
func (p *Process) Stop() { p.StopWithin(5 * time.Second) }

// StopWithin ends the process in order, by force after d.
func (p *Process) StopWithin(d time.Duration) {
	// An error means that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(d):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// tick is the unit of processor time in /proc, fixed by Linux's interface.
const tick = 10 * time.Millisecond

// Usage is what a process has used.
type Usage struct {
	// CPU is user and system time since its start, to 10 ms.
	CPU time.Duration
	// GC is the part of the garbage collector of a Go program until its last cycle ended, without the help of idle processors.
	GC time.Duration
	// Resident is its memory now, in bytes.
	Resident int64
}

// Usage reads what p has used. It fails once p has ended.
func (p *Process) Usage() (Usage, error) {
	u, err := usageOf(p.cmd.Process.Pid)
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w; its last lines: %s", p.Name, err, strings.Join(p.Tail(), " | "))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u.GC = p.mu.gc
	return u, nil
}

// Total reads what all of ps have used.
func Total(ps []*Process) (Usage, error) {
	var sum Usage
	for _, p := range ps {
		u, err := p.Usage()
		if err != nil {
			return Usage{}, err
		}
		sum.CPU += u.CPU
		sum.GC += u.GC
		sum.Resident += u.Resident
	}
	return sum, nil
}

// Self is the usage of the calling process, without GC.
func Self() (Usage, error) { return usageOf(os.Getpid()) }

func usageOf(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The second field is the program's name in brackets; the third follows the last bracket.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	number := func(field int) (n int64) {
		if err == nil && field-3 < len(fields) {
			n, err = strconv.ParseInt(fields[field-3], 10, 64)
		}
		return n
	}
	u := Usage{
		CPU:      time.Duration(number(14)+number(15)) * tick,
		Resident: number(24) * int64(os.Getpagesize()),
	}
	return u, err
}

// cycle matches a cycle's processor times in ms: stop, assist, background, (idle,) and stop.
var cycle = regexp.MustCompile(`^gc .*ms clock, ([\d.]+)\+([\d.]+)/([\d.]+)/[\d.]+\+([\d.]+) ms cpu`)

// gcTime returns the processor time of one cycle of the garbage collector, from a line of Go's gctrace such as
//
//	gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, 0.04+0.3/1.1/0.5+0.02 ms cpu, 4->5->2 MB, …
//
// which is documented in package runtime. Idle time is left out.
func gcTime(line string) (spent time.Duration, ok bool) {
	parts := cycle.FindStringSubmatch(line)
	if parts == nil {
		return 0, false
	}
	for _, part := range parts[1:] {
		ms, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		spent += time.Duration(ms * float64(time.Millisecond))
	}
	return spent, true
}
