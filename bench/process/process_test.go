package process

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestGCTime(t *testing.T) {
	for _, c := range []struct {
		line string
		want time.Duration
		ok   bool
	}{
		{"gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, 0.04+0.3/1.1/0.5+0.02 ms cpu, 4->5->2 MB, 5 MB goal, 0 MB stacks, 0 MB globals, 2 P", 1460 * time.Microsecond, true},
		{"gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, 0.04+0.3/1.1+0.02 ms cpu, 4->5->2 MB", 0, false},
		{"gc 7 @0.1s 2%: 0.02+1.2+0.01 ms clock, a+b/c/d+e ms cpu", 0, false},
		{"gc is a word too", 0, false},
		{`level=INFO msg="1+1 ms clock, 0+1/2/3+4 ms cpu"`, 0, false},
	} {
		if got, ok := gcTime(c.line); got != c.want || ok != c.ok {
			t.Errorf("%s: %v, %v; want %v, %v", c.line, got, ok, c.want, c.ok)
		}
	}
}

// TestUsageOfThisProcess burns processor time until it shows.
func TestUsageOfThisProcess(t *testing.T) {
	first, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if first.Resident < 1<<20 || first.Resident > 1<<40 {
		t.Errorf("%+v", first)
	}
	for start := time.Now(); ; {
		u, err := usageOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if u.CPU > first.CPU {
			return
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%v of processor time after 10 s of work", u.CPU)
		}
	}
}

func TestOutput(t *testing.T) {
	p, err := Start(Spec{Name: "sh", Path: "/bin/sh", Args: []string{"-c", "echo hello $WHO >&2"}, Env: []string{"WHO=you"}})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	if got := p.Tail(); len(got) != 1 || got[0] != "hello you" {
		t.Errorf("wrote %q", got)
	}
	if _, err := p.Usage(); err == nil || !strings.Contains(err.Error(), "sh: ") || !strings.Contains(err.Error(), "hello you") {
		t.Errorf("usage after the end: %v", err)
	}
	p.Stop()
}

func TestStop(t *testing.T) {
	p, err := Start(Spec{Name: "sleep", Path: "/bin/sh", Args: []string{"-c", "exec sleep 60"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Total([]*Process{p, p}); err != nil {
		t.Error(err)
	}
	p.Stop()
	select {
	case <-p.Ended():
	default:
		t.Error("runs on after Stop")
	}
}
