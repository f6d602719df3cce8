package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc, fixed by Linux's interface.
const tick = 10 * time.Millisecond

// Usage is what a process has used.
type Usage struct {
	// CPU is user and system time since its start, to 10 ms.
	CPU time.Duration
	// GC is what of that the collector of a Go program had spent when its last cycle
	// ended, idle processors' help left out.
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

// Self is what the calling process has used, its collector left out.
func Self() (Usage, error) { return usageOf(os.Getpid()) }

func usageOf(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The second field is the program's name in brackets and may hold anything.
	// What follows the last bracket begins with the third.
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
