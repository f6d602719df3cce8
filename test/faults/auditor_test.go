//go:build linux

package faults

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/faultnet"
	"github.com/sluicecluster/sluice/test/process"
)

const domain = "fault"

// groups returns what is asked in a scenario whose fault lasts as long as given, at n nodes. Beside
// a ledger they are few.
func groups(fault time.Duration, n int, ledger bool) (gs []group) {
	for _, policy := range policies {
		gs = append(gs, group{policy: policy, state: spent, keys: 40, limit: 20, rate: 4, batch: 40})
		if policy != "closed" {
			gs = append(gs, group{policy: policy, state: unknown, keys: 30, limit: 20, rate: 4, batch: 30})
		}
		gs = append(gs, group{policy: policy, state: spending, keys: 30, rate: 5, batch: 30})
	}
	if ledger { // its callers are load enough
		gs = nil
	} else {
		gs = append(gs,
			group{policy: "hot", state: spent, keys: 1, limit: 1000, rate: 200, batch: 4},
			group{policy: "hot", state: spending, keys: 1, rate: 200, batch: 4},
		)
	}
	gs = append(gs,
		group{policy: "closed", state: ample, keys: 30, limit: 1e6, rate: 1, batch: 30},
		group{policy: "probe", state: spending, keys: 24, limit: 1e6, rate: 2, batch: 1},
	)
	for i := range gs {
		if gs[i].limit == 0 { // at its limit in the middle of the fault
			gs[i].limit = int64(gs[i].rate * float64(n) * (lead + fault/2).Seconds())
		}
	}
	return gs
}

// ruleFile returns the rules of the groups. No window ends in a run.
func ruleFile(gs []group) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for _, g := range gs {
		b.WriteString(ruleText(g.name(), g.policy, fmt.Sprintf("%s, count: %d", hourly, g.limit)))
	}
	return b.String()
}

// hourly is a limit without its count.
const hourly = "algorithm: fixed_window, align: first_hit, period: 1h"

// ruleText returns the rule of a key.
func ruleText(key, policy, limit string) string {
	replication, fallback := "async", "share"
	switch policy {
	case "sync":
		replication = "sync"
	case "closed":
		replication, fallback = "sync", "closed"
	}
	return fmt.Sprintf("  - key: %s\n    replication: %s\n    on_failure: %s\n    on_partition: %s\n"+
		"    rate_limit: {%s}\n", key, replication, fallback, fallback, limit)
}

// byOwner reports whether an owner has decided, or a lease that it granted.
func byOwner(d *sluicev1.Decision) bool {
	return d.Source != sluicev1.Source_SOURCE_SHARE && d.Source != sluicev1.Source_SOURCE_CLOSED
}

// auditor asks every node at its own address, whatever state it is in, and counts what is admitted.
type auditor struct {
	c        *cell
	accounts []*account
	running  sync.WaitGroup
	stop     context.CancelFunc
	ctx      context.Context
	fault    atomic.Int64 // when it began, Unix ns; 0 before
	errors   atomic.Int64 // checks without a decision
	wrong    sync.Map     // answers that no scenario has: a fault of this test
	targets  []*target
}

// target is a node's address, with the name of the process and the address.
type target struct {
	process.Peer
	addr string
	api  sluicev1.RateLimitServiceClient
}

func newAuditor(c *cell, gs []group) *auditor {
	a := &auditor{c: c}
	a.ctx, a.stop = context.WithCancel(context.Background())
	for _, g := range gs {
		acc := newAccount(g)
		acc.fault = c.fault
		a.accounts = append(a.accounts, acc)
	}
	return a
}

// dialOptions connect from the client's namespace, and again at once where nothing listens.
func (c *cell) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return faultnet.Dial(ctx, c.namespace(clientHost), addr)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
			MinConnectTimeout: 500 * time.Millisecond,
		}),
	}
}

func (a *auditor) connect(name, addr string) {
	conn, err := grpc.NewClient(addr, a.c.dialOptions()...)
	if err != nil {
		a.c.t.Fatal(err)
	}
	conn.Connect()
	a.targets = append(a.targets, &target{process.Peer{Name: name, Conn: conn}, addr, sluicev1.NewRateLimitServiceClient(conn)})
}

// prespend takes the keys that are spent before the fault to their limit: those of state spent by way of all nodes,
// until each has told that nothing is left, the unknown ones by way of the last node alone.
func (a *auditor) prespend() error {
	deadline := time.Now().Add(20 * time.Second)
	for _, acc := range a.accounts {
		targets := a.targets
		switch acc.state {
		case spending, ample:
			continue
		case unknown:
			targets = targets[len(targets)-1:]
		}
		for {
			missing := ""
			for _, t := range targets {
				for range max(1, 200/acc.batch) { // hot keys have far to go
					a.call(t, acc, acc.all())
				}
			}
			acc.mu.Lock()
			for i, k := range acc.keys {
				for _, t := range targets {
					if h := k.nodes[t.Name]; h == nil || !h.known || h.left > 0 || k.admitted < acc.limit {
						missing = fmt.Sprintf("%s: key %d admitted %d of %d, %s heard %+v", acc.name(), i, k.admitted, acc.limit, t.Name, h)
					}
				}
			}
			acc.mu.Unlock()
			if missing == "" {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("keys cannot be spent: %s", missing)
			}
		}
	}
	return nil
}

// all are the keys of one call that asks for each.
func (a *account) all() (keys []int) {
	for i := range max(a.batch, len(a.keys)) {
		keys = append(keys, i%len(a.keys))
	}
	return keys
}

// ask begins to ask a node for the keys of the states, at each group's rate, until the auditor ends.
func (a *auditor) ask(t *target, states ...state) {
	for _, acc := range a.accounts {
		if !slices.Contains(states, acc.state) {
			continue
		}
		a.running.Go(func() {
			tick := time.NewTicker(time.Duration(float64(time.Second) * float64(acc.batch) / acc.rate / float64(acc.group.keys)))
			defer tick.Stop()
			room := make(chan struct{}, 64)
			for next := 0; ; {
				var keys []int
				for range acc.batch {
					keys = append(keys, next%acc.group.keys)
					next++
				}
				select {
				case room <- struct{}{}:
					a.running.Go(func() {
						a.call(t, acc, keys)
						<-room
					})
				default: // as many calls wait as a client would let wait
				}
				select {
				case <-a.ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

// greet asks a node for every key that is spent, several times, whenever it has begun to listen: other checks may come
// too late to meet a process that has just been started. Keys of state unknown wait for the fault, unless the start is cold.
func (a *auditor) greet(t *target, cold bool) {
	a.running.Go(func() {
		for state := t.Conn.GetState(); t.Conn.WaitForStateChange(a.ctx, state); {
			if state = t.Conn.GetState(); state == connectivity.Idle {
				t.Conn.Connect()
			}
			if state != connectivity.Ready {
				continue
			}
			for _, acc := range a.accounts {
				switch acc.state {
				case unknown:
					if !cold && a.fault.Load() == 0 {
						continue
					}
				case spending, ample:
					continue
				}
				a.running.Go(func() {
					for range 10 {
						a.call(t, acc, acc.all())
					}
				})
			}
		}
	})
}

// call asks a node once for the keys, counts its answers, and returns how many checks an owner has
// allowed.
func (a *auditor) call(t *target, acc *account, keys []int) (allowed int) {
	request := &sluicev1.CheckRequest{}
	for _, k := range keys {
		request.Checks = append(request.Checks, &sluicev1.Check{Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: acc.name(), Value: fmt.Sprintf("k%d", k)}}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	asked := time.Now()
	response, err := t.api.Check(ctx, request)
	now := time.Now()
	fault := time.Duration(0)
	if began := a.fault.Load(); began > 0 {
		fault = now.Sub(time.Unix(0, began))
	}
	if err != nil {
		a.errors.Add(int64(len(keys)))
		acc.unanswered(fault, len(keys))
		return 0
	}
	for i, d := range response.Decisions {
		if d.Error != nil {
			a.errors.Add(1)
			acc.unanswered(fault, 1)
			continue
		}
		source := strings.ToLower(strings.TrimPrefix(d.Source.String(), "SOURCE_"))
		switch d.Source {
		case sluicev1.Source_SOURCE_OWNED, sluicev1.Source_SOURCE_FORWARDED, sluicev1.Source_SOURCE_LEASE, sluicev1.Source_SOURCE_LOST_STATE:
		case sluicev1.Source_SOURCE_SHARE, sluicev1.Source_SOURCE_CLOSED:
		default:
			a.wrong.Store(source, acc.name())
		}
		owner := byOwner(d)
		acc.add(answer{
			key: keys[i], node: t.Name, source: source, owner: owner, allowed: d.Allowed,
			left: d.GetRemaining(), at: now, fault: fault, took: now.Sub(asked),
		})
		if owner && d.Allowed {
			allowed++
		}
	}
	return allowed
}

// lost reports how many partitions the nodes have without their counters, or which node denies an
// ample key.
func (c *cell) lost() error {
	if n := c.sum("sluice_partitions_lost_state"); n > 0 {
		return fmt.Errorf("%d partitions are lost", n)
	}
	for _, acc := range c.audit.accounts {
		for _, t := range c.targets() {
			if acc.state != ample {
				continue
			}
			if n := c.audit.call(t, acc, acc.all()); n < len(acc.keys) {
				return fmt.Errorf("%s: by %s, owners allow %d of %d keys with units left",
					acc.name(), t.Name, n, len(acc.keys))
			}
		}
	}
	return nil
}

// sum returns the sum of a metric of the nodes.
func (c *cell) sum(metric string) (n int) {
	get := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return faultnet.Dial(ctx, c.namespace(clientHost), addr)
		},
	}}
	for _, node := range c.nodes {
		v, err := process.Measure(&get, "http://"+node.addr+":7461/metrics")
		value, ok := v[metric]
		if err != nil || !ok {
			c.t.Fatalf("%s: no %s, %v", node.name, metric, err)
		}
		n += int(value)
	}
	return n
}

// end ends asking; calls under way are answered first.
func (a *auditor) end() {
	a.stop()
	a.running.Wait()
}

// tell logs who decided, and which node admitted what by itself.
func (a *auditor) tell() {
	for _, acc := range a.accounts {
		acc.mu.Lock()
		var lines []string
		for _, s := range slices.Sorted(maps.Keys(acc.sources)) {
			lines = append(lines, fmt.Sprintf("%s %d", s, acc.sources[s]))
		}
		for _, n := range slices.Sorted(maps.Keys(acc.fallback)) {
			lines = append(lines, fmt.Sprintf("%s by itself %v", n, acc.fallback[n]))
		}
		acc.mu.Unlock()
		a.c.t.Logf("%s: %s", acc.name(), strings.Join(lines, ", "))
	}
	a.wrong.Range(func(source, group any) bool {
		a.c.t.Errorf("%v: answers of source %v", group, source)
		return true
	})
}
