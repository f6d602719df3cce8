package change

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/test/process"
)

// The SDK under change: what its callers see while the nodes that they ask restart or are lost.

// Keys of each policy's client, and what each is given. The nodes themselves admit nothing without a
// owner, so that what is above the quota is the SDK's doing, or a crash's. Who fails closed wants nothing
// above it at all, and so asks by the rule whose answers wait for the copy.
const (
	sdkKeys  = 100
	sdkQuota = 60
	sdkRules = `domain: sdk
descriptors:
  - key: user
    on_failure: closed
    on_partition: closed
    limits: [{algorithm: fixed_window, align: first_hit, count: 60, period: 24h}]
  - key: paid
    replication: sync
    on_failure: closed
    on_partition: closed
    limits: [{algorithm: fixed_window, align: first_hit, count: 60, period: 24h}]
`
)

// program is a client of the SDK under load, and what its callers have seen.
type program struct {
	name string
	user string // the key of its descriptors
	*sluice.Client

	mu       sync.Mutex
	errors   int
	first    error
	admitted map[string]int
	sources  map[limit.Source]int
	// times are those of the admitted; own is how many of them the policy admitted, without a node's answer.
	times []span
	own   int
}

// span is when a check was sent and when it was answered.
type span struct{ sent, answered time.Time }

// Nodes implements load.Target: the client chooses.
func (p *program) Nodes() int { return 1 }

// NewCaller implements load.Target.
func (p *program) NewCaller(int) load.Caller { return p }

// Call implements load.Caller.
func (p *program) Call(ctx context.Context, _ int, keys []string, seen *load.Counts) error {
	for _, k := range keys {
		sent := time.Now()
		d, err := p.Client.Key("sdk", p.user, k).Check(ctx, 1)
		if ctx.Err() != nil {
			return ctx.Err() // nobody waits for this one any more
		}
		p.saw(k, sent, d, err)
		seen.Count(load.Untold, err == nil && d.Allowed)
	}
	return nil
}

func (p *program) saw(key string, sent time.Time, d sluice.Decision, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.errors++
		if p.first == nil {
			p.first = err
		}
		return
	}
	p.sources[d.Source]++
	if d.Allowed {
		p.admitted[key]++
		p.times = append(p.times, span{sent, time.Now()})
		if d.Source == limit.SourceFailOpen || d.Source == limit.SourceFailLocal {
			p.own++
		}
	}
}

// over returns how many units were admitted above the keys' quotas, and how many were left.
func (p *program) over() (over, left int) {
	left = sdkKeys * sdkQuota
	for _, n := range p.admitted {
		over += max(0, n-sdkQuota)
		left -= min(n, sdkQuota)
	}
	return over, left
}

// programs dials a client for each policy.
func programs(t *testing.T, nodes []*process.Node) []*program {
	t.Helper()
	var all []*program
	for _, p := range []struct {
		name, key string
		policy    sluice.FailurePolicy
	}{{"closed", "paid", sluice.FailClosed()}, {"open", "user", sluice.FailOpen()}, {"local", "user", sluice.FailLocal(1.0 / 3)}} {
		c, err := sluice.New(process.Target(nodes), sluice.WithFailurePolicy(p.policy))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, &program{name: p.name, user: p.key, Client: c, admitted: map[string]int{}, sources: map[limit.Source]int{}})
	}
	return all
}

// underLoad asks through all clients while change goes on, and a little before and after it, and
// then until no key of the closed one has anything left.
func underLoad(t *testing.T, all []*program, change func()) {
	t.Helper()
	ctx, enough := context.WithCancel(t.Context())
	keys, err := load.NewPickers(sdkKeys, 0)
	if err != nil {
		t.Fatal(err)
	}
	var loads sync.WaitGroup
	for i, p := range all {
		loads.Go(func() {
			if _, err := load.Run(ctx, p, load.Work{
				Callers: 32, Batch: 1, Rate: 300, Keys: keys, Prefix: p.name, Seed: uint64(i + 1), Duration: 10 * time.Minute,
			}); err != nil {
				t.Error(err)
			}
		})
	}
	pass(2 * time.Second)
	change()
	pass(3 * time.Second)
	enough()
	loads.Wait()
	for _, p := range all {
		p.exhaust(t)
	}
}

// exhaust asks for every key until an owner has denied it three times.
func (p *program) exhaust(t *testing.T) {
	t.Helper()
	for k := range sdkKeys {
		key := fmt.Sprintf("%s%08d", p.name, k)
		for denied := 0; denied < 3; {
			sent := time.Now()
			d, err := p.Client.Key("sdk", p.user, key).Check(t.Context(), 1)
			p.saw(key, sent, d, err)
			if err != nil || t.Failed() {
				break
			}
			if !d.Allowed {
				denied++
			}
		}
	}
}

// judge holds what callers have seen against what the policies promise. lost is how many units
// a crash may have had nodes admit twice.
func (p *program) judge(t *testing.T, lost int) {
	t.Helper()
	over, left := p.over()
	t.Logf("%s: %v; %d admitted above the quota (%d without a node, and %d may be a crash's), %d of %d left over, %d errors",
		p.name, p.sources, over, p.own, lost, left, sdkKeys*sdkQuota, p.errors)
	if p.errors > 0 {
		t.Errorf("%s: %d errors reached callers, the first: %v", p.name, p.errors, p.first)
	}
	if over > p.own+lost {
		t.Errorf("%s: %d units were admitted above the quota, want at most %d", p.name, over, p.own+lost)
	}
	if p.name == "closed" && p.own > 0 {
		t.Errorf("closed: %d units were admitted without a node's answer", p.own)
	}
	if p.sources[limit.SourceOwned] == 0 {
		t.Errorf("%s: no check was decided by the node that holds its key", p.name)
	}
}

// lostWith counts the units that a node may have admitted in the 50 ms before it was killed, which was
// between two times: what it admitted then may not have reached its copies.
func (p *program) lostWith(from, until time.Time) (n int) {
	for _, c := range p.times {
		if c.answered.After(from.Add(-50*time.Millisecond)) && c.sent.Before(until) {
			n++
		}
	}
	return n
}

// comeBack starts nodes[i], which has ended, under its name and at the addresses that the clients know.
func comeBack(t *testing.T, nodes []*process.Node, i int, rules string) {
	t.Helper()
	var join []string
	for j, o := range nodes {
		if j != i {
			join = append(join, o.Gossip)
		}
	}
	nodes[i] = nodes[i].Same(process.Config{Join: join, Rules: rules})
	nodes[i].WaitReady()
	process.WaitAgreed(t, nodes, 20*time.Second)
}

func TestChangeSDKRollingRestart(t *testing.T) {
	rules := process.RulesOf(t, sdkRules)
	nodes := process.Cluster(t, 3, rules)
	all := programs(t, nodes)
	underLoad(t, all, func() {
		for i, n := range nodes {
			if _, code := n.Stop(syscall.SIGTERM); code != 0 {
				t.Errorf("%s ended with %d", n.Name, code)
			}
			comeBack(t, nodes, i, rules)
		}
	})
	for _, p := range all {
		p.judge(t, 0)
	}
}

func TestChangeSDKCrash(t *testing.T) {
	rules := process.RulesOf(t, sdkRules)
	nodes := process.Cluster(t, 3, rules)
	all := programs(t, nodes)
	var from, until time.Time
	underLoad(t, all, func() {
		from = time.Now()
		nodes[1].Kill()
		until = time.Now()
		pass(5 * time.Second)
		comeBack(t, nodes, 1, rules)
	})
	for _, p := range all {
		lost := 0
		if p.user == "user" {
			lost = p.lostWith(from, until)
		}
		p.judge(t, lost)
	}
}
