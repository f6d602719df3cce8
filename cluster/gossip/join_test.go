package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

func TestAloneWithoutTargetsIsReadyAtOnce(t *testing.T) {
	simulate(t, func(w *simulation) {
		start := time.Now()
		n := w.serve("only", address(1), w.config("only"))
		if waited := time.Since(start); waited != 0 {
			w.Errorf("ready after %v", waited)
		}
		w.agree(0)
		if v := n.View(); v.Self != "only" || len(v.Members) != 1 || v.Members[0] != n.Self() {
			w.Errorf("View() = %+v", v)
		}
	})
}

// The first-start rule: targets that do not answer hold a node up for 5 s, and it
// says so. Its own address among them is no answer.
func TestTargetsThatDoNotAnswer(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.names.set("myself", "10.0.0.1")
		start := time.Now()
		w.serve("n", address(1), w.config("n", address(1), address(7), "myself", "nowhere"))
		if waited := time.Since(start); waited != 5*time.Second {
			w.Errorf("ready after %v, want 5 s", waited)
		}
		if n := w.log.count("no join target answered", "WARN", address(7), "refused", "nowhere", "no such host"); n != 1 {
			w.Errorf("it does not say so\n%s", w.log)
		}
		// It goes on trying: whoever appears is found.
		w.serve("late", address(7), w.config("late"))
		w.agree(quiet)
	})
}

// TestRejection: what is wrong with a join target that answers, by memberlist's texts; one that does not answer rejects nothing.
func TestRejection(t *testing.T) {
	for text, want := range map[string]string{
		"encryption is configured but remote state is not encrypted":             "give the gossip port in --join, 7463 by default, or its node the same",
		"no installed keys could decrypt the message":                            "secret or keyring differs: give all nodes the same --secret-file",
		"received invalid msgType (0), expected pushPullMsg (6)":                 "it is no gossip port: give the gossip port in --join, 7463 by default",
		"read tcp 10.0.0.1:40170->10.0.0.2:7463: read: connection reset by peer": "secret or keyring differs (give all nodes",
		"dial tcp 10.0.0.2:7463: connect: connection refused":                    "",
		"read tcp 10.0.0.1:40170->10.0.0.2:7461: i/o timeout":                    "",
		`resolve "nowhere": lookup nowhere: no such host`:                        "",
		"admit: its placement is 2, ours is 1: they would differ":                "its placement is 2",
	} {
		if got := rejection(errors.New(text)); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestReadyGivesUp(t *testing.T) {
	simulate(t, func(w *simulation) {
		n := w.open("n", address(1), w.config("n", address(7)))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if err := n.Ready(ctx); !errors.Is(err, context.Canceled) {
			w.Errorf("Ready: %v, want context.Canceled", err)
		}
		if err := n.SetState(member.Serving); err == nil || !strings.Contains(err.Error(), "Ready") {
			w.Errorf("SetState before Ready: %v", err)
		}
		w.crash("n")
		if err := n.Ready(w.Context()); !errors.Is(err, ErrClosed) {
			w.Errorf("Ready after Close: %v", err)
		}
	})
}

// One bad target stops no other: a name server that does not answer, a name that
// does not exist, an address behind a cut.
func TestBadTargetsStopNoOther(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.serve("a", address(1), w.config("a"))
		w.serve("dark", address(5), w.config("dark"))
		w.net.Isolate(address(5))
		w.names.set("silent")
		start := time.Now()
		w.serve("b", address(2), w.config("b", "silent", "nowhere", address(5), address(1)))
		if waited := time.Since(start); waited > 4*time.Second {
			w.Errorf("ready after %v", waited)
		}
		w.agreeAmong(quiet, "a", "b")
	})
}

// Names are resolved at every attempt: a pod whose address changed is found.
func TestNamesAreResolvedAgain(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.names.set("sluice", "10.0.0.7")
		w.serve("a", address(1), w.config("a"))
		w.serve("b", address(2), w.config("b", "sluice"))
		w.agreeAmong(0, "b")
		w.names.set("sluice", "10.0.0.7", "10.0.0.1")
		w.agree(quiet)
	})
}

// Two that started apart because the name did not list them yet come together
// when it does, even with nobody lost and nobody missing before.
func TestNamesAreResolvedAgainInAWholeCluster(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.names.set("sluice", "10.0.0.1")
		for i, label := range []string{"a", "b"} {
			w.serve(label, address(i+1), w.config(label, "sluice"))
		}
		w.agree(quiet)
		w.serve("c", address(3), w.config("c"))
		w.names.set("sluice", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		w.agree(2 * complete * time.Second)
	})
}

// A target that is another name for this node, or for one already known, is not
// called over and over.
func TestAliasesAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joined := 0
		j := &joiner{
			registry: newRegistry("self/1", time.Hour),
			attempts: map[string]*attempt{},
			log:      slog.New(slog.DiscardHandler),
			join:     func([]string) (int, error) { joined++; return 1, nil },
		}
		j.mu.failures = map[string]string{}
		for range 20 {
			j.round(map[string]string{"10.9.9.9:7463": "balancer"})
			time.Sleep(time.Second)
		}
		// Each attempt that leaves the address unknown is two exchanges.
		if tries := joined / 2; tries < aliasAnswers || tries > aliasAnswers+2 {
			t.Errorf("a target that answers and is nobody was tried %d times in 20 s", tries)
		}
	})
}

// A lost member is looked for at once, not when the next round of a whole cluster
// is due.
func TestLostMemberIsTriedAtOnce(t *testing.T) {
	for range 5 {
		simulate(t, func(w *simulation) {
			w.cluster(3)
			time.Sleep(20 * time.Second)
			w.crash("pod-3")
			w.agree(quiet)
			w.eventually(200*time.Millisecond, func() error {
				if s := w.nodes["pod-1"].Stats(); s.JoinsFailed == 0 {
					return fmt.Errorf("not tried yet: %+v", s)
				}
				return nil
			})
		})
	}
}

// Of many lost members the ones longest not tried come first, a few at a time;
// this node and those in the view are not tried.
func TestDue(t *testing.T) {
	r := newRegistry("self/1", time.Hour)
	alive := memberAt("alive", 1, member.Serving)
	r.put(alive)
	for i := range 3 * maxAtOnce {
		m := memberAt(fmt.Sprintf("lost%d", i), 1, member.Serving)
		r.put(m)
		r.remove(fullName(m.Name, m.Boot))
	}
	j := &joiner{registry: r, self: "self:1"}
	tried := map[string]int{}
	start := time.Now()
	for round := range 6 {
		due, missing := j.due(map[string]string{"self:1": "myself", alive.Gossip: "alive"})
		if len(due) != maxAtOnce || !missing {
			t.Fatalf("round %d: %d due, missing %v", round, len(due), missing)
		}
		for _, a := range due {
			tried[a.address]++
			a.last = start.Add(time.Duration(round) * time.Second)
		}
	}
	if len(tried) != 3*maxAtOnce || tried["self:1"] != 0 || tried[alive.Gossip] != 0 {
		t.Errorf("%d addresses were tried: %v", len(tried), tried)
	}
	for address, n := range tried {
		if n != 2 {
			t.Errorf("%s was tried %d times in 6 rounds, want 2", address, n)
		}
	}
}

// A join target that leads back to this node under another address, such as a
// service in front of it, is no answer; one that leads to another node is.
func TestTargetBehindABalancer(t *testing.T) {
	simulate(t, func(w *simulation) {
		const balancer = "10.96.0.1:7463"
		w.net.Alias(balancer, address(1))
		start := time.Now()
		w.serve("a", address(1), w.config("a", balancer))
		if waited := time.Since(start); waited != 5*time.Second {
			w.Errorf("a took its own answer for another's: ready after %v", waited)
		}
		start = time.Now()
		w.serve("b", address(2), w.config("b", balancer))
		if waited := time.Since(start); waited > time.Second {
			w.Errorf("b was ready after %v", waited)
		}
		w.agree(quiet)
		time.Sleep(time.Minute)
		if s := w.nodes["b"].Stats(); s.Joins > 20 || s.JoinsFailed != 0 {
			w.Errorf("in a minute b called the balancer %d times", s.Joins)
		}
	})
}

// Everything is found within a few seconds although 100 members are gone for good.
func TestManyLostMembersDoNotDelayHealing(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		r := w.nodes["pod-1"].registry
		for i := range 100 {
			m := memberAt("gone", int64(i), member.Serving)
			m.Name = strings.Repeat("x", 1+i)
			m.Gossip = address(100 + i)
			r.put(m)
			r.remove(fullName(m.Name, m.Boot))
		}
		w.net.Isolate(address(3))
		time.Sleep(time.Minute)
		w.net.Cut(nil)
		w.agree(quiet)
	})
}

func TestStates(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		n := w.nodes["pod-2"]
		if err := n.SetState(member.Joining); err == nil || !strings.Contains(err.Error(), "forward") {
			w.Errorf("back to joining: %v", err)
		}
		if err := n.SetState(member.Leaving + 1); err == nil {
			w.Error("an unknown state is accepted")
		}
		if err := n.SetState(member.Serving); err != nil {
			w.Errorf("serving again: %v", err)
		}
		must(w, n.SetState(member.Leaving))
		w.eventually(time.Second, func() error {
			if m, _ := w.nodes["pod-1"].sees("pod-2"); m.State != member.Leaving {
				return errors.New("pod-1 shows " + m.State.String())
			}
			return nil
		})
		w.agreeAmong(quiet, "pod-1", "pod-3")
		w.leave("pod-2")
		w.eventually(time.Second, func() error {
			if _, ok := w.nodes["pod-1"].sees("pod-2"); ok {
				return errors.New("pod-1 still shows pod-2")
			}
			return nil
		})
		if err := n.SetState(member.Leaving); !errors.Is(err, ErrClosed) {
			w.Errorf("leaving after Close: %v, want ErrClosed", err)
		}
		if err := n.Leave(w.Context()); err != nil {
			w.Errorf("Leave again: %v", err)
		}
		if err := n.Close(); err != nil {
			w.Errorf("Close again: %v", err)
		}
	})
}

func TestChangesAreSignalled(t *testing.T) {
	simulate(t, func(w *simulation) {
		a := w.serve("a", address(1), w.config("a"))
		<-a.Changes()
		before := a.View()
		w.serve("b", address(2), w.config("b", address(1)))
		<-a.Changes()
		w.agree(quiet)
		after := a.View()
		if after.Seq <= before.Seq || len(before.Members) != 1 {
			w.Errorf("before %+v, after %+v", before, after)
		}
	})
}
