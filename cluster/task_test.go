package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestTask: it works every period from a call on, as long as there is something to do, and wakes
// nobody otherwise.
func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTask(20 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Duration
		work, start := 0, time.Now()
		during := func() {}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.run(ctx, func() bool {
				at = append(at, time.Since(start)/time.Millisecond)
				work--
				more := work > 0
				during()
				return more
			})
		}()
		want := func(name string, times ...time.Duration) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if len(at) != len(times) {
				t.Fatalf("%s: it worked at %v, want %v (ms)", name, at, times)
			}
			for i := range at {
				if at[i] != times[i] {
					t.Errorf("%s: it worked at %v, want %v (ms)", name, at, times)
				}
			}
			at, start = nil, time.Now()
		}
		want("nobody calls")
		work = 3
		c.call()
		c.call()
		// The second call waits: there may be something that came after the last look.
		want("three times", 20, 40, 60, 80)
		work = 1
		during = func() { during = func() {}; c.call() }
		c.call()
		want("a call during the work, which has just looked", 20, 40)
		want("nobody calls any more")
		cancel()
		<-ended
	})
}
