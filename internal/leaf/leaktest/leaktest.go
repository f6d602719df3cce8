// Package leaktest fails the tests of a package that leaves goroutines behind. Elsewhere goleak does; a library that the tests of
// the SDK need would be in the module graph of every program that uses the SDK.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main runs the tests of m and ends the process. Goroutines have a minute to end after the last
// test.
func Main(m *testing.M) { run(m, time.Minute) }

// run is Main, with another time for goroutines to end.
func run(m *testing.M, patience time.Duration) {
	status := m.Run()
	if status == 0 {
		if left := wait(patience); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines that outlive the tests:\n\n%s\n", left)
			status = 1
		}
	}
	os.Exit(status)
}

// wait returns the stacks of the goroutines other than the caller's that remain for d, or "".
func wait(d time.Duration) string {
	deadline := time.Now().Add(d)
	for {
		left := others()
		if left == "" || time.Now().After(deadline) {
			return left
		}
		time.Sleep(time.Millisecond)
	}
}

func others() string {
	b := make([]byte, 1<<20)
	stacks := strings.Split(strings.TrimSpace(string(b[:runtime.Stack(b, true)])), "\n\n")
	var left []string
	for _, s := range stacks[1:] { // the first is the caller's
		if !strings.Contains(s, "os/signal.") { // which the testing package starts when it fuzzes
			left = append(left, s)
		}
	}
	return strings.Join(left, "\n\n")
}
