// Package process runs servers under test as processes of their own and reads
// what they cost: processor time and resident memory, from /proc, and the
// collector's part, from the lines that Go's runtime writes about it.
//
// Each Process has two goroutines, one that reads its standard error and one that
// waits for its end; Stop waits for both. Linux only.
package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a running server. Make it with Start, end it with Stop.
type Process struct {
	Name string
	cmd  *exec.Cmd
	// done is closed when the process has ended and its output is read.
	done chan struct{}

	mu struct {
		sync.Mutex
		// tail are the last lines it wrote, for errors.
		tail []string
		gc   time.Duration
	}
}

// Spec says what to start.
type Spec struct {
	Name string
	Path string
	Args []string
	// Env is added to the harness's own.
	Env []string
}

// Start starts s with the collector's trace on. The process is killed when the
// harness ends without having stopped it.
func Start(s Spec) (*Process, error) {
	p := &Process{Name: s.Name, cmd: exec.Command(s.Path, s.Args...), done: make(chan struct{})}
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
		// The exit status says nothing that the last lines do not.
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
func (p *Process) Stop() {
	// An error means that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}
