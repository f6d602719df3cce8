package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// TestSyncWithoutReplica: while no node confirms anything, however long, no check of a sync rule is answered by its owner. It
// is as soon as a replica is complete again.
func TestSyncWithoutReplica(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, "a", "b", "c")
		time.Sleep(3 * time.Second)
		a := f.nodes["a"]
		r := request(a.Node, "a", 1, hourly(1000))
		r.Sync = true
		wantAnswer(t, "before", decide(t.Context(), a.Node, r)[0], true, check.Held, "a")
		f.loses(func(_, _ string, e message.Envelope) bool {
			_, receipt := e.Body.(*message.Receipt)
			return receipt
		})
		for range 10 {
			if answer := decide(t.Context(), a.Node, r)[0]; answer.Source == check.Held && answer.Allowed {
				t.Errorf("answered by the owner, though no replica has the charge: %+v", answer)
			}
		}
		f.loses(nil)
		began := time.Now()
		for decide(t.Context(), a.Node, r)[0].Source != check.Held {
			if time.Since(began) > 5*time.Second {
				t.Fatal("not answered by the owner 5 s after nodes confirm again")
			}
		}
	})
}

// TestSyncInPlannedChange: nodes that join and leave in order, down to one and up again, neither deny a check of a sync rule
// that has room nor answer it without the owner.
func TestSyncInPlannedChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t)
		f.join("a", func(c *Config) { c.CheckTimeout = 100 * time.Millisecond })
		keys := requests(40, hourly(1_000_000))
		for i := range keys {
			keys[i].Sync = true
		}
		var l load
		l.ask(f.nodes["a"], keys)
		denied := make(chan check.Answer, 1)
		stop := make(chan struct{})
		l.all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(7 * time.Millisecond):
				}
				for _, answer := range decide(context.Background(), f.nodes["a"].Node, keys...) {
					if !answer.Allowed || answer.Err != nil {
						select {
						case denied <- answer:
						default:
						}
					}
				}
			}
		})
		f.join("b")
		time.Sleep(2 * time.Second)
		f.join("c")
		time.Sleep(2 * time.Second)
		for _, name := range []string{"c", "b"} {
			n := f.nodes[name]
			f.state(name, member.Leaving)
			f.within(20*time.Second, name+" has handed over", func(ctx context.Context) error { _, _, err := n.HandOver(ctx); return err })
			f.within(5*time.Second, name+" is no voter", n.LeaveSet)
			f.kill(name)
			f.hide(name)
		}
		time.Sleep(2 * time.Second)
		close(stop)
		l.end()
		select {
		case answer := <-denied:
			t.Errorf("denied: %+v", answer)
		default:
		}
		if n := l.apart.Load(); n > 0 {
			t.Errorf("%d checks were answered without an owner", n)
		}
	})
}
