package regions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/transport/peer"
)

// network has nodes by address, in memory. Names have the addresses of names.
type network struct {
	t      *testing.T
	joined atomic.Bool // whether links know the nodes of their cluster
	mu     struct {
		sync.Mutex
		listeners map[string]*bufconn.Listener
		names     map[string][]netip.Addr
	}
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t}
	n.joined.Store(true)
	n.mu.listeners, n.mu.names = map[string]*bufconn.Listener{}, map[string][]netip.Addr{}
	return n
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.mu.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

// LookupNetIP implements gossip.Resolver.
func (n *network) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.names[host]) == 0 {
		return nil, errors.New("no such host")
	}
	return slices.Clone(n.mu.names[host]), nil
}

// name gives a name these addresses.
func (n *network) name(host string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.names[host] = nil
	for _, a := range addrs {
		n.mu.names[host] = append(n.mu.names[host], netip.MustParseAddr(a))
	}
}

func (n *network) config(region, name, secret string) peer.Config {
	return peer.Config{
		Name: name, Boot: name + "-1", Region: region, HasRegion: func(r string) bool { return r == "eu" || r == "us" }, Placement: 7,
		ProofKeys: func() [][]byte { return [][]byte{[]byte(secret)} }, CountersTag: []byte("counters"), Dial: n.dial,
	}
}

// remote is a node that answers requests about regions.
type remote struct {
	addr, region, name, secret, cluster string
	ahead                               time.Duration
	boot                                string
	rules                               *Rules
	took                                func(*message.RegionMessages)
}

// serve runs a node until the test ends or it is stopped.
func (n *network) serve(r remote) (stop func()) {
	c := n.config(r.region, r.name, r.secret)
	if r.boot != "" {
		c.Boot = r.boot
	}
	c.Answer = func(_ context.Context, q message.Body) message.Body {
		a := &message.RegionResponse{ClusterID: r.cluster, Clock: time.Now().Add(r.ahead).UnixNano()}
		if m, ok := q.(*message.RegionMessages); ok {
			r.took(m)
			return a
		}
		r.rules.Answer(q.(*message.RegionRequest), a)
		return a
	}
	s, err := peer.NewServer(c, nothing{})
	if err != nil {
		n.t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	n.mu.Lock()
	n.mu.listeners[r.addr] = l
	n.mu.Unlock()
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	stop = sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.mu.listeners, r.addr)
		n.mu.Unlock()
		s.Close()
		serving.Wait()
	})
	n.t.Cleanup(stop)
	return stop
}

// rulesOf returns rules, each a name, a home and a checksum.
func rulesOf(list ...string) *Rules {
	var all []message.GlobalRule
	for _, text := range list {
		var g message.GlobalRule
		if _, err := fmt.Sscan(text, &g.Name, &g.Home, &g.Sum); err != nil {
			panic(err)
		}
		all = append(all, g)
	}
	return NewRules(&List{}, all)
}

type nothing struct{}

func (nothing) Serve(string, []check.Record, []check.Reply) {}

// links runs the links of node e1 of region eu, and returns their log.
func (n *network) links(items ...string) (*Links, func() string) {
	pool, err := peer.Open(n.config("eu", "e1", "secret"))
	if err != nil {
		n.t.Fatal(err)
	}
	list, err := Parse("eu", items, 7462)
	if err != nil {
		n.t.Fatal(err)
	}
	var mu sync.Mutex
	var log bytes.Buffer
	l := New(Config{
		List: list, Pool: pool, Clock: func() int64 { return time.Now().UnixNano() }, MaxClockSkew: 500 * time.Millisecond,
		Member: func(boot string) (is, known bool) {
			return n.joined.Load() && (boot == "e1-1" || boot == "e2-1"), n.joined.Load()
		},
		Rules:    func() *Rules { return rulesOf("shop/a us 1", "shop/b eu 2") },
		Resolver: n, Log: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		time.Sleep(time.Nanosecond) // until the test waits, which looks at the state before
		_ = l.Run(ctx)
	})
	n.t.Cleanup(func() {
		cancel()
		pool.Close()
		running.Wait()
	})
	return l, func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// settle waits for some attempts.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestLinks: a region is found by its names, which are looked up again; a node that ends is replaced by another, and a region
// that was not reached is reached again. Each change is logged once.
func TestLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		l, log := n.links("eu=e.test", "us=us.test")
		if s := l.Status()[0]; s.State != facts.RegionUnknown || s.Problem() != "" {
			t.Errorf("not asked yet: %+v", s)
		}
		settle(time.Minute)
		if s := l.Status()[0]; s.State != facts.RegionUnreached || s.InState < 50*time.Second || !strings.Contains(s.Reason, "no such host") || l.Addr("us", 0) != "" || l.RTT("us") != 0 {
			t.Errorf("without an address: %+v", s)
		}
		if text := log(); strings.Count(text, "region not reached") != 1 {
			t.Errorf("log: %s", text)
		}
		if l.Self() != "eu" || !l.Has("eu") || !l.Has("us") || l.Has("ap") || l.Addr("ap", 1) != "" {
			t.Error("wrong regions")
		}

		stop := n.serve(remote{addr: "10.0.0.1:7462", region: "us", name: "u1", secret: "secret", cluster: "c"})
		n.serve(remote{addr: "10.0.0.2:7462", region: "us", name: "u2", secret: "secret", cluster: "c"})
		n.name("us.test", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		settle(2*idlePause + 10*time.Second) // it meets 10.0.0.3, where no node is, too
		if s := l.Status()[0]; s.State != facts.RegionLinked || strings.Join(s.Nodes, " ") != "u1 u2" || s.InState > 2*idlePause+10*time.Second || s.Problem() != "" || s.In == 0 || s.Out == 0 {
			t.Errorf("with two nodes: %+v", s)
		}
		first, second := l.Addr("us", 0), l.Addr("us", 1)
		if first != "us@10.0.0.1:7462" || second != "us@10.0.0.2:7462" || l.Addr("us", -2) == "" {
			t.Errorf("addresses %s and %s", first, second)
		}

		stop()
		settle(time.Second)
		if s := l.Status()[0]; s.State != facts.RegionLinked || strings.Join(s.Nodes, " ") != "u2" || l.Addr("us", 0) != second || l.Addr("us", 1) != second {
			t.Errorf("with one node: %+v", s)
		}
		stop = n.serve(remote{addr: "10.0.0.1:7462", region: "us", name: "u1", secret: "secret", cluster: "c"})
		settle(4*retryPause + 10*time.Second)
		if s := l.Status()[0]; strings.Join(s.Nodes, " ") != "u1 u2" {
			t.Errorf("with the node again: %+v", s)
		}
		stop()
		if text := log(); strings.Count(text, "region reached") != 1 {
			t.Errorf("log: %s", text)
		}
	})
}

// TestMistakes: what is wrong with a region is a reason in the status and one line in the log, however long it lasts.
func TestMistakes(t *testing.T) {
	us := remote{addr: "10.0.0.1:7462", region: "us", name: "u1", secret: "secret", cluster: "c"}
	with := func(change func(*remote)) remote {
		r := us
		change(&r)
		return r
	}
	ruled := func(list ...string) remote { return with(func(r *remote) { r.rules = rulesOf(list...) }) }
	for _, w := range []struct {
		name  string
		nodes []remote
		state facts.RegionState
		want  string
	}{
		{"another secret", []remote{with(func(r *remote) { r.secret = "other" })}, facts.RegionUnreached, "secret not accepted"},
		{"another region", []remote{with(func(r *remote) { r.region = "ap" })}, facts.RegionUnreached, `node "u1" there says that it is of region "ap"; correct --regions here`},
		{"no region", []remote{with(func(r *remote) { r.region = "" })}, facts.RegionUnreached, `node "u1" there has no region; give it --region=us`},
		{"own node", []remote{with(func(r *remote) { r.region, r.name = "eu", "e2" })}, facts.RegionUnreached, `it is the address of node "e2" of this region, "eu"`},
		{"this process", []remote{with(func(r *remote) { r.region, r.name = "eu", "e1" })}, facts.RegionUnreached, `it is the address of node "e1" of this region, "eu"`},
		{"own name", []remote{with(func(r *remote) { r.region = "eu" })}, facts.RegionUnreached, `two clusters say that they are region "eu": this one, and that of node "u1"`},
		{"two clusters of a name", []remote{us, {addr: "10.0.0.2:7462", region: "us", name: "u2", secret: "secret", cluster: "d"}}, facts.RegionUnusable,
			`two clusters say that they are region "us": node u1 at 10.0.0.1:7462, and node u2 at 10.0.0.2:7462`},
		{"two nodes of a cluster, one without a set", []remote{us, {addr: "10.0.0.2:7462", region: "us", name: "u2", secret: "secret"}}, facts.RegionLinked, ""},
		{"one node of another region", []remote{us, {addr: "10.0.0.2:7462", region: "ap", name: "a1", secret: "secret"}}, facts.RegionLinked, `10.0.0.2:7462: node "a1" there says`},
		{"clocks", []remote{with(func(r *remote) { r.ahead = -3 * time.Second })}, facts.RegionLinked, "the clock of node u1 is -3.0s off this node's, more than --max-clock-skew 500ms"},
		{"the same rules", []remote{ruled("shop/b eu 2", "shop/a us 1")}, facts.RegionLinked, ""},
		{"another home", []remote{ruled("shop/a us 1", "shop/b us 2")}, facts.RegionLinked, `node u1: rule "shop/b" has home eu in region eu, and us in region us`},
		{"other limits", []remote{ruled("shop/a us 3", "shop/b eu 2")}, facts.RegionLinked, `rule "shop/a" has other limits in region us`},
		{"a rule more", []remote{ruled("shop/a us 1", "shop/b eu 2", "shop/c eu 3")}, facts.RegionLinked, `rule "shop/c" is not global in region eu`},
		{"a rule less", []remote{ruled("shop/a us 1")}, facts.RegionLinked, `rule "shop/b" is not global in region us`},
		{"weights", []remote{with(func(r *remote) {
			r.rules = NewRules(&List{weights: map[string]int{"eu": 2}}, []message.GlobalRule{{Name: "shop/a", Home: "us", Sum: 1}, {Name: "shop/b", Home: "eu", Sum: 2}})
		})}, facts.RegionLinked, "--region-weights differ"},
	} {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				for _, r := range w.nodes {
					n.serve(r)
				}
				n.name("us.test", "10.0.0.1", "10.0.0.2")
				n.joined.Store(false)
				l, log := n.links("us=us.test")
				settle(20 * time.Second)
				n.joined.Store(true)
				settle(5 * time.Minute)
				s := l.Status()[0]
				if s.State != w.state || !strings.Contains(s.Reason, w.want) || w.want == "" && s.Reason != "" {
					t.Errorf("%+v; want %s, %q", s, w.state, w.want)
				}
				if (l.Addr("us", 0) != "") != (w.state == facts.RegionLinked) {
					t.Errorf("address %q", l.Addr("us", 0))
				}
				errors := strings.Count(log(), "level=ERROR")
				if want := min(1, len(w.want)); errors != want {
					t.Errorf("%d errors in the log; want %d:\n%s", errors, want, log())
				}
			})
		})
	}
}

// TestSet: another list is in force at once; a link whose addresses are the same stays, and one that is gone ends.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(remote{addr: "10.0.0.1:7462", region: "us", name: "u1", secret: "secret", cluster: "c"})
		n.serve(remote{addr: "10.0.0.2:7462", region: "us", name: "u2", secret: "secret", cluster: "c"})
		l, log := n.links("us=10.0.0.1")
		settle(10 * time.Second)
		set := func(items ...string) {
			list, err := Parse("eu", items, 7462)
			if err != nil {
				t.Fatal(err)
			}
			l.Set(list)
		}
		usable := l.Addr("us", 0)
		set("us=10.0.0.1", "ap=10.0.0.9")
		if l.Addr("us", 0) != usable || !l.Has("ap") || !slices.Equal(l.Others(), []string{"ap", "us"}) {
			t.Errorf("with ap: %v, %q", l.Others(), l.Addr("us", 0))
		}
		settle(10 * time.Second)
		if s := l.Status(); len(s) != 2 || s[0].State != facts.RegionUnreached || s[1].State != facts.RegionLinked {
			t.Errorf("with ap: %+v", s)
		}
		set("us=10.0.0.2")
		settle(10 * time.Second)
		if s := l.Status(); len(s) != 1 || l.Addr("us", 0) != "us@10.0.0.2:7462" || l.Addr("us", 1) != "us@10.0.0.2:7462" || l.Has("ap") {
			t.Errorf("without ap: %+v, %s", s, l.Addr("us", 0))
		}
		text := log()
		settle(time.Minute)
		if log() != text {
			t.Errorf("a link that is gone goes on: %s", log()[len(text):])
		}
	})
}

// TestPost: what speakers tell each other arrives although hundreds of messages about keys wait, and all that wait arrive.
func TestPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		var mu sync.Mutex
		keys, before := 0, -1
		n.serve(remote{addr: "10.0.0.1:7462", region: "us", name: "u1", secret: "secret", cluster: "c", took: func(m *message.RegionMessages) {
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if m.Homes != nil {
				keys++
			} else {
				before = keys
			}
		}})
		l, _ := n.links("us=10.0.0.1")
		settle(10 * time.Second)
		eu := message.Peer{Name: "eu", Boot: "e1-1~1"}
		for range 200 {
			l.Post("us", &message.RegionMessages{From: eu, Homes: []message.KeyHome{{Home: "eu"}}})
		}
		settle(time.Second)
		l.Post("us", &message.RegionMessages{From: eu})
		settle(time.Minute)
		if keys != 200 || before < 0 || before > speakers*(20+window+1) {
			t.Errorf("%d of 200 messages about keys arrived, %d of them before the urgent one", keys, before)
		}
	})
}

// TestManyRules: of more rules than a response has, those that are in it are compared by name, and the others by their sum.
func TestManyRules(t *testing.T) {
	var list []string
	for i := range maxRules + 50 {
		list = append(list, fmt.Sprintf("shop/%04d eu 1", i))
	}
	ours := rulesOf(list...)
	for changed, want := range map[int]string{7: `rule "shop/0007" has home eu in region eu, and us in region us`, maxRules + 9: "rules of global limits differ"} {
		theirs := append([]string{}, list...)
		theirs[changed] = fmt.Sprintf("shop/%04d us 1", changed)
		var a message.RegionResponse
		rulesOf(theirs...).Answer(ours.Request(), &a)
		if got := ours.differs("eu", "us", &a); !strings.Contains(got, want) || len(a.Globals) != maxRules {
			t.Errorf("%d: %s, by %d rules; want %s", changed, got, len(a.Globals), want)
		}
	}
}
