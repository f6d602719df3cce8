package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/test/memnet"
)

// quiet is how long after the last event views may differ.
const quiet = 5 * time.Second

// simulation is a network in a synctest bubble and the nodes on it. Time in it is
// fake: a Sleep lets the nodes go on and costs nothing.
type simulation struct {
	*testing.T
	net   memnet.Network
	nodes map[string]*node // running, by label; mostly the name
	log   *logBook
	names names
}

type node struct {
	*Gossip
	address   string
	transport *memnet.Transport
}

// simulate runs one scenario.
func simulate(t *testing.T, scenario func(w *simulation)) {
	synctest.Test(t, func(t *testing.T) {
		w := &simulation{T: t, nodes: map[string]*node{}, log: &logBook{}}
		w.names.addresses = map[string][]netip.Addr{}
		defer func() {
			for _, label := range slices.Collect(maps.Keys(w.nodes)) {
				w.crash(label)
			}
			// memberlist's goroutines end after their last probe or dial.
			time.Sleep(time.Minute)
		}()
		scenario(w)
	})
}

// simulateAs is simulate for a subtest.
func simulateAs(t *testing.T, name string, scenario func(w *simulation)) {
	t.Run(name, func(t *testing.T) { simulate(t, scenario) })
}

type fataler interface {
	Helper()
	Fatal(...any)
}

// must ends the test, which may be one of rapid's, at an error.
func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func address(i int) string { return fmt.Sprintf("10.0.0.%d:%d", i, DefaultPort) }

// config is a node at an address with nothing but defaults.
func (w *simulation) config(name string, join ...string) Config {
	return Config{
		Name:      name,
		Join:      join,
		Peer:      ":7462",
		Placement: 1,
		Version:   "test",
		Logger:    slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Resolver:  &w.names,
	}
}

// open starts a node without waiting for it.
func (w *simulation) open(label, at string, c Config) *node {
	w.Helper()
	transport, err := w.net.Listen(at)
	must(w, err)
	c.Transport = transport
	g, err := Open(w.Context(), c)
	must(w, err)
	n := &node{g, at, transport}
	w.nodes[label] = n
	return n
}

// serve starts a node and waits until it serves.
func (w *simulation) serve(label, at string, c Config) *node {
	w.Helper()
	n := w.open(label, at, c)
	w.toServing(n)
	return n
}

func (w *simulation) toServing(n *node) {
	w.Helper()
	if err := n.Ready(w.Context()); err != nil {
		w.Fatalf("%s: Ready: %v", n.config.Name, err)
	}
	if err := n.SetState(member.Serving); err != nil {
		w.Fatalf("%s: SetState: %v", n.config.Name, err)
	}
}

// encrypted is config with a keyring, if there are seeds.
func (w *simulation) encrypted(seeds []byte, name string, join ...string) Config {
	w.Helper()
	c := w.config(name, join...)
	if len(seeds) > 0 {
		c.Keyring = ringOf(w, seeds...)
	}
	return c
}

// cluster starts pod-1 to pod-n at address(1) to address(n), each with the first
// three as join targets, all at once, with keyrings if there are seeds.
func (w *simulation) cluster(n int, seeds ...byte) {
	w.Helper()
	w.grow(1, n, seeds...)
	w.agree(quiet)
}

func (w *simulation) grow(from, to int, seeds ...byte) {
	w.Helper()
	var started []*node
	for i := from; i <= to; i++ {
		label := fmt.Sprintf("pod-%d", i)
		started = append(started, w.open(label, address(i), w.encrypted(seeds, label, address(1), address(2), address(3))))
	}
	for _, n := range started {
		w.toServing(n)
	}
}

// crash ends a process without a word.
func (w *simulation) crash(label string) {
	w.Helper()
	n := w.nodes[label]
	delete(w.nodes, label)
	n.transport.Crash()
	if err := n.Close(); err != nil {
		w.Errorf("%s: Close: %v", label, err)
	}
}

// leave ends a process in order.
func (w *simulation) leave(label string) {
	w.Helper()
	n := w.nodes[label]
	delete(w.nodes, label)
	if err := n.Leave(w.Context()); err != nil {
		w.Errorf("%s: Leave: %v", label, err)
	}
	if err := n.Close(); err != nil {
		w.Errorf("%s: Close: %v", label, err)
	}
}

// agree waits until all running nodes show exactly each other, serving, and have
// equal ring tables. It returns how long that took.
func (w *simulation) agree(within time.Duration) time.Duration {
	w.Helper()
	return w.agreeAmong(within, slices.Sorted(maps.Keys(w.nodes))...)
}

func (w *simulation) agreeAmong(within time.Duration, labels ...string) time.Duration {
	w.Helper()
	var want []string
	for _, label := range labels {
		want = append(want, w.nodes[label].config.Name)
	}
	slices.Sort(want)
	took := w.eventually(within, func() error {
		for _, label := range labels {
			v := w.nodes[label].View()
			if !slices.Equal(serving(v), want) {
				return fmt.Errorf("%s shows %s, want %v serving", label, show(v), want)
			}
			for _, label := range labels {
				other := w.nodes[label].Self()
				if m, _ := v.Lookup(other.Name); m != other {
					return fmt.Errorf("%s shows %+v, want %+v", v.Self, m, other)
				}
			}
		}
		return nil
	})
	tables := map[uint64]bool{}
	for _, label := range labels {
		table, err := ring.Build(ring.Config{Points: 20}, serving(w.nodes[label].View()))
		must(w, err)
		tables[table.Hash()] = true
	}
	if len(tables) != 1 {
		w.Fatalf("equal views give %d ring tables", len(tables))
	}
	return took
}

// eventually waits until check passes, and returns how long that took.
func (w *simulation) eventually(within time.Duration, check func() error) time.Duration {
	w.Helper()
	start := time.Now()
	for {
		synctest.Wait()
		err := check()
		passed := time.Since(start)
		if err == nil {
			return passed
		}
		if passed > within {
			w.Fatalf("after %v: %v\n%s", within, err, w.log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func serving(v member.View) []string {
	var names []string
	for _, m := range v.Members {
		if m.State == member.Serving {
			names = append(names, m.Name)
		}
	}
	return names
}

func show(v member.View) string {
	var all []string
	for _, m := range v.Members {
		all = append(all, m.Name+" "+m.State.String())
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// names is a resolver whose answers a test changes as it goes.
type names struct {
	mu        sync.Mutex
	addresses map[string][]netip.Addr
	asked     int
}

func (n *names) set(host string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[host] = nil
	for _, a := range addresses {
		n.addresses[host] = append(n.addresses[host], netip.MustParseAddr(a))
	}
}

func (n *names) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	switch found, ok := n.addresses[host]; {
	case !ok:
		return nil, errors.New("no such host")
	case found == nil: // a name server that does not answer
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
		return nil, ctx.Err()
	default:
		return slices.Clone(found), nil
	}
}

// logBook keeps what was logged.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count returns how many lines contain all of the words.
func (l *logBook) count(words ...string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		all := true
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			n++
		}
	}
	return n
}

// sees returns who this node shows under a name.
func (n *node) sees(name string) (member.Member, bool) {
	v := n.View()
	return v.Lookup(name)
}
