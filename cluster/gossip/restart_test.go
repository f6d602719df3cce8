package gossip

import (
	"fmt"
	"testing"
	"time"
)

// A process that was killed and is back at once, at its address, is shown as soon as others exchange state with it: they do not
// wait until probes have found the process before it dead. It waits for no answer of that one either.
func TestRestartAtTheSameAddress(t *testing.T) {
	for name, keys := range map[string][]byte{"encrypted": {1}, "open": nil} {
		simulateAs(t, name, func(w *simulation) {
			w.cluster(3, keys...)
			time.Sleep(10 * time.Second)
			w.crash("pod-1")
			began := time.Now()
			n := w.open("pod-1", address(1), w.encrypted(keys, "pod-1", address(2)))
			w.eventually(500*time.Millisecond, func() error {
				for _, label := range []string{"pod-2", "pod-3"} {
					v := w.nodes[label].View()
					if m, _ := v.Lookup("pod-1"); m != n.Self() {
						return fmt.Errorf("%s shows %+v, want %+v", label, m, n.Self())
					}
				}
				return nil
			})
			w.toServing(n)
			if took := time.Since(began); took > 500*time.Millisecond {
				w.Errorf("it is ready after %v", took)
			}
			time.Sleep(time.Minute)
			w.agree(0)
			if n := w.log.count("member is gone"); n != 0 {
				w.Errorf("%d members are gone\n%s", n, w.log)
			}
		})
	}
}
