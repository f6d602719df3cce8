package gossip

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

// A process that is killed and returns under its name, with the same address or another. A clock that was set back meanwhile
// does not keep it from that: the dead one that sorts higher does not answer. TestRestartAtTheSameAddress has one that returns at once.
func TestKilledNodeReturns(t *testing.T) {
	for _, c := range []struct {
		name, address string
		down          time.Duration
		back          time.Duration // its clock
	}{
		{"at once, other address", address(33), 0, 0},
		{"after a second, other address", address(33), time.Second, 0},
		{"after it was noticed, same address", address(3), 10 * time.Second, 0},
		{"after it was noticed, other address", address(33), 10 * time.Second, 0},
		{"at once, clock set back", address(33), 0, time.Hour},
	} {
		simulateAs(t, c.name, func(w *simulation) {
			w.cluster(3)
			old := w.nodes["pod-3"].Self()
			w.crash("pod-3")
			time.Sleep(c.down)
			config := w.config("pod-3", address(1), address(2), address(3))
			if c.back > 0 {
				config.Boot = NewBoot(time.Now().Add(-c.back), 7)
			}
			again := w.serve("pod-3", c.address, config)
			w.agree(quiet)
			if again.Self().Boot > old.Boot != (c.back == 0) {
				w.Errorf("boot %s, then %s", old.Boot, again.Self().Boot)
			}
			time.Sleep(time.Minute)
			w.agree(0) // and it stays so when the old process is noticed
			if lost := w.nodes["pod-1"].Stats().Lost; lost != 0 {
				w.Errorf("pod-1 looks for %d members", lost)
			}
		})
	}
}

func TestDuplicateNameIsRejected(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		second := w.open("second pod-2", address(9), w.config("pod-2", address(1)))
		err := second.Ready(w.Context())
		if !errors.Is(err, ErrDuplicateName) {
			w.Fatalf("Ready: %v, want ErrDuplicateName", err)
		}
		for _, want := range []string{"Name", `"pod-2"`, address(2)} {
			if !strings.Contains(err.Error(), want) {
				w.Errorf("error %q does not say %s", err, want)
			}
		}
		if err := second.SetState(member.Serving); !errors.Is(err, ErrDuplicateName) {
			w.Errorf("SetState(Serving): %v, want ErrDuplicateName", err)
		}
		select {
		case <-second.Done():
		default:
			w.Error("Done is open")
		}
		w.leave("second pod-2")
		w.agree(quiet)
		if m, _ := w.nodes["pod-1"].sees("pod-2"); m.Gossip != address(2) {
			w.Errorf("pod-1 shows pod-2 at %s", m.Gossip)
		}
		if err := w.nodes["pod-2"].Err(); err != nil {
			w.Errorf("the older one stops, too: %v", err)
		}
	})
}

// A process of the name starts while the first is leaving, or is told to leave a little later: others show the first until it is gone,
// then the second joins.
func TestNewcomerWaitsForLeaving(t *testing.T) {
	for _, c := range []struct {
		name   string
		keys   []byte
		told   time.Duration // after the second has started that the first leaves
		dies   bool          // while it hands off
		within time.Duration // the second is ready
	}{
		{"before", nil, 0, false, time.Second},
		{"just after", nil, 50 * time.Millisecond, false, time.Second},
		{"seconds after", nil, 4 * time.Second, false, time.Second},
		{"with a keyring", []byte{1}, 0, false, time.Second},
		{"it dies", nil, 0, true, 3 * time.Second},
	} {
		simulateAs(t, c.name, func(w *simulation) {
			w.cluster(3, c.keys...)
			first := w.nodes["pod-2"]
			leaves := func() {
				must(w, first.SetState(member.Leaving))
			}
			if c.told == 0 {
				leaves()
			}
			second := w.open("second pod-2", address(9), w.encrypted(c.keys, "pod-2", address(1)))
			if c.told > 0 {
				time.Sleep(c.told)
				leaves()
			}
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				for _, label := range []string{"pod-1", "pod-3"} {
					if m, _ := w.nodes[label].sees("pod-2"); m.Gossip != address(2) {
						w.Fatalf("%s shows pod-2 at %s", label, m.Gossip)
					}
				}
				select {
				case <-second.ready:
					w.Fatal("the second is ready while the first is leaving")
				case <-second.Done():
					w.Fatalf("the second stops: %v", second.Err())
				default:
				}
			}
			if waits := second.WaitsFor(); !strings.Contains(waits, address(2)) || !strings.Contains(waits, "it is leaving") {
				w.Errorf("the second waits for %q", waits)
			}
			if n := w.log.count("not joining yet", "it is leaving"); n < 2 || n > 3 { // in ten seconds
				w.Errorf("the log says so %d times\n%s", n, w.log)
			}
			if c.dies {
				w.crash("pod-2")
			} else {
				w.leave("pod-2")
			}
			began := time.Now()
			w.toServing(second)
			if took := time.Since(began); took > c.within {
				w.Errorf("ready after %v", took)
			}
			if waits := second.WaitsFor(); waits != "" {
				w.Errorf("it still waits for %q", waits)
			}
			w.agree(quiet)
		})
	}
}

// A process that has left is not pinged again, even if the first ping was sent before this node heard of it.
func TestLeftIsNotPingedAgain(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		gone := w.nodes["pod-2"].Self()
		w.leave("pod-2")
		w.agree(quiet)
		began := time.Now()
		if w.nodes["pod-1"].answers(w.Context(), gone) {
			w.Error("it answers")
		}
		if took := time.Since(began); took > pingPause {
			w.Errorf("it took %v", took)
		}
	})
}

// With a keyring, a process of the name that was heard of may have yet to prove that it lives when this one looks: it is waited for, and
// is no reason to stop.
func TestUnprovenOfOurName(t *testing.T) {
	for _, state := range []member.State{member.Serving, member.Leaving} {
		simulate(t, func(w *simulation) {
			w.cluster(3, 1)
			first := w.nodes["pod-2"]
			must(w, first.SetState(state))
			second := w.open("second pod-2", address(9), w.encrypted([]byte{1}, "pod-2"))
			second.registry.mu.Lock() // without waking runChallenges
			second.registry.addUnprovenLocked(fullName("pod-2", first.Self().Boot), first.Self())
			second.registry.mu.Unlock()
			if waits, unanswered := second.checkName(w.Context(), true); !strings.Contains(waits, address(2)) || unanswered || second.Err() != nil {
				w.Errorf("%s: waits for %q, unanswered %v, %v", state, waits, unanswered, second.Err())
			}
			w.crash("pod-2")
			if waits, unanswered := second.checkName(w.Context(), true); waits != "" || !unanswered {
				w.Errorf("%s and dead: waits for %q, unanswered %v", state, waits, unanswered)
			}
		})
	}
}

// A process that waits for another of its name is stopped: others hear nothing of it.
func TestWaitingNewcomerStops(t *testing.T) {
	for _, state := range []member.State{member.Serving, member.Leaving} {
		simulate(t, func(w *simulation) {
			w.cluster(3)
			must(w, w.nodes["pod-2"].SetState(state))
			second := w.open("second pod-2", address(9), w.config("pod-2", address(1)))
			w.eventually(2*time.Second, func() error {
				if m, _ := w.nodes["pod-1"].sees("pod-2"); m.State != state || second.WaitsFor() == "" {
					return errors.New("the second does not wait, or pod-1 has not heard of the first")
				}
				return nil
			})
			must(w, second.SetState(member.Leaving))
			for i := range 40 {
				time.Sleep(100 * time.Millisecond)
				if i == 10 {
					w.leave("second pod-2")
				}
				if m, _ := w.nodes["pod-1"].sees("pod-2"); m.Gossip != address(2) || m.State != state {
					w.Fatalf("pod-1 shows %+v", m)
				}
			}
		})
	}
}

// While the newcomer is starting, others go on sending work to the older one.
func TestJoiningDuplicateDoesNotReplace(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		w.open("second pod-2", address(9), w.config("pod-2", address(1)))
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			for _, label := range []string{"pod-1", "pod-2", "pod-3"} {
				if m, _ := w.nodes[label].sees("pod-2"); m.Gossip != address(2) {
					w.Fatalf("%s shows pod-2 at %s", label, m.Gossip)
				}
			}
		}
	})
}

// Of two that start at once, one serves and one is told to stop.
func TestTwinsStartAtOnce(t *testing.T) {
	for range 20 {
		simulate(t, func(w *simulation) {
			w.cluster(3)
			first, second := w.config("twin", address(1)), w.config("twin", address(2))
			now := time.Now()
			first.Boot, second.Boot = NewBoot(now, 1), NewBoot(now, 2)
			a, b := w.open("a", address(8), first), w.open("b", address(9), second)
			for _, n := range []*node{a, b} {
				if n.Ready(w.Context()) == nil {
					_ = n.SetState(member.Serving)
				}
			}
			w.eventually(quiet, func() error {
				if (a.Err() == nil) == (b.Err() == nil) {
					return errors.Join(errors.New("both or neither stop"), a.Err(), b.Err())
				}
				return nil
			})
			loser := "a"
			if b.Err() != nil {
				loser = "b"
			}
			w.leave(loser)
			w.agree(quiet)
		})
	}
}

// A process that was stopped or cut off and finds its name served by a newer one.
func TestReplacedNodeStops(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		old := w.nodes["pod-3"]
		w.net.Isolate(address(3))
		time.Sleep(20 * time.Second)
		w.nodes["old pod-3"] = old
		delete(w.nodes, "pod-3")
		w.serve("pod-3", address(33), w.config("pod-3", address(1)))
		w.agreeAmong(quiet, "pod-1", "pod-2", "pod-3")
		w.net.Cut(nil)
		select {
		case <-old.Done():
		case <-time.After(quiet + 2*time.Second):
			w.Fatalf("the old one goes on\n%s", w.log)
		}
		if err := old.Err(); !errors.Is(err, ErrReplaced) || !strings.Contains(err.Error(), address(33)) {
			w.Errorf("Err() = %v, want ErrReplaced with the other's address", err)
		}
		w.leave("old pod-3")
		w.agree(quiet)
		if err := w.nodes["pod-3"].Err(); err != nil {
			w.Errorf("the new one stops, too: %v", err)
		}
	})
}

func TestYields(t *testing.T) {
	const older, newer = 1, 2
	for _, c := range []struct {
		self      int64
		selfState member.State
		other     member.State
		want      error
	}{
		{newer, member.Joining, member.Joining, ErrDuplicateName},
		{newer, member.Joining, member.Serving, ErrDuplicateName},
		{newer, member.Joining, member.Leaving, errLeavesFirst},
		{newer, member.Serving, member.Joining, nil},
		{newer, member.Serving, member.Serving, nil},
		{newer, member.Serving, member.Leaving, nil},
		{newer, member.Leaving, member.Serving, nil},
		{older, member.Joining, member.Joining, nil},
		{older, member.Joining, member.Serving, ErrDuplicateName},
		{older, member.Joining, member.Leaving, errLeavesFirst},
		{older, member.Serving, member.Joining, nil},
		{older, member.Serving, member.Serving, ErrReplaced},
		{older, member.Serving, member.Leaving, nil},
		{older, member.Leaving, member.Serving, nil},
	} {
		self := memberAt("n", c.self, c.selfState)
		other := memberAt("n", older+newer-c.self, c.other)
		if got := yields(self, other); got != c.want {
			t.Errorf("boot %d, %s against %s: %v, want %v", c.self, c.selfState, c.other, got, c.want)
		}
		if yields(self, other) != nil && yields(other, self) != nil {
			t.Errorf("boot %d, %s against %s: both give way", c.self, c.selfState, c.other)
		}
	}
}

// memberAt is a member whose gossip address is name:boot.
func memberAt(name string, boot int64, s member.State) member.Member {
	return member.Member{
		Name: name, Boot: NewBoot(time.Unix(0, boot), 0), State: s, Gossip: name + ":" + string(rune('0'+boot)),
	}
}
