package gossip

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/memnet"
)

// Keys are exchanged in three steps, node by node, and nobody loses sight of anybody meanwhile.
func TestKeysAreExchangedWithoutAGap(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(5, 1)
		for _, step := range [][]byte{{1, 2}, {2, 1}, {2}} {
			for _, label := range slices.Sorted(maps.Keys(w.nodes)) {
				must(w, w.nodes[label].SetKeyring(ringOf(w, step...)))
				time.Sleep(7 * time.Second) // longer than it takes to lose somebody
			}
		}
		w.agree(0)
		if n := w.log.count("member is gone") + w.log.count("WARN"); n != 0 {
			w.Errorf("%d lines about losses:\n%s", n, w.log)
		}
		for label, n := range w.nodes {
			if s := n.Stats(); s.Keys != 1 || s.Primary != ringOf(w, 2).Primary() || s.Malformed != 0 {
				w.Errorf("%s: %+v", label, s)
			}
		}
		// Who comes with the old key is an outsider by now, and one with the new key is not.
		w.open("old", address(8), w.encrypted([]byte{1}, "old", address(1)))
		w.serve("pod-6", address(6), w.encrypted([]byte{2}, "pod-6", address(1)))
		time.Sleep(quiet)
		w.agreeAmong(0, "pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6")
	})
}

// Without a key, with another, and with none on this side: nobody is shown to anybody.
func TestOutsidersToAKeyring(t *testing.T) {
	for name, keys := range map[string][]byte{"no key": nil, "another key": {9}, "another primary": {9, 8}} {
		simulateAs(t, name, func(w *simulation) {
			w.cluster(3, 1)
			w.serve("outsider", address(9), w.encrypted(keys, "outsider", address(1), address(2)))
			time.Sleep(20 * time.Second)
			w.agreeAmong(0, "pod-1", "pod-2", "pod-3")
			w.agreeAmong(0, "outsider")
			if w.nodes["pod-1"].Stats().Malformed == 0 {
				w.Error("pod-1 has counted nothing")
			}
			if n := w.log.count("secret or keyring differs", "node=pod-1", "WARN"); n != 1 {
				w.Errorf("pod-1 says %d times that the secret or keyring differs\n%s", n, w.log)
			}
		})
	}
}

// wire records what is sent and plays it again.
type wire struct {
	mu   sync.Mutex
	sent []memnet.Sent
}

func (r *wire) see(s memnet.Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, s)
}

// replay sends every recorded message once to each of the addresses, each changed first if
// change is given.
func (r *wire) replay(w *simulation, from string, change func([]byte), to ...string) {
	w.Helper()
	out, err := w.net.Listen(from)
	must(w, err)
	defer out.Crash()
	r.mu.Lock()
	sent := slices.Clone(r.sent)
	r.mu.Unlock()
	for i, s := range sent {
		b := slices.Clone(s.Bytes)
		if change != nil {
			change(b)
		}
		for _, address := range to {
			if !s.Stream {
				_, _ = out.WriteTo(b, address)
				continue
			}
			conn, err := out.DialTimeout(address, time.Second)
			must(w, err)
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write(b)
			_ = conn.Close()
		}
		if i%100 == 99 {
			time.Sleep(time.Millisecond) // queues are bounded
		}
	}
}

// Somebody has recorded all that was ever sent, and sends it again when a node that
// spoke in it has left, or died, and was forgotten: it comes into nobody's view, also not of
// a node that has never known it. Without the proof it does.
func TestReplayedGossip(t *testing.T) {
	for name, c := range map[string]struct{ leaves, proof bool }{
		"of one that left": {true, true}, "of one that died": {false, true}, "without the proof": {true, false},
	} {
		simulateAs(t, name, func(w *simulation) {
			var tape wire
			w.net.Tap(tape.see)
			w.cluster(4, 1)
			time.Sleep(10 * time.Second)
			w.net.Tap(nil) // its leaving is not told again
			if c.leaves {
				w.leave("pod-4")
			} else {
				w.crash("pod-4")
			}
			time.Sleep(time.Minute)
			w.serve("pod-5", address(5), w.encrypted([]byte{1}, "pod-5", address(1)))
			w.agree(quiet)
			for _, n := range w.nodes {
				n.registry.mu.Lock()
				n.registry.proof = c.proof
				n.registry.mu.Unlock()
			}
			shown, unproven := false, 0
			for range 3 {
				tape.replay(w, "10.0.0.66:7463", nil, address(1), address(2), address(3), address(5))
				for range 400 {
					time.Sleep(50 * time.Millisecond)
					for _, n := range w.nodes {
						_, sees := n.sees("pod-4")
						shown = shown || sees
						unproven = max(unproven, n.Stats().Unproven)
					}
				}
			}
			if shown == c.proof {
				w.Errorf("pod-4 was shown: %v\n%s", shown, w.log)
			}
			if c.proof && unproven == 0 {
				w.Error("nobody heard of pod-4: the replay has not worked")
			}
			time.Sleep(time.Minute)
			w.agree(0)
		})
	}
}

// What was recorded and changed is dropped and counted.
func TestForgedGossip(t *testing.T) {
	simulate(t, func(w *simulation) {
		var tape wire
		w.net.Tap(tape.see)
		w.cluster(3, 1)
		time.Sleep(5 * time.Second)
		w.net.Tap(nil)
		seq := w.nodes["pod-1"].View().Seq
		random := rand.New(rand.NewPCG(1, 2))
		tape.replay(w, "10.0.0.66:7463", func(b []byte) { b[random.IntN(len(b))] ^= 1 << random.IntN(8) }, address(1))
		time.Sleep(quiet)
		w.agree(0)
		if n := w.nodes["pod-1"].View().Seq; n != seq {
			w.Errorf("%d views were built", n-seq)
		}
		if n, all := w.nodes["pod-1"].Stats().Malformed, len(tape.sent); n < uint64(all)*9/10 {
			w.Errorf("%d of %d forged messages are counted", n, all)
		}
	})
}

// Two that cannot reach each other, while a third sees both, show each other all the same.
func TestProofAcrossAHalfCut(t *testing.T) {
	simulate(t, func(w *simulation) {
		one, two := netip.MustParseAddrPort(address(1)), netip.MustParseAddrPort(address(2))
		w.net.Cut(func(from, to netip.AddrPort) bool { return from == one && to == two || from == two && to == one })
		for i := 1; i <= 3; i++ {
			label := fmt.Sprintf("pod-%d", i)
			w.serve(label, address(i), w.encrypted([]byte{1}, label, address(3)))
		}
		w.agree(trustAfter(4) + quiet)
	})
}
